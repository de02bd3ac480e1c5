"""Whether a chat template lets a chain grow, found out by asking the template itself.

For each kind of continuation (which roles follow a sampled turn, with or without reasoning, with or without tools) the
template's own full render before and after is compared: everything up to the generation must stand unchanged, the
sampled turn must still say what it said, and what follows must be what the bridge would append. The first difference
is kept as text; no difference means append-only.
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from attrs import field, frozen

from agentkit.protocols.messages import Message, ToolCall, ToolSpec

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Roles: TypeAlias = "tuple[Role, ...]"
Render: TypeAlias = "Callable[[Sequence[Message], Sequence[ToolSpec], bool], str]"

STANDARD_KINDS: tuple[Roles, ...] = (("tool",), ("tool", "tool"), ("user",), ("tool", "user"))

_REASONING, _CONTENT = "probe reasoning", "probe content"
_TOOLS = (
    ToolSpec("probe_a", "A probe.", {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}),
)


def kind_of(new: Sequence[Message]) -> Roles:
    """The roles of `new`; more than two of one role in a row are as two."""
    roles: list[Role] = []
    for message in new:
        if len(roles) < 2 or not roles[-1] == roles[-2] == message.role:
            roles.append(message.role)
    return tuple(roles)


def describe(kind: Roles) -> str:
    """`kind` in words."""
    return " and ".join(f"a {role} message" for role in kind) or "nothing new"


@frozen
class Certifier:
    """Asks one template.

    `render` is the template; `cut` says where, in a rendering that starts with a prompt, the turn after the prompt
    ends; `tail` is the text a bridge appends; `opens_with` are the roles a conversation may open with.
    """

    render: Render
    cut: Callable[[str, str], int]
    tail: Callable[[Message, Sequence[Message], Sequence[ToolSpec]], str]
    opens_with: Roles
    _found: dict[tuple[Roles, bool], str | None] = field(factory=dict)

    def difference(self, kind: Roles, *, reasoned: bool) -> str | None:
        """What the template changes when `kind` follows a turn, or None. Worked out once."""
        key = (kind, reasoned)
        if key not in self._found:
            self._found[key] = self._ask(kind, reasoned)
        return self._found[key]

    def _ask(self, kind: Roles, reasoned: bool) -> str | None:
        for tools in ((), _TOOLS):
            for earlier in (False, True):
                try:
                    difference = self._compare(kind, reasoned, tools, earlier)
                except Exception as error:  # the template is the user's code, and refuses in its own words
                    difference = f"the template refuses: {type(error).__name__}: {error}"
                if difference is not None:
                    return difference
        return None

    def _compare(self, kind: Roles, reasoned: bool, tools: Sequence[ToolSpec], earlier: bool) -> str | None:
        history = [_message(role, 7) for role in self.opens_with]
        if earlier:
            history += [_turn(reasoned, 1), *_continuation(("tool",))]
        action, new = _turn(reasoned, kind.count("tool")), _continuation(kind)
        before = self.render(history, tools, True)
        after = self.render([*history, action, *new], tools, True)
        if not after.startswith(before):
            return _first_difference(before, after)
        cut = self.cut(after, before)
        alone = self.render([*history, action], tools, False)[len(before) :]
        body = after[len(before) : cut]
        if any(said in alone and said not in body for said in (_REASONING, _CONTENT)):
            return _first_difference(alone, body)
        tail = self.tail(action, new, tools)
        return None if after[cut:] == tail else _first_difference(tail, after[cut:])


def _turn(reasoned: bool, calls: int) -> Message:
    return Message(
        "assistant",
        _CONTENT,
        tuple(ToolCall(f"probe000{i}", "probe_a", {"x": "1"}) for i in range(calls)),
        reasoning=_REASONING if reasoned else None,
    )


def _continuation(kind: Roles) -> list[Message]:
    return [_message(role, i) for i, role in enumerate(kind)]


def _message(role: Role, i: int) -> Message:
    if role == "tool":
        return Message("tool", f"probe result {i}", tool_call_id=f"probe000{i}", name="probe_a")
    return Message(role, f"probe {role} {i}")


def _first_difference(expected: str, found: str) -> str:
    pairs = enumerate(zip(expected, found, strict=False))
    at = next((i for i, (one, other) in pairs if one != other), min(len(expected), len(found)))
    return f"where {expected[at : at + 40]!r} stood, the template now writes {found[at : at + 40]!r}"
