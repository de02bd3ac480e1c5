"""How a rollout talks to its policy: in tokens, or in messages. One interface, so that the same loop runs on both."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeAlias

from agentkit.actors._generation import TextGeneration, TokenGeneration, attempts_of, with_calls
from agentkit.actors._record import OpenTurn, Prefix, Record
from agentkit.actors.agent import Agent
from agentkit.errors import ConfigError, NotAppendable
from agentkit.protocols import (
    Action,
    Finish,
    FinishReason,
    Message,
    MessageModel,
    MessageRequest,
    Renderer,
    SpanKind,
    TokenModel,
    TokenRequest,
    ToolParser,
    ToolSpec,
    with_id,
)

Ask: TypeAlias = Callable[[], Coroutine[Any, Any, Finish]]
"""Starts one try at a generation."""


class Policy(Protocol):
    """The policy's side of a rollout."""

    name: str

    def render(self, pending: Sequence[Message]) -> int:
        """Put what was said since the last turn before the policy; how many tokens it may sample, <= 0 for none."""
        ...

    def begin(self, turn: OpenTurn, room: int) -> "Generation":
        """A generation for `turn`."""
        ...

    def rewritten(self) -> None:
        """The history was replaced: the next rendering starts anew."""
        ...


class Generation(Protocol):
    """One generation under way: the record it makes, and how to ask for it."""

    @property
    def emitted(self) -> bool:
        """Whether anything was sampled."""
        ...

    @property
    def full(self) -> bool:
        """Whether it was cut because there is no more room."""
        ...

    def close(self) -> None:
        """Refuse whatever comes now."""
        ...

    def ask(self, deadline: float) -> Ask:
        """A fresh try."""
        ...

    def read(self, finish: Finish | None) -> Action:
        """The action so far; one that did not come to its own end has no calls that run."""
        ...

    def said(self, action: Action, finish: Finish | None) -> Message:
        """The assistant message for the history."""
        ...


def policy_of(agent: Agent, record: Record, tools: tuple[ToolSpec, ...], request_id: str) -> Policy:
    """The policy's side of a rollout of `agent`."""
    model = agent.model
    if isinstance(model, TokenModel):
        if agent.renderer is None or agent.parser is None:  # an agent is checked when it is composed
            raise ConfigError("agent.renderer and agent.parser are needed by token-level models")
        return TokenPolicy(agent, model, agent.renderer, agent.parser, record, tools, request_id)
    return MessagePolicy(agent, model, record, tools, request_id)


def _nothing_new() -> ConfigError:
    return ConfigError(
        "rollout.sample was called with nothing new to answer: act on the last action or observe a message first"
    )


def _nothing_said() -> ConfigError:
    return ConfigError("there is nothing to answer: the task has no messages, and no env made any")


def _reason(finish: Finish | None) -> FinishReason:
    return FinishReason.ABORTED if finish is None else finish.reason


class TokenPolicy:
    """Keeps the chain: renders the first prompt, bridges from turn to turn, and never touches what is in it."""

    def __init__(
        self,
        agent: Agent,
        model: TokenModel,
        renderer: Renderer,
        parser: ToolParser,
        record: Record,
        tools: tuple[ToolSpec, ...],
        request_id: str,
    ) -> None:
        self.name = f"{type(model).__name__}.sample_tokens"
        self.agent = agent
        self.model = model
        self.renderer = renderer
        self.parser = parser
        self.record = record
        self.tools = tools
        self.request_id = request_id
        self.stop_ids = renderer.stop_ids
        self.sent = 0
        """How many ids of the chain the model has seen or sampled."""
        self._chain: int | None = None

    def render(self, pending: Sequence[Message]) -> int:
        """Append the bridge to the chain, or open one. Where there is no room for it, the chain stays as it is."""
        record, chain = self.record, self._chain
        if chain is None:
            return self._open_chain()
        if not pending:
            raise _nothing_new()
        ledger, last = record.ledger, record.turns[-1]
        said = record.history[-len(pending) - 1]
        sampled = ledger.view(chain).since(last.start)
        try:
            close, bridge = self.renderer.bridge(said, pending, self.tools, sampled=sampled)
        except NotAppendable:
            if self.agent.on_rewrite == "error":
                raise
            return self._open_chain()
        room = record.budget.max_tokens - ledger.length(chain) - len(close) - len(bridge)
        if room > 0:
            if close:
                ledger.append(chain, close, SpanKind.CLOSE, turn=last.index)
            ledger.append(chain, bridge, SpanKind.OBSERVATION, turn=last.index)
        return room

    def _open_chain(self) -> int:
        if not self.record.history:
            raise _nothing_said()
        prompt = self.renderer.prompt(self.record.history, self.tools)
        room = self.record.budget.max_tokens - len(prompt)
        if room > 0:
            self._chain = self.record.ledger.open(prompt)
            self.sent = 0
        return room

    def rewritten(self) -> None:
        """The next turn opens a new chain."""
        self._chain = None

    def begin(self, turn: OpenTurn, room: int) -> "Generation":
        """Sampled tokens go to the chain's end."""
        if self._chain is None:
            raise _nothing_new()
        turn.chain = self._chain
        turn.start = turn.stop = self.record.ledger.length(self._chain)
        return _SampledTokens(self, turn, self._chain, room)


