"""verl's rollout servers as a model: token ids in, token ids and log-probabilities out, with the weights' versions."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from numbers import Integral
from typing import Any

import anyio
from attrs import define, field

from agentkit.errors import AgentkitError, ContextOverflow, ModelError, RolloutEnded
from agentkit.protocols import EmitTokens, Finish, FinishReason, Json, TokenChunk, TokenRequest
from agentkit_verl.calls import ABORTED, Call, Caller, Output, Stopped
from agentkit_verl.pauses import Pauses

logger = logging.getLogger(__name__)

Shown = Callable[[TokenRequest], tuple[list[int], list[Any] | None]]
"""What a server is given for a request that shows media: the ids, and the images."""


@define
class Taken:
    """What verl's servers said beside tokens, over all generations of one session."""

    preempted: int = -1
    """How often requests were preempted; -1 where no server said."""
    synced_s: float = 0.0
    """Seconds in which a generation waited for weights to be exchanged."""
    versions: tuple[int, int] | None = None
    """The lowest and the highest weights that sampled, as far as servers said."""
    request_ids: set[str] = field(factory=set)
    experts: list[tuple[tuple[int, ...], int, Any]] = field(factory=list)
    """(last sampled ids, length with the prompt, routed experts) of each generation whose server says them."""

    def note_versions(self, extra_fields: Mapping[str, Any]) -> None:
        """Take in what a server says of one answer: its weights may have changed while it sampled."""
        named = [extra_fields.get(name) for name in ("global_steps", "min_global_steps", "max_global_steps")]
        found = [int(version) for version in named if isinstance(version, Integral)]
        if found:
            found += self.versions or ()
            self.versions = (min(found), max(found))

    def experts_of(self, token_ids: Sequence[int], stop: int) -> Any:
        """The routed experts of a chain's first `stop` tokens, or None where there are none."""
        for tail, length, experts in reversed(self.experts):
            if length == stop and tuple(token_ids[stop - len(tail) : stop]) == tail:
                return experts
        return None


TAKEN: ContextVar[Taken | None] = ContextVar("agentkit_verl_taken", default=None)
"""Where the session that a generation belongs to notes what the servers say: tasks inherit it."""


class ServerModel:
    """A `TokenModel` over `server_manager.generate`.

    `response_length` is that of verl's rows: of a chain at most as many tokens follow its opening, or the opening's
    first `prompt_length` tokens where that is longer. `window` is the server's `max_model_len`, where it is known.
    `logprobs` is verl's `calculate_log_probs`: without, servers give none, and zeros are recorded, which no row shows.
    """

    def __init__(
        self,
        client: Any,
        *,
        prompt_length: int,
        response_length: int,
        window: int | None = None,
        logprobs: bool = True,
        pauses: Pauses | None = None,
        shown: Shown | None = None,
    ) -> None:
        self._caller = Caller(client)
        self._prompt_length = prompt_length
        self._response_length = response_length
        self._window = window
        self._logprobs = logprobs
        self._pauses = pauses
        self._shown = shown
        self.takes_media = shown is not None
        self._wires: dict[str, _Wire] = {}

    async def sample_tokens(self, request: TokenRequest, emit: EmitTokens, /) -> Finish:
        """Push the parts of the answer as they arrive, each with the weights that sampled it.

        Raises:
            ContextOverflow: verl's row, or the server's window, has no room for one more token.
            ModelError: the server failed, or gave no log-probabilities.
        Cancellation: the server has stopped before the cancellation goes on, what it had sampled is pushed.
        """
        wire = self._wire(request)
        room = self._room(request, wire)
        params = {**request.params, "max_tokens": room, "stop_token_ids": sorted(request.stop_ids)}
        generation = _Generation(request, emit, self._pauses, logprobs=self._logprobs)
        ids, images = (wire.ids, None) if not request.media or self._shown is None else self._shown(request)
        arguments: dict[str, Any] = {"request_id": request.request_id, "prompt_ids": ids, "sampling_params": params}
        if images:
            arguments["image_data"] = images
        try:
            with generation:
                final = await self._caller.run(generation.call, arguments)
            generation.end(final)
        except (AgentkitError, asyncio.CancelledError):
            raise
        except Stopped:
            return Finish(FinishReason.ABORTED)
        except Exception as error:  # Ray's, the server's, the client's own
            raise _fault(error) from error
        generation.note_experts(wire.ids)
        if final.stop_reason in ABORTED:
            return Finish(FinishReason.ABORTED)
        last = generation.last
        if final.stop_reason == "length" or (generation.count >= room and last not in request.stop_ids):
            return Finish(FinishReason.LENGTH)
        return Finish(FinishReason.STOP, stop_string=_stop_string(request.params, last, request.stop_ids))

    def _wire(self, request: TokenRequest) -> "_Wire":
        """The ids as a list, grown by what is new since the last request of the same chain."""
        key, prompt = request.request_id, request.prompt_ids
        known = len(prompt) - request.new_ids
        wire = self._wires.get(key)
        if wire is not None and known >= len(wire.ids):
            wire.ids.extend(prompt[len(wire.ids) :])
            return wire
        ids = list(prompt)
        openings = [] if wire is None else wire.openings
        # a fork opens as its chain did, which need not be the one before it
        lengths = [len(opening) for opening in openings if ids[: len(opening)] == opening]
        if not lengths:
            openings.append(ids[:])
            lengths = [len(ids)]
        made = _Wire(ids, min(lengths), openings)
        self._wires[key] = made
        taken = TAKEN.get()
        if taken is not None:
            taken.request_ids.add(key)
        return made

    def _room(self, request: TokenRequest, wire: "_Wire") -> int:
        length = len(wire.ids)
        room = self._response_length - (length - min(wire.opening, self._prompt_length))
        if self._window is not None:
            room = min(room, self._window - length)
        if room < 1:
            raise ContextOverflow(
                f"the chain has {length} tokens, {wire.opening} of them its opening: verl's rows hold prompt_length="
                f"{self._prompt_length} and response_length={self._response_length}, its server max_model_len="
                f"{self._window}; there is no room for one more"
            )
        return min(room, request.max_tokens)

    def forget(self, taken: Taken) -> None:
        """Let go of what is kept for a session, which has ended."""
        for request_id in taken.request_ids:
            self._wires.pop(request_id, None)


