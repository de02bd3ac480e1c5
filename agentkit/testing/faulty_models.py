"""Models that fail: by a plan, or exactly as told."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import anyio
from attrs import define, field

from agentkit.errors import ModelError, RolloutEnded
from agentkit.protocols import (
    EmitText,
    EmitTokens,
    Finish,
    HasRenderer,
    MessageModel,
    MessageRequest,
    Renderer,
    RolloutKey,
    TextChunk,
    TokenChunk,
    TokenModel,
    TokenRequest,
    ToolParser,
)
from agentkit.testing.plan import FaultPlan
from agentkit.testing.witness import Witness, running_rollout

ModelT = TypeVar("ModelT", bound="TokenModel | MessageModel")
ChunkT = TypeVar("ChunkT", TokenChunk, TextChunk)


def faulty_model(model: ModelT, plan: FaultPlan, *, witness: Witness | None = None) -> ModelT:
    """`model` with the faults of `plan`: of the same level, with the same renderer and parser."""
    return _wrapped(model, _PlannedFaults(plan, witness or Witness()).begin)


def failing_model(
    model: ModelT, error: Exception | None = None, *, after_chunks: int = 0, times: int | None = 1
) -> ModelT:
    """`model`, but the first `times` requests of each rollout attempt break off after `after_chunks` chunks.

    Then `error` is raised; without one the model never answers any more. `times=None` stands for every request.
    """
    witness = Witness()

    def begin(request: "TokenRequest | MessageRequest") -> "_Generation":
        del request
        number = witness.event(running_rollout(), "request")
        if times is not None and number >= times:
            return _Generation()
        return _Generation(cut_after=after_chunks, error=error, stalls=error is None)

    return _wrapped(model, begin)


class _Cut(Exception):
    """Unwinds the inner model where its stream breaks off."""


@define
class _Generation:
    """What happens to one generation."""

    at_once: Exception | None = None
    wait_s: float = 0.0
    cut_after: int | None = None
    error: Exception | None = None
    stalls: bool = False
    twice: int | None = None
    """The number of the chunk that comes twice."""
    emitted: int = 0
    push: "Callable[[Any, Callable[[Any], None]], None]" = lambda chunk, emit: emit(chunk)
    was_cut: bool = field(default=False, init=False)

    def emit(self, chunk: ChunkT, emit: Callable[[ChunkT], None]) -> None:
        if self.cut_after is not None and self.emitted >= self.cut_after:
            self.was_cut = True
            raise _Cut
        for _ in range(2 if self.twice == self.emitted else 1):
            self.push(chunk, emit)
        self.emitted += 1

    async def run(self, sample: Callable[[], Any]) -> Finish:
        if self.at_once is not None:
            raise self.at_once
        if self.wait_s:
            await anyio.sleep(self.wait_s)
        if self.cut_after == 0:
            self.was_cut = True
        else:
            try:
                finish: Finish = await sample()
                if self.cut_after is None:
                    return finish
            except Exception as fault:
                if not (isinstance(fault, _Cut) or self.was_cut):  # a model may pack what emit raises
                    raise
        if self.error is not None:
            raise self.error
        if self.stalls:
            await anyio.sleep_forever()
        raise ModelError("the stream broke off")


class _PlannedFaults:
    """Chooses what happens to each generation."""

    def __init__(self, plan: FaultPlan, witness: Witness) -> None:
        self._plan = plan
        self._witness = witness
        self._late: dict[RolloutKey, tuple[Any, Callable[[Any], None]]] = {}

    def begin(self, request: TokenRequest | MessageRequest) -> _Generation:
        key = running_rollout()
        self._push_late(key)
        asked = self._witness.ask(key, request) if isinstance(request, TokenRequest) else None
        number = self._witness.event(key, "request")
        made = self._choose(key, number)
        comes_late = self._plan.strikes("late_chunk", key, number)

        def push(chunk: Any, emit: Callable[[Any], None]) -> None:
            if comes_late:
                self._late[key] = (chunk, emit)
            if asked is not None:
                asked.push(chunk.token_ids)
            emit(chunk)

        made.push = push
        return made

    def _choose(self, key: RolloutKey, number: int) -> _Generation:
        def strikes(fault: str) -> bool:
            happens = self._plan.strikes(fault, key, number)
            self._witness.struck[fault] += happens
            return happens

        some = 1 + int(self._plan.draw("chunks", key, number) * 4)
        if strikes("server_error"):
            return _Generation(at_once=ModelError("500: the server is overloaded", retryable=True))
        if strikes("bad_request"):
            return _Generation(at_once=ModelError("400: the request was refused"))
        made = _Generation()
        if strikes("slow"):
            made.wait_s = self._plan.slow_s * self._plan.draw("slow for", key, number)
        if strikes("duplicate_chunk"):
            made.twice = some - 1
        if strikes("partial_stream"):
            made.cut_after, made.error = some, ModelError("the connection was lost in mid-stream", retryable=True)
        elif strikes("stall"):
            made.cut_after, made.stalls = some - 1, True
        elif strikes("crash"):
            made.cut_after, made.error = some, RuntimeError("a bug in the model's client")
        return made

    def _push_late(self, key: RolloutKey) -> None:
        late = self._late.pop(key, None)
        if late is None:
            return
        self._witness.struck["late_chunk"] += 1
        chunk, emit = late
        try:
            emit(chunk)
        except RolloutEnded:
            return
        self._witness.problems.append((key, "a chunk was taken after its generation was over"))


Begin = Callable[[TokenRequest | MessageRequest], _Generation]


def _wrapped(model: ModelT, begin: Begin) -> ModelT:
    inner: object = model
    if isinstance(inner, TokenModel):
        kind = _RenderingModel if hasattr(inner, "renderer") and hasattr(inner, "parser") else _TokenModel
        return cast("ModelT", kind(inner, begin))
    return cast("ModelT", _MessageModel(cast("MessageModel", inner), begin))


class _TokenModel:
    def __init__(self, model: TokenModel, begin: Begin) -> None:
        self._model = model
        self._begin = begin

    @property
    def takes_media(self) -> bool:
        return bool(getattr(self._model, "takes_media", False))

    async def sample_tokens(self, request: TokenRequest, emit: EmitTokens, /) -> Finish:
        generation = self._begin(request)
        return await generation.run(
            lambda: self._model.sample_tokens(request, lambda chunk: generation.emit(chunk, emit))
        )


class _RenderingModel(_TokenModel):
    @property
    def renderer(self) -> Renderer:
        return cast("HasRenderer", self._model).renderer

    @property
    def parser(self) -> ToolParser:
        return cast("HasRenderer", self._model).parser


class _MessageModel:
    def __init__(self, model: MessageModel, begin: Begin) -> None:
        self._model = model
        self._begin = begin

    async def sample_message(self, request: MessageRequest, emit: EmitText, /) -> Finish:
        generation = self._begin(request)
        return await generation.run(
            lambda: self._model.sample_message(request, lambda chunk: generation.emit(chunk, emit))
        )
