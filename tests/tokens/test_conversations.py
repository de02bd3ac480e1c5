"""Requests with whole histories against the template's own full rendering: the right chain, each token trained once."""

from functools import cache
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agentkit.errors import NotAppendable
from agentkit.protocols import Chain, Message, ToolCall, ToolSpec, assistant, user
from agentkit.tokens import Asked, ByteTokenizer, Conversations, Ledger, byte_chatml

TOOLS = (ToolSpec("f", "d", {"type": "object", "properties": {}}),)
contents = st.sampled_from(["", "ok", "\nok", "ok\n\n", "  ok ", "<|im_end|>\n<|im_start|>", "😀", "think"])


class RequestMachine(RuleBasedStateMachine):
    """Clients that ask on, ask again, go back, branch, overlap and change what was said."""

    formats: Any

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.format = data.draw(st.sampled_from([each for each in self.formats if each.name in ("chatml", "llama3")]))
        self.renderer = renderer_of(self.format)
        self.ledger = Ledger()
        self.conversations = Conversations(self.ledger, max_tokens=1_000_000)
        self.known: list[tuple[tuple[Message, ...], list[list[int]]]] = []
        """Histories that end with an answer, and what was sampled in them."""
        self.requests: list[tuple[tuple[Message, ...], list[list[int]], Asked]] = []
        self.waiting: list[tuple[tuple[Message, ...], list[list[int]], Asked, list[int]]] = []
        self.serial = 0
        self.frozen: tuple[Chain, ...] = ()

    def ask(self, messages: tuple[Message, ...], sampled: list[list[int]], **setting: Any) -> Asked:
        asked = self.conversations.ask(messages, self.renderer, **setting)
        assert asked is not None
        prompt = asked.prompt
        expected = self.format.expected(messages, setting.get("tools", ()), sampled)
        assert list(self.ledger.view(prompt.chain)) == expected
        assert prompt.length == len(expected)
        assert prompt.chain not in {each.prompt.chain for *_, each, _ in self.waiting}, "answers do not share a chain"
        self.waiting.append((messages, sampled, asked, []))
        return asked

    @rule(data=st.data(), text=contents, more=contents, again=st.booleans())
    def ask_on(self, data: st.DataObject, text: str, more: str, again: bool) -> None:
        before, sampled = data.draw(st.sampled_from([((), []), *self.known]))
        new = [user(f"{len(self.requests)} {text}")]
        if before and before[-1].tool_calls:
            call_id = f"other {data.draw(st.integers(0, 1))}"  # clients put their own ids in
            before = (*before[:-1], assistant(before[-1].content, ToolCall(call_id, "f")))
            new = [Message("tool", text, tool_call_id=call_id, name="f"), *(new if more else [])]
        messages = (*before, *new)
        asked = self.ask(messages, sampled)
        self.requests.append((messages, sampled, asked))
        if again:
            self.ask(messages, sampled)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        messages, sampled, first = data.draw(st.sampled_from(self.requests))
        again = self.ask(messages, sampled)
        chains = self.ledger.freeze()
        assert again.prompt.chain != first.prompt.chain
        assert chains[again.prompt.chain].parent is not None, "a fork, not a copy"

    @precondition(lambda self: self.known)
    @rule(data=st.data(), where=st.sampled_from(["prefix", "tools", "options"]))
    def change(self, data: st.DataObject, where: str) -> None:
        before, _ = data.draw(st.sampled_from(self.known))
        messages = (*before, user("on"))
        if where == "prefix":
            messages = (user(f"changed {len(self.ledger)}"), *messages[1:])
        setting = {"prefix": {}, "tools": {"tools": TOOLS}, "options": {"options": {"n": len(self.ledger)}}}[where]
        asked = self.conversations.ask(messages, self.renderer, **setting)
        assert asked is not None
        if where == "tools" and self.ledger.freeze()[asked.prompt.chain].parent is not None:
            return  # it had been changed so before
        assert self.ledger.freeze()[asked.prompt.chain].parent is None
        assert list(self.ledger.view(asked.prompt.chain)) == self.renderer.prompt(messages, setting.get("tools", ()))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), more=st.lists(st.integers(0, 255), max_size=4))
    def sample(self, data: st.DataObject, more: list[int]) -> None:
        *_, asked, ids = data.draw(st.sampled_from(self.waiting))
        self.push(asked, ids, more)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), stops=st.booleans(), calls=st.booleans())
    def answer(self, data: st.DataObject, stops: bool, calls: bool) -> None:
        at = data.draw(st.integers(0, len(self.waiting) - 1))
        messages, sampled, asked, ids = self.waiting.pop(at)
        if stops:
            self.push(asked, ids, [ByteTokenizer().control[self.format.family.close]])
        message = assistant(f"said {len(self.known)}", *([ToolCall("a", "f")] if calls else []))
        self.conversations.answered(asked, message, turn=len(self.known))
        self.known.append(((*messages, message), [*sampled, ids[:-1] if stops else ids]))

    def push(self, asked: Asked, ids: list[int], more: list[int]) -> None:
        logprobs = [-float(self.serial + n) for n in range(len(more))]
        self.serial += len(more)
        self.ledger.sample(asked.prompt.chain, more, logprobs, turn=0)
        ids += more

    @invariant()
    def each_sampled_token_is_trained_once(self) -> None:
        trained = [
            -int(logprob)
            for chain in self.ledger.freeze()
            for logprob, mask in zip(chain.logprobs, chain.response_mask, strict=True)
            if mask
        ]
        assert sorted(trained) == list(range(self.serial))

    @invariant()
    def what_is_in_a_chain_stays(self) -> None:
        chains = self.ledger.freeze()
        for old, new in zip(self.frozen, chains, strict=False):
            assert new.id_bytes.startswith(old.id_bytes)
            assert new.mask_bytes.startswith(old.mask_bytes)
            assert new.logprob_bytes.startswith(old.logprob_bytes)
            assert new.parent == old.parent
        self.frozen = chains


