"""How a rollout talks to its policy: in tokens, or in messages. One interface, so that the same loop runs on both."""

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from operator import is_
from typing import Any, Protocol, TypeAlias, cast

from agentkit.actors._generation import TextGeneration, TokenGeneration, attempts_of, with_calls
from agentkit.actors._record import OpenTurn, Prefix, Record
from agentkit.actors._waiting import Waiting
from agentkit.actors.agent import Agent
from agentkit.errors import ConfigError, NotAppendable
from agentkit.protocols import (
    Action,
    CallFault,
    Dated,
    FaultStatus,
    Finish,
    FinishReason,
    HoldsOneCall,
    Message,
    MessageModel,
    MessageRequest,
    Placed,
    Renderer,
    TokenModel,
    TokenRequest,
    ToolCall,
    ToolParser,
    ToolSpec,
    call_id,
    with_id,
)
from agentkit.tokens import Branches, Prompt, Spoken

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

    @property
    def place(self) -> object:
        """Where the history ends, to go back to."""
        ...

    def go(self, place: object) -> None:
        """The history is again what it was when `place` was asked for, what was said since the last turn apart."""
        ...

    def rewrite(self, messages: Sequence[Message]) -> int:
        """`messages` replace the history, which still stands: how many of them the policy has before it already."""
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

    def ask(self, deadline: float, waiting: Waiting) -> Ask:
        """A fresh try; time in which the model waits for its trainer is spent within `waiting`."""
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
        renderer = agent.renderer
        # What the template writes of the date stays the same for a whole trajectory. Asked of the class: a wrapper that
        # hands everything else on must not be replaced by what it wraps.
        if hasattr(type(renderer), "dated") and isinstance(renderer, Dated):
            renderer = renderer.dated(datetime.now())
        return TokenPolicy(agent, model, renderer, agent.parser, record, tools, request_id)
    return MessagePolicy(agent, model, record, tools, request_id)


def _nothing_new() -> ConfigError:
    return ConfigError(
        "rollout.sample was called with nothing new to answer: act on the last action or observe a message first"
    )


def _nothing_said() -> ConfigError:
    return ConfigError("there is nothing to answer: the task has no messages, and no env made any")


def _reason(finish: Finish | None) -> FinishReason:
    return FinishReason.ABORTED if finish is None else finish.reason


def _one_at_a_time(made: Sequence[ToolCall | CallFault]) -> CallFault:
    """What stands for several calls where the chat template can hold one and its result."""
    reason = f"one call at a time: this turn made {len(made)}, and none was run; make them one after another"
    return CallFault(FaultStatus.MALFORMED, reason, name=made[0].name)


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
        self.holds_one_call = isinstance(renderer, HoldsOneCall) and renderer.holds_one_call
        self.sent = 0
        """How many ids of the chain the model has seen or sampled."""
        self.media: tuple[Placed, ...] = ()
        """What the prompt shows."""
        self._branches = Branches(record.ledger, renderer, max_tokens=record.budget.max_tokens)
        self._node = _Node()
        self._chain = -1
        self._prompt: Prompt | None = None

    def render(self, pending: Sequence[Message]) -> int:
        """Append the bridge to the chain, or open one. Where there is no room for it, the chain stays as it is."""
        node, history = self._node, self.record.history
        new = history if node.spoken is None else pending
        if not history:
            raise _nothing_said()
        if not new and not node.may_open:
            raise _nothing_new()
        before = node.prompt_for(new)
        self._prompt = prompt = self._continue(node, new) if before is None else self._branches.again(before)
        if prompt is None:
            return 0
        if before is None:
            node.prompts.append((tuple(new), prompt))
        if prompt.chain != self._chain:
            self._chain, self.sent = prompt.chain, 0
        self.media = self._branches.media(prompt)
        if self.media and not getattr(self.model, "takes_media", False):
            raise ConfigError(
                f"{type(self.model).__name__} takes no media, the conversation shows {self.media[0].medium!r}: use a "
                "model whose takes_media is true, or a chat model"
            )
        return prompt.room

    def _continue(self, node: "_Node", new: Sequence[Message]) -> Prompt | None:
        if node.spoken is not None and new:
            try:
                return self._branches.extend(node.spoken, new, self.tools)
            except NotAppendable:
                if self.agent.on_rewrite == "error" and not node.may_open:
                    raise
        return self._branches.open(self.record.history, self.tools)

    @property
    def place(self) -> object:
        """The last turn."""
        return self._node

    def go(self, place: object) -> None:
        """Chains are grown from that turn, or forked where they went on."""
        self._node = cast("_Node", place)

    def rewrite(self, messages: Sequence[Message]) -> int:
        """The last turn up to which `messages` are the history, if the template lets the rest follow it."""
        pairs = zip(self.record.history, messages, strict=False)
        same = next((at for at, (old, new) in enumerate(pairs) if old != new), len(messages))
        same = min(same, len(self.record.history))
        node = self._node
        while node.parent is not None and node.place >= same:
            node = node.parent
        kept = node.place + 1
        if any(message.role == "assistant" for message in messages[kept:]):  # no bridge leads over what nobody sampled
            node, kept = _Node(), 0
        self._node = _Node(node.parent, node.place, node.spoken, may_open=True)
        return kept

    def begin(self, turn: OpenTurn, room: int) -> "Generation":
        """Sampled tokens go to the chain's end."""
        if self._prompt is None:
            raise _nothing_new()
        turn.chain = self._prompt.chain
        turn.start = turn.stop = self._prompt.length
        return _SampledTokens(self, turn, turn.chain, room)

    def spoke(self, turn: OpenTurn, message: Message) -> None:
        """A turn was sampled; the history is about to get `message`."""
        spoken = Spoken(turn.chain, turn.start, turn.stop, turn.index, message)
        self._node = _Node(self._node, len(self.record.history), spoken)