class _SampledTokens(TokenGeneration):
    __slots__ = ("_chain_number", "_open_turn", "_policy", "_room_asked")

    def __init__(self, policy: TokenPolicy, turn: OpenTurn, chain: int, room: int) -> None:
        super().__init__(policy.record, chain=chain, turn=turn.index, room=room)
        self._policy = policy
        self._open_turn = turn
        self._chain_number = chain
        self._room_asked = room

    def ask(self, deadline: float) -> Ask:
        policy = self._policy
        prompt = policy.record.ledger.view(self._chain_number)
        request = TokenRequest(
            policy.request_id,
            prompt,
            len(prompt) - policy.sent,
            self._room_asked,
            policy.stop_ids,
            min(deadline, policy.record.deadline),
            policy.agent.params,
        )
        emit = self.begin_try()
        return lambda: policy.model.sample_tokens(request, emit)

    def read(self, finish: Finish | None) -> Action:
        policy, turn, reason = self._policy, self._open_turn, _reason(finish)
        turn.stop = policy.sent = self.stop
        text = policy.renderer.decode(policy.record.ledger.view(self._chain_number).since(turn.start))
        if finish is None:  # cut short: nothing in it may run, so nothing is parsed
            return Action(text, text, finish=reason)
        session = policy.parser.begin(policy.tools)
        session.feed(text)
        parsed = session.finish(reason)
        attempts = tuple(with_id(attempt, f"call_{turn.index}_{n}") for n, attempt in enumerate(parsed.attempts))
        return Action(text, parsed.content, parsed.reasoning, attempts, reason)

    def said(self, action: Action, finish: Finish | None) -> Message:
        return action.message()


class MessagePolicy:
    """Sends the conversation to a chat API; there are no tokens to keep."""

    def __init__(
        self, agent: Agent, model: MessageModel, record: Record, tools: tuple[ToolSpec, ...], request_id: str
    ) -> None:
        self.name = f"{type(model).__name__}.sample_message"
        self.agent = agent
        self.model = model
        self.record = record
        self.tools = tools
        self.request_id = request_id

    def render(self, pending: Sequence[Message]) -> int:
        """The history is the prompt; the server counts the tokens."""
        if self.record.turns and not pending:
            raise _nothing_new()
        if not self.record.history:
            raise _nothing_said()
        return self.record.budget.max_tokens

    def rewritten(self) -> None:
        """Nothing is kept beside the history."""

    def begin(self, turn: OpenTurn, room: int) -> "Generation":
        """Collects the text of the answer."""
        return _AnsweredText(self, turn.index, room)


class _AnsweredText(TextGeneration):
    __slots__ = ("_policy", "_room", "_turn")

    full = False

    def __init__(self, policy: MessagePolicy, turn: int, room: int) -> None:
        super().__init__(policy.record)
        self._policy = policy
        self._turn = turn
        self._room = room

    def ask(self, deadline: float) -> Ask:
        policy = self._policy
        request = MessageRequest(
            policy.request_id,
            Prefix(policy.record.history),
            policy.tools,
            self._room,
            min(deadline, policy.record.deadline),
            policy.agent.params,
        )
        emit = self.begin_try()
        return lambda: policy.model.sample_message(request, emit)

    def read(self, finish: Finish | None) -> Action:
        if finish is None or finish.message is None:
            return Action(self.content, self.content, self.reasoning, finish=_reason(finish))
        said = finish.message
        attempts = attempts_of(finish, said, self._turn)
        return Action(said.content, said.content, said.reasoning, attempts, finish.reason)

    def said(self, action: Action, finish: Finish | None) -> Message:
        if finish is None or finish.message is None:
            return action.message()
        return with_calls(finish.message, action.attempts)
