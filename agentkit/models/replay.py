"""A policy that samples again exactly what a trajectory says was sampled."""

from collections.abc import Sequence

from anyio.lowlevel import checkpoint

from agentkit.errors import ConfigError, ContextOverflow, ModelError
from agentkit.models.turns import Turns
from agentkit.protocols.chains import Span
from agentkit.protocols.messages import FinishReason
from agentkit.protocols.model import EmitTokens, Finish, TokenChunk, TokenRequest
from agentkit.protocols.tokens import Renderer, ToolParser
from agentkit.protocols.trajectory import Trajectory, Turn


class ReplayModel:
    """A token-level policy that answers the k-th request of each `request_id` with what turn k of `trajectory` sampled.

    Ids, log-probabilities and policy versions are those of the record, and the prompt must be that of the record, token
    by token: a replay that runs to its end proves that the loop around it renders as it did then.
    """

    takes_media = True
    """What is shown changes nothing here."""

    def __init__(
        self, trajectory: Trajectory, *, renderer: Renderer | None = None, parser: ToolParser | None = None
    ) -> None:
        turns = [turn for turn in trajectory.turns if turn.chain >= 0]
        if not turns:
            raise ConfigError(f"trajectory {trajectory.key} holds no sampled tokens to replay")
        self._trajectory = trajectory
        self._turns: Turns[Turn] = Turns(turns)
        self._renderer = renderer
        self._parser = parser

    @property
    def renderer(self) -> Renderer:
        """How messages become token ids for this policy."""
        if self._renderer is None:
            from agentkit.tokens import byte_chatml  # building it takes a while, and most records need another

            self._renderer = byte_chatml()
        return self._renderer

    @property
    def parser(self) -> ToolParser:
        """How this policy writes its tool calls."""
        if self._parser is None:
            from agentkit.parsing import HermesParser

            self._parser = HermesParser()
        return self._parser

    async def sample_tokens(self, request: TokenRequest, emit: EmitTokens, /) -> Finish:
        """Push what the next recorded turn sampled, one chunk a policy version.

        Raises:
            ContextOverflow: `max_tokens` is below 1.
            ModelError: the prompt differs from the record, whose first differing position it names; or the record ends.
        Cancellation: nothing more is pushed; the next request of this `request_id` gets the turn after this one.
        """
        if request.max_tokens < 1:
            raise ContextOverflow(f"max_tokens must be >= 1, found {request.max_tokens!r}")
        turn = self._turns.next(request.request_id)
        chain = self._trajectory.chains[turn.chain]
        _check_prompt(turn.index, request.prompt_ids, chain.ids[: turn.start])
        stop = min(turn.stop, turn.start + request.max_tokens)
        await checkpoint()
        for span in _pieces(chain.spans, turn.start, stop):
            emit(
                TokenChunk(
                    chain.ids[span.start : span.stop].tolist(),
                    chain.logprobs[span.start : span.stop].tolist(),
                    span.policy_version,
                )
            )
            await checkpoint()
        if stop < turn.stop:
            return Finish(FinishReason.LENGTH)
        return Finish(turn.finish, stop_string=turn.stop_string, min_tokens=turn.min_tokens)


def _pieces(spans: Sequence[Span], start: int, stop: int) -> list[Span]:
    """The parts of `spans` within `start <= t < stop`."""
    return [
        Span(max(span.start, start), min(span.stop, stop), span.kind, span.turn, span.policy_version)
        for span in spans
        if span.start < stop and span.stop > start
    ]


def _check_prompt(turn: int, prompt_ids: Sequence[int], recorded: Sequence[int]) -> None:
    if list(prompt_ids) == list(recorded):
        return
    shorter = min(len(prompt_ids), len(recorded))
    for position in range(shorter):
        if prompt_ids[position] != recorded[position]:
            raise ModelError(
                f"the prompt of turn {turn} differs from the record at position {position}: "
                f"expected {recorded[position]}, found {prompt_ids[position]}"
            )
    if len(prompt_ids) != len(recorded):
        raise ModelError(
            f"the prompt of turn {turn} differs from the record at position {shorter}: "
            f"expected {len(recorded)} ids, found {len(prompt_ids)}"
        )
