"""Generations under way in an engine: each streams what is sampled, and each that is left is aborted."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any

import anyio

from agentkit.errors import AgentkitError, ConfigError, ModelError
from agentkit.protocols import EmitTokens, Finish, FinishReason, Json, MediaError, TokenChunk, TokenRequest
from agentkit.tokens import Images, collapse
from agentkit_vllm.engine import Engine
from agentkit_vllm.sampling import check_params, held_tokens, sampling_fields

_ABORT_S = 10.0

# repetition: vLLM gave up on text that went in circles, so the policy has not come to its own end
_FINISHES = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "repetition": FinishReason.LENGTH,
    "abort": FinishReason.ABORTED,
}

_SETTING = "asked for is that of every sampled token (logprobs=0): see engine.logprobs_mode and engine.max_logprobs"


class Requests:
    """A running engine and what is under way in it. `sampling` is the module `vllm.sampling_params`."""

    def __init__(
        self, engine: Engine, sampling: Any, policy_version: int | Callable[[], int | None] | None = None
    ) -> None:
        self.engine = engine
        self.window: int = engine.model_config.max_model_len
        self.known = frozenset[str](sampling.SamplingParams.__struct_fields__)
        """The names of this vLLM's sampling parameters."""
        self._policy_version = policy_version
        self._sampling = sampling
        self._numbers = count()
        self._images = Images()
        self._pumps: set[asyncio.Task[Finish]] = set()

    async def run(self, request: TokenRequest, params: Mapping[str, Json], max_tokens: int, emit: EmitTokens) -> Finish:
        """One generation, in a task of its own.

        A cancel scope cancels again and again until its task has left it, and a second cancel would cut vLLM's own
        abort short. So the task that holds the request gets one cancel, whatever ours gets.

        Raises:
            ConfigError: `params` has something that vLLM does not know or take.
            ModelError: the engine failed, or ended the request in a way that is no end of a generation.
        Cancellation: the engine has been told to abort before the cancellation goes on, but for a second native cancel.
        """
        told = self._told(params, request.stop_ids, max_tokens)
        number = next(self._numbers)
        request_id = f"{request.request_id}-{number}"  # an abandoned try must not share its id with the next
        pumped = self._pump(request, request_id, told, emit, held=held_tokens(params))
        pump = asyncio.create_task(pumped, name=f"vllm request {request_id}")
        self._pumps.add(pump)
        pump.add_done_callback(self._forget)
        try:
            await asyncio.wait((pump,))
        except BaseException as error:
            pump.cancel()
            if isinstance(error, asyncio.CancelledError):  # else there is no loop to wait on
                with anyio.CancelScope(shield=True):
                    await asyncio.wait((pump,), timeout=_ABORT_S)
            raise
        if pump.cancelled():
            raise ModelError("the model was closed while it sampled")
        return pump.result()

    async def close(self) -> None:
        """End what is under way.

        Cancellation: what is under way is told to end all the same.
        """
        for pump in tuple(self._pumps):
            pump.cancel()
        if self._pumps:
            await asyncio.wait(tuple(self._pumps), timeout=_ABORT_S)

    def _told(self, params: Mapping[str, Json], stop_ids: frozenset[int], max_tokens: int) -> object:
        check_params(params, known=self.known)
        fields = sampling_fields(params, stop_ids=stop_ids, max_tokens=max_tokens)
        try:
            if isinstance(outputs := fields.get("structured_outputs"), Mapping):
                fields["structured_outputs"] = self._sampling.StructuredOutputsParams(**outputs)
            return self._sampling.SamplingParams(**fields, output_kind=self._sampling.RequestOutputKind.DELTA)
        except Exception as error:  # its own classes of errors differ from version to version
            raise ConfigError(f"vLLM does not take these params: {error}") from error

    def _forget(self, pump: "asyncio.Task[Finish]") -> None:
        self._pumps.discard(pump)
        if not pump.cancelled():
            pump.exception()  # now it counts as seen, also where whoever asked has left

    def _prompt(self, request: TokenRequest) -> dict[str, object]:
        if not request.media:
            # A list of ints is what vLLM takes, and hands on to another process: 1.3 ms and as much again for 100k ids.
            return {"type": "token", "prompt_token_ids": list(request.prompt_ids)}
        shown = [placed.medium for placed in request.media]
        if others := [medium for medium in shown if medium.kind != "image"]:
            raise MediaError(f"a VLLMModel shows images, found {others[0]!r}")
        return {  # no "type": with one, vLLM takes a prompt for processed, and does not look at the images
            "prompt_token_ids": collapse(request.prompt_ids, request.media),  # vLLM expands placeholders itself
            "multi_modal_data": {"image": [self._images.open(medium) for medium in shown]},
            # by which it knows an image again, instead of by its pixels
            "multi_modal_uuids": {"image": [medium.digest.hex() for medium in shown]},
        }

    async def _pump(
        self, request: TokenRequest, request_id: str, told: object, emit: EmitTokens, *, held: int
    ) -> Finish:
        version = self._policy_version
        prompt = self._prompt(request)
        is_unchecked = bool(request.media)
        finish: str | None = None
        stopped_by: object = None
        try:
            async with aclosing(self.engine.generate(prompt, told, request_id)) as outputs:
                async for output in outputs:
                    (sampled,) = output.outputs
                    if is_unchecked:
                        _check_expanded(output.prompt_token_ids, request)
                        is_unchecked = False
                    if ids := list(sampled.token_ids):
                        logprobs = _logprobs(ids, sampled.logprobs)
                        emit(TokenChunk(ids, logprobs, version() if callable(version) else version))
                    finish, stopped_by = sampled.finish_reason or finish, sampled.stop_reason
        except BaseException as error:
            # generate() aborts what it has begun to wait for, but a cancel while the request is being added slips by
            await self.engine.abort(request_id)
            if isinstance(error, Exception) and not isinstance(error, AgentkitError):
                raise _fault(error) from error
            raise
        if finish not in _FINISHES:
            raise ModelError(f"vLLM ended a generation with {finish!r}", retryable=finish == "error")
        if finish != "stop" or not isinstance(stopped_by, str):  # an id where a stop id ended it
            return Finish(_FINISHES[finish])
        return Finish(_FINISHES[finish], stop_string=stopped_by, min_tokens=held)


