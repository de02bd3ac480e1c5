"""What can follow a sampled turn, as far as chat templates tell cases apart."""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Literal, TypeAlias

from attrs import frozen

from agentkit.protocols.messages import Message

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Roles: TypeAlias = "tuple[Role, ...]"

STANDARD_KINDS: tuple[Roles, ...] = (("tool",), ("tool", "tool"), ("user",), ("tool", "user"))


class Mode(StrEnum):
    """What the generation prompt says of reasoning."""

    FREE = "free"
    """Nothing: the policy opens a thought, or does not."""
    OPEN = "open"
    """It opens a thought, so every turn reasons."""
    CLOSED = "closed"
    """It holds an empty thought, so no turn does."""


class Reasoning(StrEnum):
    """What a turn holds of reasoning."""

    NONE = "no reasoning"
    EMPTY = "an empty thought"
    SOME = "reasoning"


@frozen
class Situation:
    """`roles` follow a turn (more than two of one in a row are as two).

    `talks` says that it spoke beside calls, `unanswered` that it made a call whose result is not among what follows.
    """

    roles: Roles
    reasoning: Reasoning = Reasoning.NONE
    talks: bool = False
    tools: bool = False
    unanswered: bool = False

    @property
    def said(self) -> str:
        """The situation in words."""
        new = " and ".join(f"a {role} message" for role in self.roles) or "nothing new"
        beside = ", text beside the calls" if self.talks else ""
        beside += ", a call left unanswered" if self.unanswered else ""
        if self.reasoning is Reasoning.NONE:
            return f"{new} to a turn without reasoning{beside}"
        held = "reasoning" if self.reasoning is Reasoning.SOME else "an empty thought"
        return f"{new} where turns may hold {held}{beside}"

    @staticmethod
    def of(
        action: Message, new: Sequence[Message], *, mode: Mode, reasons: bool, tools: bool
    ) -> "tuple[Situation, ...]":
        """What must be certified before `new` may follow `action`: also that earlier turns may have reasoned."""
        roles = kind_of(new)
        answered = {message.tool_call_id for message in new if message.role == "tool"}
        unanswered = None not in answered and any(call.id not in answered for call in action.tool_calls)
        talks = (unanswered or "tool" in roles) and bool(action.content.strip())
        actual = Reasoning.NONE if action.reasoning is None else Reasoning.SOME if action.reasoning else Reasoning.EMPTY
        if mode is Mode.OPEN:
            found = {Reasoning.SOME, Reasoning.EMPTY} if actual is Reasoning.EMPTY else {Reasoning.SOME}
        elif mode is Mode.CLOSED or not reasons:
            found = {actual}
        else:
            found = {actual, Reasoning.SOME}
        return tuple(Situation(roles, reasoning, talks, tools, unanswered) for reasoning in sorted(found))


def standard(mode: Mode, *, reasons: bool) -> Iterator[Situation]:
    """The situations of a conversation that goes as most do."""
    held: Iterable[Reasoning] = (Reasoning.NONE, Reasoning.SOME) if reasons else (Reasoning.NONE,)
    if mode is Mode.OPEN:
        held = (Reasoning.SOME,)
    elif mode is Mode.CLOSED:
        held = (Reasoning.NONE,)
    for tools in (False, True):
        for reasoning in held:
            for roles in STANDARD_KINDS:
                for talks in (False, True) if "tool" in roles else (False,):
                    yield Situation(roles, reasoning, talks, tools)


def kind_of(new: Sequence[Message]) -> Roles:
    """The roles of `new`; more than two of one role in a row are as two."""
    roles: list[Role] = []
    for message in new:
        if len(roles) < 2 or not roles[-1] == roles[-2] == message.role:
            roles.append(message.role)
    return tuple(roles)
