"""The vocabularies by name: real ones, and real ones under the control tokens of families whose own is not at hand."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from attrs import field, frozen

from tests.vocabularies import patterns
from tests.vocabularies.backends import Control, Json, byte_bpe, byte_level, byte_level_step, text_bpe, with_controls
from tests.vocabularies.containers import (
    Piece,
    PieceKind,
    gguf_pieces,
    read_gguf,
    read_ranks,
    read_sentencepiece,
    read_tekken,
)
from tests.vocabularies.sources import located


@frozen
class Vocabulary:
    """How to build a tokenizer, and what of it transformers must be told.

    Attributes:
        build: gives its tokenizer.json.
        real: whether a model was trained with exactly these ids.
        tokens: the control tokens that transformers knows by role: `eos_token` and so on.
    """

    build: Callable[[], Json]
    real: bool
    tokens: Mapping[str, str] = field(converter=dict)


def specials(texts: str) -> list[Control]:
    """A control token for each word, of the kind that decoding may skip."""
    return [Control(text) for text in texts.split()]


def visibles(texts: str) -> list[Control]:
    """A control token for each word, of the kind that decoding shows."""
    return [Control(text, special=False) for text in texts.split()]


def numbered(pattern: str, numbers: Iterable[int]) -> list[Control]:
    return [Control(pattern.format(n)) for n in numbers]


SMOLLM2 = "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"  # the start of it, without weights

_QWEN_FIRST = specials("<|endoftext|> <|im_start|> <|im_end|>")
_QWEN_REST = [
    *specials(
        "<|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> <|quad_start|> <|quad_end|> "
        "<|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>"
    ),
    *visibles("<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|>"),
    *visibles("<|repo_name|> <|file_sep|>"),
]
_QWEN = [*_QWEN_FIRST, *_QWEN_REST, *visibles("<tool_response> </tool_response> <think> </think>")]
_R1_ON_QWEN = [
    *specials("<｜end▁of▁sentence｜>"),
    *visibles("<｜User｜> <｜Assistant｜>"),
    *specials("<｜begin▁of▁sentence｜>"),
    *visibles("<|EOT|> <think> </think>"),
    *specials("<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>"),
    *visibles("<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|>"),
    *visibles("<|repo_name|> <|file_sep|>"),
]
_KIMI = [
    *specials("[BOS] [EOS] <|im_end|> <|im_user|> <|im_assistant|> <|start_header_id|> <|end_header_id|> [EOT]"),
    *specials("<|im_system|>"),
    *visibles("<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|>"),
    *visibles("<|tool_call_argument_begin|> <|tool_call_end|>"),
    *specials("<|im_middle|> <|media_start|> <|media_content|> <|media_end|> <|media_pad|> [UNK] [PAD]"),
    *visibles("<think> </think>"),
]
_MINIMAX = [
    *specials("]!p~[ ]~b] [e~[ ]!d~[ ]~!b["),
    *visibles("<minimax:tool_call> </minimax:tool_call> <think> </think>"),
]
_GLM = [
    *specials("<|endoftext|> [MASK] [gMASK] [sMASK] <sop> <eop> <|system|> <|user|> <|assistant|> <|observation|>"),
    *specials("<|begin_of_image|> <|end_of_image|> <|begin_of_video|> <|end_of_video|>"),
    *visibles("/nothink <think> </think> <tool_call> </tool_call> <tool_response> </tool_response>"),
    *visibles("<arg_key> </arg_key> <arg_value> </arg_value>"),
]


def qwen(controls: Iterable[Control], *, pattern: str = patterns.QWEN, bos: str | None = None) -> Json:
    ranks = read_ranks(located("qwen/qwen.tiktoken"))
    return with_controls(byte_bpe(ranks, pattern, normalizer={"type": "NFC"}), controls, bos=bos)


def llama_3_controls(named: Mapping[int, Control]) -> Iterator[Control]:
    """The 256 control tokens of a Llama 3 vocabulary, those in `named` in place of the reserved ones."""
    known = {
        0: "<|begin_of_text|>",
        1: "<|end_of_text|>",
        4: "<|finetune_right_pad_id|>",
        6: "<|start_header_id|>",
        7: "<|end_header_id|>",
        8: "<|eom_id|>",
        9: "<|eot_id|>",
        10: "<|python_tag|>",
    }
    reserved = iter(range(256))
    for n in range(256):
        text = known.get(n) or f"<|reserved_special_token_{next(reserved)}|>"
        yield named.get(n, Control(text))


def llama_3(named: Mapping[int, Control], *, bos: str | None = "<|begin_of_text|>") -> Json:
    ranks = read_ranks(located("llama/tokenizer.model"))
    return with_controls(byte_bpe(ranks, patterns.LLAMA_3), llama_3_controls(named), bos=bos)


def on_llama_3(controls: Iterable[Control]) -> Json:
    return with_controls(byte_bpe(read_ranks(located("llama/tokenizer.model")), patterns.LLAMA_3), controls)


def o200k(named: Mapping[int, str], last: int) -> Json:
    ranks = read_ranks(located("litellm/fb374d419588a4632f3f557e76b4b70aebbca790"))  # o200k_base.tiktoken
    controls = [Control(named.get(i, f"<|reserved_{i}|>")) for i in range(len(ranks), last + 1)]
    return with_controls(byte_bpe(ranks, patterns.O200K), controls)


def tekken(file: str, named: Mapping[int, str]) -> Json:
    read = read_tekken(located(f"mistral/{file}"))
    first = [named.get(n, f"<SPECIAL_{n}>") for n in range(read.controls)]
    return with_controls(byte_bpe(read.ranks, read.pattern, first=first), map(Control, first), bos="<s>")


def mistral_spm(file: str) -> Json:
    pieces = read_sentencepiece(located(f"mistral/{file}"))
    return with_controls(text_bpe(pieces, prefix=True), _controls(pieces), bos="<s>")


def gemma_4(renamed: Mapping[int, str]) -> Json:
    metadata = read_gguf(located("llama.cpp/ggml-vocab-gemma-4.gguf"))
    pieces = [Piece(renamed.get(i, p.text), p.score, p.kind) for i, p in enumerate(gguf_pieces(metadata))]
    written = metadata["tokenizer.ggml.merges"]
    assert isinstance(written, list)
    # a space divides the two; no piece starts with one
    cuts = [(merge, merge.index(" ", 1)) for merge in written]
    merges = [(merge[:at], merge[at + 1 :]) for merge, at in cuts]
    return with_controls(text_bpe(pieces, merges, prefix=False), _controls(pieces), bos="<bos>")


def phi_3() -> Json:
    pieces = gguf_pieces(read_gguf(located("llama.cpp/ggml-vocab-phi-3.gguf")))[:32_011]  # the rest is padding
    plain = {"<unk>", "<s>", "<|endoftext|>"}
    controls = [Control(c.text, special=c.special, rstrip=c.text not in plain) for c in _controls(pieces)]
    return with_controls(text_bpe(pieces, prefix=True), controls)


def smollm2() -> Json:
    metadata = read_gguf(located(SMOLLM2))
    pieces = gguf_pieces(metadata)
    merges = metadata["tokenizer.ggml.merges"]
    assert isinstance(merges, list)
    model = {
        "vocab": {piece.text: i for i, piece in enumerate(pieces)},
        "merges": [tuple(merge.split(" ")) for merge in merges],
    }
    digits = {"type": "Digits", "individual_digits": True}
    return with_controls(byte_level(model, [digits, byte_level_step(words=True)]), _controls(pieces))


def _controls(pieces: Iterable[Piece]) -> list[Control]:
    kinds = (PieceKind.CONTROL, PieceKind.USER_DEFINED, PieceKind.UNKNOWN)
    return [Control(p.text, special=p.kind is not PieceKind.USER_DEFINED) for p in pieces if p.kind in kinds]


def as_shipped(path: str) -> Json:
    """A tokenizer.json of which nothing needs to be made."""
    shipped = json.loads(located(path).read_bytes())
    assert isinstance(shipped, dict)
    return shipped


_TEKKEN_FIRST = """
    <unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS]
    [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]