@define
class _Wire:
    ids: list[int]
    opening: int
    """How many of the ids were there before anything was sampled in the chain, or in the one it was forked from."""
    openings: list[list[int]]
    """Those of all chains of the request so far."""


class _Generation:
    """The parts of one answer on their way into the record, and the waits between them."""

    def __init__(self, request: TokenRequest, emit: EmitTokens, pauses: Pauses | None, *, logprobs: bool) -> None:
        self._request = request
        self._emit = emit
        self._pauses = pauses
        self._logprobs = logprobs
        self._waits = ExitStack()
        self._wait: AbstractContextManager[None] | None = None
        self._waited_from = 0.0
        self._parts: list[Output] = []
        self._taken = TAKEN.get()
        self.call = Call(self.take, self.attempt)
        self.count = 0
        self.last: int | None = None

    def __enter__(self) -> None:
        if self._pauses is not None:
            self._waits.enter_context(self._pauses.told(self._paused))

    def __exit__(self, *_: object) -> None:
        self._waits.close()
        self._end_wait()

    def _paused(self, paused: bool) -> None:
        if paused:
            self._begin_wait()
        else:
            self._end_wait()

    def _begin_wait(self) -> None:
        if self._wait is None:
            self._wait = self._request.waiting()
            self._waited_from = anyio.current_time()
            self._wait.__enter__()

    def _end_wait(self) -> None:
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.__exit__(None, None, None)
            if self._taken is not None:
                self._taken.synced_s += anyio.current_time() - self._waited_from

    def attempt(self, number: int) -> None:
        """The client asks again, which it does once weights were exchanged."""
        if number and not (self._pauses is not None and self._pauses.paused):
            self._end_wait()

    def take(self, output: Output) -> None:
        """A part has come: into the record with it."""
        self._parts.append(output)
        ids, logprobs = list(output.token_ids), output.log_probs
        if ids:
            if self._taken is not None:  # weights that were exchanged before they sampled anything are not its own
                self._taken.note_versions(output.extra_fields)
            if logprobs is None and not self._logprobs:
                logprobs = [0.0] * len(ids)
            if logprobs is None or len(logprobs) != len(ids):
                found = "none" if logprobs is None else str(len(logprobs))
                raise ModelError(
                    f"the server gave {len(ids)} token ids and {found} log-probabilities: set "
                    "actor_rollout_ref.rollout.calculate_log_probs=True"
                )
            self.count += len(ids)
            self.last = ids[-1]
            version = output.extra_fields.get("global_steps")
            try:
                self._emit(TokenChunk(ids, logprobs, int(version) if isinstance(version, Integral) else None))
            except RolloutEnded:
                self.call.stop()
                raise
        if (
            output.stop_reason in ABORTED and not self.call.stopped
        ):  # by a weight sync: until the client asks again, nobody samples
            self._begin_wait()

    def end(self, final: Output) -> None:
        """The client's whole answer, which for clients that cannot be watched is the one part there is."""
        if not self._parts:
            self.take(final)
        elif len(final.token_ids) != self.count:
            raise ModelError(
                f"the client answered with {len(final.token_ids)} token ids, its server's parts had {self.count}"
            )
        if self._taken is not None:
            counted = [part.num_preempted for part in self._parts if part.num_preempted is not None]
            if counted:
                self._taken.preempted = max(0, self._taken.preempted) + sum(counted)
        self._final = final

    def note_experts(self, prompt_ids: Sequence[int]) -> None:
        """Keep what the server said of the experts that tokens were routed to."""
        if self._taken is None or self._final.routed_experts is None:
            return
        ids = self._final.token_ids
        self._taken.experts.append((tuple(ids[-8:]), len(prompt_ids) + len(ids), self._final.routed_experts))


def _stop_string(params: Mapping[str, Json], last: int | None, stop_ids: frozenset[int]) -> str | None:
    """The stop string that ended an answer. Servers do not say: where there is one only, it must have been that."""
    stop = params.get("stop")
    given = [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, Sequence) else []
    return str(given[0]) if len(given) == 1 and last not in stop_ids else None


def _fault(error: Exception) -> ModelError:
    """A failure of the server as an error that says whether another try may help."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    cause = getattr(error, "cause", None) or error
    text = f"{type(cause).__name__}: {cause!s:.1000}"
    if "leaves no room to generate" in text:
        return ContextOverflow(text)
    retryable = bool(kinds & {"ActorUnavailableError", "RayChannelTimeoutError", "GetTimeoutError"})
    return ModelError(f"verl's rollout server failed the request: {text}", retryable=retryable)
