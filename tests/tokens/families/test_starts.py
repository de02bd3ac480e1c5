"""Tokenizers that give a dummy space to the start of a text alone, as newer conversions of SentencePiece models do."""

import json
from functools import cache
from typing import Any

import pytest
from agentkit_hf import hf_renderer

from agentkit.protocols import assistant, user
from agentkit.tokens import HFTokenizer, SafeEncoder
from tests.vocabularies import load

TEXTS = ("hi", " hi", "\nhi", "  x", "", "hi[INST]hi", "[INST]hi[/INST]", "[INST] hi[/INST]", "é[/INST]\n\n", "▁hi")


@cache
def tokenizer() -> Any:
    """The vocabulary of Mistral 7B v0.3, its space before the start of a text and not before each stretch."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    whole = load("mistral-nemo-spm")
    frame = json.loads(whole.backend_tokenizer.to_str())
    frame["normalizer"] = None
    frame["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    fast: Any = PreTrainedTokenizerFast
    hf = fast(
        tokenizer_object=Tokenizer.from_str(json.dumps(frame)), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    hf.chat_template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}</s>"
        "{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}"
    )
    return hf


@pytest.mark.parametrize("text", TEXTS)
def test_only_the_start_of_a_text_gets_the_dummy_space(text: str) -> None:
    hf = tokenizer()
    start, behind = (hf.encode(each, add_special_tokens=False) for each in ("hi", "[INST]hi"))
    assert start != behind[1:], "else this tells nothing"
    assert SafeEncoder(HFTokenizer(hf)).encode(text) == hf.encode(text, add_special_tokens=False)


def test_a_bridge_goes_on_without_it() -> None:
    hf = tokenizer()
    renderer = hf_renderer(hf)
    sampled = [*hf.encode("[/INST]ok", add_special_tokens=False)[1:], 2]
    close, rest = renderer.bridge(assistant("ok"), [user("next")], (), sampled=sampled)
    wire = [{"role": role, "content": text} for role, text in (("user", "hi"), ("assistant", "ok"), ("user", "next"))]
    full = hf.apply_chat_template(wire, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert [*renderer.prompt([user("hi")], ()), *sampled, *close, *rest] == list(full)
