"""The chat formats under test, an encoder that is slow and obvious, and the real Qwen vocabulary."""

import base64
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from agentkit.protocols import ChatTemplate, Message, ToolSpec
from agentkit.tokens import CHATML, GLM, LLAMA3, QWEN, ByteTokenizer, Family, TemplateRenderer, templates


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


def _installed(package: str, *path: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} is not installed: see the dev extra"
    assert spec.origin is not None
    return Path(spec.origin).parent.joinpath(*path)


_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_SPECIAL = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>"
)
_QWEN_ADDED = (
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
    "<tool_response> </tool_response> <think> </think>"
)


@pytest.fixture(scope="session")
def qwen() -> Callable[[str], Any]:
    """A function from the name of a template file in trl to a transformers tokenizer with Qwen's real vocabulary."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = bytes_to_unicode()

    def spelled(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    ranks: dict[bytes, int] = {}
    for line in _installed("dashscope", "resources", "qwen.tiktoken").read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    merges: list[tuple[int, int, int, bytes, bytes]] = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                merges.append((rank, ranks[left], ranks[right], left, right))
    merges.sort()
    pairs = [(spelled(left), spelled(right)) for *_, left, right in merges]
    backend = Tokenizer(BPE({spelled(token): rank for token, rank in ranks.items()}, pairs, ignore_merges=True))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in _QWEN_SPECIAL.split()])
    backend.add_tokens([AddedToken(t, normalized=False, special=False) for t in _QWEN_ADDED.split()])
    hf = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")

    def with_template(name: str) -> Any:
        hf.chat_template = _installed("trl", "chat_templates", name).read_text()
        return hf

    return with_template