"""
_TEKKEN = dict(enumerate(_TEKKEN_FIRST.split()))
_HARMONY = {
    199998: "<|startoftext|>",
    199999: "<|endoftext|>",
    200002: "<|return|>",
    200003: "<|constrain|>",
    200005: "<|channel|>",
    200006: "<|start|>",
    200007: "<|end|>",
    200008: "<|message|>",
    200012: "<|call|>",
    200018: "<|endofprompt|>",
}
_SMOLLM3 = {
    2: Control("<think>", special=False),
    3: Control("</think>", special=False),
    11: Control("<|im_start|>"),
    12: Control("<|im_end|>"),
    13: Control("<tool_response>", special=False),
    14: Control("</tool_response>", special=False),
    15: Control("<tool_call>", special=False),
    16: Control("</tool_call>", special=False),
}
_HERMES_3 = {
    2: Control("<tool_call>", special=False),
    11: Control("<tool_response>", special=False),
    12: Control("</tool_response>", special=False),
    13: Control("</tool_call>", special=False),
    39: Control("<|im_start|>"),
    40: Control("<|im_end|>"),
}
_R1_ON_LLAMA = {
    0: Control("<｜begin▁of▁sentence｜>"),
    1: Control("<｜end▁of▁sentence｜>"),
    11: Control("<｜User｜>", special=False),
    12: Control("<｜Assistant｜>", special=False),
    13: Control("<think>", special=False),
    14: Control("</think>", special=False),
}
_DEEPSEEK_TOKENS = {
    "bos_token": "<｜begin▁of▁sentence｜>",
    "eos_token": "<｜end▁of▁sentence｜>",
    "pad_token": "<｜▁pad▁｜>",
}
_QWEN_TOKENS = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
_MISTRAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_GEMMA_TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}

VOCABULARIES: dict[str, Vocabulary] = {
    "qwen2.5": Vocabulary(partial(qwen, [*_QWEN_FIRST, *_QWEN_REST]), True, _QWEN_TOKENS),
    "qwen3": Vocabulary(partial(qwen, _QWEN), True, _QWEN_TOKENS),
    "qwen3.5": Vocabulary(partial(qwen, _QWEN, pattern=patterns.QWEN_35), False, _QWEN_TOKENS),
    "r1-qwen": Vocabulary(
        partial(qwen, _R1_ON_QWEN, bos="<｜begin▁of▁sentence｜>"),
        True,
        {**_DEEPSEEK_TOKENS, "pad_token": "<｜end▁of▁sentence｜>"},
    ),
    "kimi": Vocabulary(
        partial(qwen, _KIMI), False, {"bos_token": "[BOS]", "eos_token": "<|im_end|>", "pad_token": "[PAD]"}
    ),
    "minimax": Vocabulary(
        partial(qwen, _MINIMAX), False, {"bos_token": "]~!b[", "eos_token": "[e~[", "pad_token": "]!p~["}
    ),
    "llama3": Vocabulary(
        partial(llama_3, {}),
        True,
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "pad_token": "<|finetune_right_pad_id|>"},
    ),
    "smollm3": Vocabulary(
        partial(llama_3, _SMOLLM3, bos=None),
        False,
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"},
    ),
    "hermes3": Vocabulary(
        partial(llama_3, _HERMES_3),
        False,
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|im_end|>", "pad_token": "<|end_of_text|>"},
    ),
    "r1-llama": Vocabulary(
        partial(llama_3, _R1_ON_LLAMA, bos="<｜begin▁of▁sentence｜>"),
        False,
        {**_DEEPSEEK_TOKENS, "pad_token": "<｜end▁of▁sentence｜>"},
    ),
    "glm": Vocabulary(partial(on_llama_3, _GLM), False, {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}),
    "gpt-oss": Vocabulary(
        partial(o200k, _HARMONY, 200018),
        True,
        {"bos_token": "<|startoftext|>", "eos_token": "<|return|>", "pad_token": "<|endoftext|>"},
    ),
    "deepseek-v3": Vocabulary(partial(as_shipped, "litellm/deepseek_tokenizer.json"), True, _DEEPSEEK_TOKENS),
    "deepseek-v4": Vocabulary(partial(as_shipped, "deepseek/tokenizer.json"), True, _DEEPSEEK_TOKENS),
    "mistral-nemo": Vocabulary(
        partial(tekken, "tekken_240718.json", _TEKKEN), True, {**_MISTRAL_TOKENS, "pad_token": "<pad>"}
    ),
    "mistral-small": Vocabulary(
        partial(tekken, "tekken_240911.json", _TEKKEN | {32: "[ARGS]", 33: "[CALL_ID]", 34: "[THINK]", 35: "[/THINK]"}),
        True,
        {**_MISTRAL_TOKENS, "pad_token": "<pad>"},
    ),
    "mistral-v1": Vocabulary(partial(mistral_spm, "tokenizer.model.v1"), True, _MISTRAL_TOKENS),
    "mistral-v3": Vocabulary(partial(mistral_spm, "mistral_instruct_tokenizer_240323.model.v3"), True, _MISTRAL_TOKENS),
    "gemma4": Vocabulary(partial(gemma_4, {}), True, _GEMMA_TOKENS),
    "gemma3": Vocabulary(partial(gemma_4, {105: "<start_of_turn>", 106: "<end_of_turn>"}), False, _GEMMA_TOKENS),
    "phi3.5": Vocabulary(phi_3, True, {"bos_token": "<s>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}),
    "smollm2": Vocabulary(
        smollm2, True, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    ),
}
