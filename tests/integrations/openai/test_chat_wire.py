"""What a chat server gets to read: the same JSON as if everything were encoded anew, at the cost of what is new."""

import json
import tracemalloc
from collections.abc import Sequence
from types import MappingProxyType

import pytest
from agentkit_openai.chat_wire import ChatWire, encode
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentkit import ModelError
from agentkit.protocols import Message, ToolCall, ToolSpec, assistant, system, user
from agentkit.testing.strategies import messages

TOOL = ToolSpec("calc", "Evaluates.", {"type": "object", "properties": {"e": {"type": "string"}}})


def mended(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def oracle(said: Sequence[Message], reasoning_field: str | None = None) -> list[dict]:
    """Everything, encoded anew by the obvious route."""
    opening = 0
    while opening < len(said) and said[opening].role not in ("assistant", "tool"):
        opening += 1
    head = list(said[:opening])
    ordered = [m for m in head if m.role == "system"] + [m for m in head if m.role != "system"] + list(said[opening:])
    wire = []
    for message in ordered:
        one: dict = {"role": message.role, "content": message.content}
        if message.tool_calls:
            one["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": json.dumps(
                            call.arguments, allow_nan=False, ensure_ascii=False, separators=(",", ":")
                        ),
                    },
                }
                for call in message.tool_calls
            ]
        if message.role == "tool":
            one |= {key: value for key in ("tool_call_id", "name") if (value := getattr(message, key)) is not None}
        if reasoning_field and message.reasoning:
            one[reasoning_field] = message.reasoning
        wire.append(one)
    return json.loads(mended(json.dumps(wire, ensure_ascii=False, allow_nan=False)))


def on_the_wire(wire: ChatWire, said: Sequence[Message], request_id: str = "r", tools=()) -> list[dict]:
    pieces, _ = wire.pieces(request_id, said, tools)
    return json.loads(b"[" + b"".join(pieces) + b"]")


def can_be_sent(said: Sequence[Message]) -> bool:
    try:
        oracle(said)
    except ValueError:  # an infinite number
        return False
    return True


sendable = messages().filter(lambda message: can_be_sent([message]))


@given(st.lists(sendable, max_size=6), st.none() | st.just("reasoning_content"))
def test_any_history_is_what_a_full_encoding_gives(said, reasoning_field) -> None:
    assert on_the_wire(ChatWire(reasoning_field=reasoning_field), said) == oracle(said, reasoning_field)


class Histories(RuleBasedStateMachine):
    """Several trajectories that grow, are rewritten and forked, before a cache that holds next to nothing."""

    @initialize(cache_bytes=st.sampled_from([0, 200, 2000, 1 << 20]))
    def start(self, cache_bytes) -> None:
        self.limit = cache_bytes
        self.wire = ChatWire(cache_bytes=cache_bytes)
        self.said: dict[str, list[Message]] = {name: [] for name in "abc"}

    @rule(name=st.sampled_from("abc"), new=st.lists(sendable, max_size=3))
    def grow(self, name, new) -> None:
        self.said[name].extend(new)
        assert on_the_wire(self.wire, self.said[name], name) == oracle(self.said[name])

    @rule(name=st.sampled_from("abc"), data=st.data())
    def rewrite(self, name, data) -> None:
        kept = data.draw(st.integers(0, len(self.said[name])))
        self.said[name] = self.said[name][:kept] + data.draw(st.lists(sendable, max_size=2))
        assert on_the_wire(self.wire, self.said[name], name) == oracle(self.said[name])

    @rule(old=st.sampled_from("abc"), new=st.sampled_from("abc"))
    def fork(self, old, new) -> None:
        self.said[new] = list(self.said[old])
        assert on_the_wire(self.wire, self.said[new], new) == oracle(self.said[new])

    @invariant()
    def is_bounded(self) -> None:
        if hasattr(self, "wire"):
            assert 0 <= self.wire.held_bytes <= self.limit


TestHistories = Histories.TestCase
TestHistories.settings = settings(stateful_step_count=15)