class _Node:
    """A sampled turn in the tree of them, its place in the history, and the prompts that followed it."""

    __slots__ = ("may_open", "parent", "place", "prompts", "spoken")

    def __init__(
        self,
        parent: "_Node | None" = None,
        place: int = -1,
        spoken: Spoken | None = None,
        *,
        may_open: bool = False,
    ) -> None:
        self.parent = parent
        self.place = place
        self.spoken = spoken
        self.may_open = may_open
        """The history was rewritten here: where the template does not let it follow the turn, it opens a chain."""
        self.prompts: list[tuple[tuple[Message, ...], Prompt]] = []

    def prompt_for(self, new: Sequence[Message]) -> Prompt | None:
        """The prompt that the very same messages led to before."""
        for said, prompt in self.prompts:
            if len(said) == len(new) and all(map(is_, said, new)):
                return prompt
        return None


class _SampledTokens(TokenGeneration):
    __slots__ = ("_chain_number", "_open_turn", "_policy", "_room_asked")

    def __init__(self, policy: TokenPolicy, turn: OpenTurn, chain: int, room: int) -> None:
        super().__init__(policy.record, chain=chain, turn=turn.index, room=room)
        self._policy = policy
        self._open_turn = turn
        self._chain_number = chain
        self._room_asked = room

    def ask(self, deadline: float, waiting: Waiting) -> Ask:
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
            policy.media,
            lambda: waiting,
        )
        emit = self.begin_try()
        return lambda: policy.model.sample_tokens(request, emit)

    def read(self, finish: Finish | None) -> Action:
        policy, turn, reason = self._policy, self._open_turn, _reason(finish)
        turn.stop = policy.sent = self.stop
        text, heard = self.read_text(policy.renderer, finish)
        if finish is None:  # cut short: nothing in it may run, so nothing is parsed
            return Action(text, text, finish=reason)
        session = policy.parser.begin(policy.tools)
        session.feed(heard)
        parsed = session.finish(reason)
        made = parsed.attempts
        if len(made) > 1 and policy.holds_one_call:
            made = (_one_at_a_time(made),)
        attempts = tuple(with_id(attempt, call_id(turn.index, n)) for n, attempt in enumerate(made))
        return Action(text, parsed.content, parsed.reasoning, attempts, reason)

    def said(self, action: Action, finish: Finish | None) -> Message:
        message = action.message()
        self._policy.spoke(self._open_turn, message)
        return message


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
        if self.record.tip >= 0 and not pending:
            raise _nothing_new()
        if not self.record.history:
            raise _nothing_said()
        return self.record.budget.max_tokens

    @property
    def place(self) -> object:
        """Nothing is kept beside the history."""
        return None

    def go(self, place: object) -> None:
        """Nothing is kept beside the history."""

    def rewrite(self, messages: Sequence[Message]) -> int:
        """All are sent anew."""
        return 0

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

    def ask(self, deadline: float, waiting: Waiting) -> Ask:
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
