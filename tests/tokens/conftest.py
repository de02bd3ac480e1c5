"""The chat formats under test, an encoder that is slow and obvious, and the real Qwen vocabulary."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from attrs import frozen

from agentkit.protocols import ChatTemplate, Message, ToolSpec
from agentkit.tokens import CHATML, GLM, LLAMA3, QWEN, ByteTokenizer, Family, TemplateRenderer, templates
from tests.vocabularies import load
from tests.vocabularies.sources import located


class TokenizerSpy:
    """A tokenizer that counts the characters it is given to encode."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.encoded_chars = 0

    @property
    def control(self) -> Mapping[str, int]:
        return self.inner.control

    def encode(self, text: str) -> Sequence[int]:
        self.encoded_chars += len(text)
        return self.inner.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self.inner.decode(ids)


@frozen
class Format:
    """One chat format, and the ids a conversation in it must have, worked out without our renderer."""

    name: str
    template: ChatTemplate
    family: Family
    strips: bool = False

    def renderer(self) -> TemplateRenderer:
        return TemplateRenderer(ByteTokenizer(), self.template, self.family)

    def expected(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampled: Sequence[Sequence[int]]
    ) -> list[int]:
        """The ids of the template's full rendering, `sampled[k]` in place of what the k-th assistant message says.

        Contents are rendered as markers and put back after the control tokens have been told apart, so that a content
        cannot be taken for one; every stretch between control tokens is encoded whole.
        """
        tokenizer = ByteTokenizer()
        said = {f"@@{i}@@": m.content.strip() if self.strips else m.content for i, m in enumerate(messages)}
        marked = [
            Message(m.role, marker, tool_call_id=m.tool_call_id, name=m.name)
            for m, marker in zip(messages, said, strict=True)
        ]
        turns = [marker for m, marker in zip(messages, said, strict=True) if m.role == "assistant"]
        text = self.template(marked, tools, generation_prompt=True)
        ids: list[int] = []
        for k, piece in enumerate(re.split("|".join(map(re.escape, turns)), text) if turns else [text]):
            ids += encode_marked(tokenizer, piece, said)
            ids += sampled[k] if k < len(turns) else []
        return ids


def encode_marked(tokenizer: Any, text: str, said: Mapping[str, str]) -> list[int]:
    """The ids of text in which untrusted stretches stand as markers."""
    controls = "|".join(re.escape(t) for t in sorted(tokenizer.control, key=len, reverse=True))
    ids: list[int] = []
    for stretch in re.split(f"({controls})", text):
        if stretch in tokenizer.control:
            ids.append(tokenizer.control[stretch])
        else:
            ids += tokenizer.encode(re.sub("@@[0-9]+@@", lambda found: said[found.group()], stretch))
    return ids


FORMATS = (
    Format("chatml", templates.chatml, CHATML),
    Format("qwen3", templates.qwen3, Family(name="qwen3", stops=QWEN.stops, close=QWEN.close, reasons=False)),
    Format("llama3", templates.llama3, LLAMA3, strips=True),
    Format("glm", templates.glm, GLM),
)


@pytest.fixture(scope="session")
def formats() -> tuple[Format, ...]:
    return FORMATS


@pytest.fixture(params=FORMATS, ids=lambda each: each.name)
def chat_format(request: pytest.FixtureRequest) -> Format:
    return request.param


@pytest.fixture
def spy() -> TokenizerSpy:
    return TokenizerSpy(ByteTokenizer())


@pytest.fixture(scope="session")
def qwen() -> Callable[[str], Any]:
    """A function from the name of a template file in trl to a transformers tokenizer with Qwen's real vocabulary."""

    def with_template(name: str) -> Any:
        hf = load("qwen3")
        hf.chat_template = located(f"trl/{name}").read_text()
        return hf

    return with_template
