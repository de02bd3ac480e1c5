"""Plays a conversation through the loop that production runs: an agent, its rollout, its ledger, its policy."""

from array import array
from collections.abc import Mapping, Sequence

import anyio
from attrs import evolve, field, frozen

from agentkit.actors import Agent, OutcomePolicy, Pool, Rollout
from agentkit.errors import ModelError, NotAppendable
from agentkit.models.sampling import position_logprob
from agentkit.protocols import (
    Budget,
    ChainDelta,
    EmitTokens,
    ExitReason,
    Finish,
    FinishReason,
    Json,
    Message,
    Observation,
    Parsed,
    Renderer,
    Task,
    TokenChunk,
    TokenRequest,
    ToolCall,
    ToolContext,
    ToolSpec,
    Trajectory,
    call_id,
)
from agentkit.testing.alignment.conversations import Conversation
from agentkit.testing.alignment.subject import Subject
from agentkit.testing.clocks import virtual_asyncio
from agentkit.testing.fakes import MemorySink

_BUDGET = Budget(max_tokens=2**30, max_turns=2**20, trajectory_s=1e6, generation_s=1e5)


@frozen
class Played:
    """What came of a conversation: the record, each prompt as the model got it, and why it ended early, if it did.

    `is_broken` says that no bridge refused in due form, but something raised.

    After the last exchange the policy is asked once more and says nothing but a stop token, so the last chain ends with
    the whole prompt of the next turn, and that token.
    """

    trajectory: Trajectory
    prompts: tuple[tuple[int, ...], ...]
    deltas: tuple[ChainDelta, ...]
    refused: str | None
    is_broken: bool

    @property
    def ids(self) -> list[int]:
        """The ids of the last chain, without the stop token that ended the play."""
        ids = list(self.trajectory.chains[-1].ids)
        return ids if self.refused is not None else ids[:-1]


@frozen(kw_only=True)
class Course:
    """How the play goes: ids in a chunk, before which turn the model fails once, and what replaces the history when."""

    chunk: int = 1 << 20
    fails_before: int | None = None
    rewrites_before: int | None = None
    rewritten: tuple[Message, ...] = ()
    drops_a_logprob: int | None = None


def play(
    subject: Subject, conversation: Conversation, turns: Sequence[Sequence[int]], course: Course | None = None
) -> Played:
    """Play `conversation` on virtual time, `turns[k]` being what is sampled in turn `k`. Not inside an event loop."""
    stage = _Stage(subject, conversation, turns, course or Course())
    backend, options = virtual_asyncio()
    return anyio.run(stage.perform, backend=backend, backend_options=options)


@frozen(eq=False)
class _Stage:
    """Model, parser and loop of one play."""

    subject: Subject
    conversation: Conversation
    turns: Sequence[Sequence[int]]
    course: Course
    prompts: list[tuple[int, ...]] = field(factory=list)
    refused: list[str] = field(factory=list)
    failed: list[bool] = field(factory=list)
    said: list[int] = field(factory=list)

    async def perform(self) -> Played:
        sink = MemorySink()
        agent = Agent(
            self,
            renderer=self.renderer,
            parser=self,
            tools=[_Shown(tool) for tool in self.conversation.tools],
            loop=self.loop,
            budget=_BUDGET,
            outcomes=OutcomePolicy(retries=0),
        )
        async with Pool(agent, sink=sink, max_rollouts=1) as pool:
            trajectory = await pool.start(Task("alignment", list(self.conversation.opening))).result()
        broken = None
        if trajectory.exit_reason is not ExitReason.FINISHED:
            *_, said = (trajectory.error or "").strip().splitlines() or [""]
            broken = f"the rollout ended as {trajectory.exit_reason}: {said}"
        deltas = tuple(sink.deltas.get(trajectory.key, ()))
        refused = self.refused[0] if self.refused else broken
        return Played(trajectory, tuple(self.prompts), deltas, refused, broken is not None)

    async def loop(self, rollout: Rollout) -> None:
        try:
            for number, exchange in enumerate(self.conversation.exchanges):
                self._rewrite(rollout, number)
                await rollout.sample()
                rollout.observe(*exchange.new)
            self._rewrite(rollout, len(self.conversation.exchanges))
            await rollout.sample()
        except NotAppendable as error:
            self.refused.append(str(error))
        if not rollout.ended:
            rollout.finish()

    def _rewrite(self, rollout: Rollout, number: int) -> None:
        if self.course.rewrites_before == number:
            rollout.rewrite(list(self.course.rewritten))

    # the model

    @property
    def renderer(self) -> Renderer:
        return self.subject.renderer

    async def sample_tokens(self, request: TokenRequest, emit: EmitTokens, /) -> Finish:
        number = len(self.said)
        if self.course.fails_before == number and not self.failed:
            self.failed.append(True)
            raise ModelError("the connection was lost before the first token", retryable=True)
        self.prompts.append(tuple(request.prompt_ids))
        self.said.append(number)
        is_last = number >= len(self.turns)
        ids = [min(self.subject.renderer.stop_ids)] if is_last else list(self.turns[number])
        start = len(request.prompt_ids)
        for first in range(0, len(ids), self.course.chunk):
            chunk = ids[first : first + self.course.chunk]
            logprobs = [position_logprob(start + first + i, token_id) for i, token_id in enumerate(chunk)]
            emit(TokenChunk(chunk, logprobs[:-1] if self.course.drops_a_logprob == number else logprobs))
        is_cut = not ids or ids[-1] not in self.subject.renderer.stop_ids
        return Finish(FinishReason.LENGTH if is_cut else FinishReason.STOP)

    # the parser: what it finds is what was said, whatever was sampled

    def begin(self, tools: Sequence[ToolSpec], /) -> "_Stage":
        del tools
        return self

    def feed(self, text: str, /) -> None:
        del text

    def finish(self, reason: FinishReason, /) -> Parsed:
        del reason
        number = len(self.said) - 1
        if number >= len(self.conversation.exchanges):
            return Parsed()
        said = self.conversation.exchanges[number].said
        return Parsed(said.content, said.reasoning, said.tool_calls)


@frozen
class _Shown:
    """A tool that is only shown: the loop says what it answers."""

    spec: ToolSpec

    async def call(self, arguments: Mapping[str, Json], context: ToolContext, /) -> Observation:
        """Never called."""
        raise NotImplementedError(f"{self.spec.name} is only shown")


def numbered(conversation: Conversation) -> Conversation:
    """`conversation` with the ids that a rollout gives to calls, so that both speak of the same ones."""
    exchanges = []
    for turn, exchange in enumerate(conversation.exchanges):
        ids = {call.id: call_id(turn, n) for n, call in enumerate(exchange.said.tool_calls)}
        calls = tuple(ToolCall(ids[call.id], call.name, call.arguments) for call in exchange.said.tool_calls)
        new = tuple(
            message if message.tool_call_id is None else evolve(message, tool_call_id=ids[message.tool_call_id])
            for message in exchange.new
        )
        exchanges.append(evolve(exchange, said=evolve(exchange.said, tool_calls=calls), new=new))
    return evolve(conversation, exchanges=tuple(exchanges))


def sampled_logprobs(start: int, ids: Sequence[int]) -> "array[float]":
    """The log-probabilities that a play gives to `ids` from position `start` on."""
    return array("f", [position_logprob(start + i, token_id) for i, token_id in enumerate(ids)])