def test_a_turn_encodes_what_is_new_and_nothing_else() -> None:
    wire = ChatWire()
    said: list[Message] = [system("s" * 10_000), user("Go.")]
    tools = (TOOL,)
    wire.pieces("r", said, tools)
    first = wire.encoded_bytes
    assert first > 10_000
    costs = []
    for turn in range(50):
        said += [assistant("", ToolCall(str(turn), "calc", {"e": "1"})), Message("tool", "2", tool_call_id=str(turn))]
        before = wire.encoded_bytes
        wire.pieces("r", said, tools)
        costs.append(wire.encoded_bytes - before)
    assert max(costs) < 250
    assert first + sum(costs) == wire.encoded_bytes < wire.held_bytes < 3 * wire.encoded_bytes + 150 * len(said)


def test_a_change_costs_what_follows_it() -> None:
    wire = ChatWire()
    said = [user("a" * 1000), user("b" * 1000), user("c" * 1000)]
    wire.pieces("r", said, ())
    before = wire.encoded_bytes
    assert on_the_wire(wire, [*said[:2], user("d")]) == oracle([*said[:2], user("d")])
    assert wire.encoded_bytes - before < 100


def test_what_was_handed_out_does_not_change_when_the_history_does() -> None:
    wire = ChatWire()
    said = [user("a"), user("b")]
    pieces, _ = wire.pieces("r", said, ())
    kept = list(pieces)
    wire.pieces("r", [user("x")], ())
    assert pieces == kept


def test_tools_are_encoded_once_for_all_rollouts_that_share_them() -> None:
    wire = ChatWire()
    encoded = {wire.pieces(str(rollout), (), (TOOL,))[1] for rollout in range(10)}  # a tuple for each rollout
    (tools,) = encoded
    assert wire.encoded_bytes == len(tools)
    assert json.loads(tools) == [
        {
            "type": "function",
            "function": {"name": "calc", "description": "Evaluates.", "parameters": dict(TOOL.parameters)},
        }
    ]
    assert wire.pieces("r", (), ())[1] == b""
    others = [ToolSpec(str(at), "", {}) for at in range(200)]
    for tool in others:
        assert json.loads(wire.pieces("r", (), (tool,))[1])[0]["function"]["name"] == tool.name


def test_reasoning_is_sent_only_where_a_field_is_named() -> None:
    said = [user("a"), Message("assistant", "b", reasoning="because")]
    assert "because" not in str(on_the_wire(ChatWire(), said))
    assert on_the_wire(ChatWire(reasoning_field="reasoning"), said)[1]["reasoning"] == "because"


def test_an_opening_begins_with_what_the_system_says() -> None:
    said = [user("a"), system("b"), assistant("c"), system("d")]
    assert [each["content"] for each in on_the_wire(ChatWire(), said)] == ["b", "a", "c", "d"]


def test_arguments_of_any_mapping_are_a_text_and_bytes_are_refused() -> None:
    frozen = MappingProxyType({"a": MappingProxyType({"b": (1, 2)})})
    (_, one) = on_the_wire(ChatWire(), [user("x"), assistant("", ToolCall("i", "f", frozen))])
    assert one["tool_calls"][0]["function"]["arguments"] == '{"a":{"b":[1,2]}}'
    for wrong in (b"raw", float("inf"), {1, 2}):
        with pytest.raises(ModelError, match=r"messages\[1\] of role 'assistant' cannot be sent as JSON"):
            ChatWire().pieces("r", [user("x"), assistant("", ToolCall("i", "f", {"a": wrong}))], ())
    with pytest.raises(ModelError, match="params cannot be sent as JSON"):
        encode({"a": b"raw"}, what="params")


def test_a_message_that_cannot_be_sent_leaves_the_cache_right() -> None:
    wire = ChatWire()
    bad = assistant("", ToolCall("i", "f", {"a": float("nan")}))
    for said in ([user("x"), bad], [user("x"), user("y")], [user("x"), user("y"), bad]):
        if bad in said:
            with pytest.raises(ModelError):
                wire.pieces("r", said, ())
        else:
            assert on_the_wire(wire, said) == oracle(said)
    assert on_the_wire(wire, [user("z")]) == oracle([user("z")])
    afresh = ChatWire()
    afresh.pieces("r", [user("z")], ())
    assert wire.held_bytes == afresh.held_bytes


def test_what_is_kept_takes_no_more_memory_than_it_counts() -> None:
    """Many short trajectories are mostly objects."""
    wire = ChatWire(cache_bytes=1 << 30)
    tracemalloc.start()
    try:
        for n in range(2000):
            wire.pieces(f"task-{n}#0", [user(f"hello {n} {turn}") for turn in range(4)], ())
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 1.2 * wire.held_bytes