def _check_expanded(prompt_ids: Sequence[int] | None, request: TokenRequest) -> None:
    """Nothing is recorded that was sampled after another prompt than the chain has."""
    if list(prompt_ids or ()) != list(request.prompt_ids):
        raise ModelError(
            f"vLLM made a prompt of {len(prompt_ids or ())} ids of {len(request.media)} images and a chain of "
            f"{len(request.prompt_ids)} ids: the renderer's processor is not the model's, or has other limits on "
            "pixels (engine.mm_processor_kwargs)"
        )


def _logprobs(ids: list[int], found: Any) -> list[float]:
    if found is None or len(found) != len(ids):
        count = 0 if found is None else len(found)
        raise ModelError(f"vLLM gave {len(ids)} sampled tokens with {count} log-probabilities: {_SETTING}")
    if not all(token_id in each for token_id, each in zip(ids, found, strict=True)):
        raise ModelError(f"vLLM gave log-probabilities of other tokens than it sampled: {_SETTING}")
    values = [float(each[token_id].logprob) for token_id, each in zip(ids, found, strict=True)]
    if not all(map(math.isfinite, values)):
        raise ModelError("vLLM gave a log-probability that is not a finite number: are the weights sound?")
    return values


def _fault(error: Exception) -> ModelError:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "EngineDeadError" in kinds:
        return ModelError("vLLM's engine is dead: its log says why; leave the model and enter it again")
    cause = error.__cause__ if "EngineGenerateError" in kinds and error.__cause__ is not None else error
    # busy is what its admission control says; everything else is about this request
    busy = getattr(cause, "http_status", None) == 503
    return ModelError(f"vLLM failed the request: {type(cause).__name__}: {cause!s:.2000}", retryable=busy)