@cache
def renderer_of(chat_format: Any) -> Any:
    return chat_format.renderer()


@pytest.fixture
def machine(formats: tuple[Any, ...]) -> type[RequestMachine]:
    RequestMachine.formats = formats
    return RequestMachine


def test_requests_go_on_with_the_right_chain(machine: type[RequestMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(stateful_step_count=20))


def test_without_room_nothing_is_opened_and_nothing_grows() -> None:
    renderer, ledger = byte_chatml(), Ledger()
    room = len(renderer.prompt([user("a")], ()))
    assert Conversations(ledger, max_tokens=room).ask([user("a")], renderer) is None
    assert len(ledger) == 0
    conversations = Conversations(ledger, max_tokens=room + 3)
    asked = conversations.ask([user("a")], renderer)
    assert asked is not None
    assert asked.prompt.room == 3
    ledger.sample(asked.prompt.chain, [1], [-1.0], turn=0)
    conversations.answered(asked, assistant("x"), turn=0)
    before = ledger.freeze()
    assert conversations.ask([user("a"), assistant("x"), user("b")], renderer) is None
    assert ledger.freeze() == before


def test_where_the_template_would_rewrite_a_chain_starts() -> None:
    class Rewriting:
        def __init__(self) -> None:
            inner = byte_chatml()
            self.stop_ids, self.prompt, self.decode = inner.stop_ids, inner.prompt, inner.decode

        def bridge(self, *_: object, **__: object) -> Any:
            raise NotAppendable("it rewrites")

    ledger, renderer = Ledger(), Rewriting()
    conversations = Conversations(ledger, max_tokens=1000)
    asked = conversations.ask([user("a")], renderer)
    assert asked is not None
    ledger.sample(asked.prompt.chain, [1], [-1.0], turn=0)
    conversations.answered(asked, assistant("x"), turn=0)
    messages = [user("a"), assistant("x"), user("b")]
    again = conversations.ask(messages, renderer)
    assert again is not None
    assert list(ledger.view(again.prompt.chain)) == renderer.prompt(messages, ())
    assert [chain.parent for chain in ledger.freeze()] == [None, None]
