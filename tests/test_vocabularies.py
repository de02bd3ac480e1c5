"""The vocabularies are the models' own: their ids are compared with encoders that we have not built."""

import json.encoder
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.vocabularies import REJECTED, SPECIMENS, Specimen, load, patterns
from tests.vocabularies.containers import read_ranks
from tests.vocabularies.sources import located
from tests.vocabularies.vocabularies import VOCABULARIES

pytestmark = pytest.mark.slow  # a vocabulary takes seconds to build and up to one to load

SOURCE = Path(json.encoder.__file__).read_text()
O200K = "litellm/fb374d419588a4632f3f557e76b4b70aebbca790"
words = st.sampled_from(["the ", "def f(x):", "123456", "don't", "'S", "naïve", "e\u0301", "👩‍👧", "漢字"])
gaps = st.sampled_from(["\n", "\n\n", " ", "  ", "\t", "\r\n"])
texts = st.text(max_size=40) | st.lists(words | gaps | st.text(max_size=4), max_size=8).map("".join)
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "abcdefghi", "type": "function", "function": {"name": "bash", "arguments": {"cmd": "ls"}}},
    ],
}
RESULT = {"role": "tool", "content": '{"files": 3}', "tool_call_id": "abcdefghi", "name": "bash"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command.",
            "parameters": {
                "type": "object",
                "properties": {"cmd": {"type": "string", "description": "The command."}},
                "required": ["cmd"],
            },
        },
    }
]
ASKED = [{"role": "user", "content": "hi"}]


def encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


# Each file has texts and the ids that the tokenizer of the model's own repository gives for them.
@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("ggml-vocab-qwen2", "qwen2.5"),
        ("ggml-vocab-qwen35", "qwen3.5"),
        ("ggml-vocab-llama-bpe", "llama3.1"),
        ("ggml-vocab-gemma-4", "gemma4"),
        ("ggml-vocab-phi-3", "phi3.5"),
    ],
)
def test_ids_are_those_of_reference_encodings(reference: str, name: str) -> None:
    tokenizer = load(name)
    written = located(f"llama.cpp/{reference}.gguf.inp").read_text().split("\n__ggml_vocab_test__\n")
    ids = located(f"llama.cpp/{reference}.gguf.out").read_text().splitlines()
    cases = [(text, list(map(int, line.split()))) for text, line in zip(written, ids, strict=False)]
    # llama.cpp leaves out that Qwen composes characters first
    cases = [(text, line) for text, line in cases if "qwen" not in name or unicodedata.is_normalized("NFC", text)]
    assert len(cases) >= 46
    assert [(text, encode(tokenizer, text)) for text, _ in cases] == cases


@pytest.mark.parametrize(
    ("name", "path", "pattern"),
    [
        ("qwen3", "qwen/qwen.tiktoken", patterns.QWEN),
        ("llama3.1", "llama/tokenizer.model", patterns.LLAMA_3),
        ("gpt-oss", O200K, patterns.O200K),
    ],
)
def test_ids_are_those_of_tiktoken(name: str, path: str, pattern: str) -> None:
    import tiktoken

    tokenizer = load(name)
    reference = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=read_ranks(located(path)), special_tokens={})

    @given(texts)
    @example(SOURCE)
    def same(text: str) -> None:
        composed = unicodedata.normalize("NFC", text) if name == "qwen3" else text
        assert encode(tokenizer, text) == reference.encode(composed, disallowed_special=())

    same()


@pytest.mark.parametrize(
    ("name", "file"), [("mistral-nemo", "tekken_240718.json"), ("mistral-small-3.2", "tekken_240911.json")]
)
def test_ids_are_those_of_mistral_common(name: str, file: str) -> None:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    tokenizer = load(name)
    reference = Tekkenizer.from_file(located(f"mistral/{file}"))

    @given(texts)
    @example(SOURCE)
    def same(text: str) -> None:
        assert encode(tokenizer, text) == reference.encode(text, bos=False, eos=False)

    same()


@pytest.mark.parametrize(
    ("name", "file"),
    [("zephyr", "tokenizer.model.v1"), ("mistral-nemo-spm", "mistral_instruct_tokenizer_240323.model.v3")],
)
def test_ids_are_those_of_sentencepiece(name: str, file: str) -> None:
    import sentencepiece

    tokenizer = load(name)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(located(f"mistral/{file}")))

    @given(texts.filter(lambda text: "\0" not in text))  # where SentencePiece ends a text
    @example("a\n b")
    @example(" a")
    def same(text: str) -> None:
        assert encode(tokenizer, text) == reference.encode(text)

    same()


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mistral-nemo", "tekken_240718.json"),
        ("mistral-nemo-spm", "mistral_instruct_tokenizer_240323.model.v3"),
    ],
)
@pytest.mark.parametrize(
    ("messages", "tools"),
    [
        (ASKED, None),
        ([*ASKED, {"role": "assistant", "content": "yo"}, {"role": "user", "content": " again\n"}], None),
        ([*ASKED, CALL, RESULT], TOOLS),
    ],
    ids=["user", "turns", "tools"],
)
def test_conversations_are_encoded_as_by_mistral_common(
    name: str, file: str, messages: Sequence[dict[str, object]], tools: Sequence[dict[str, object]] | None
) -> None:
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    reference = MistralTokenizer.from_file(str(located(f"mistral/{file}")))
    asked = ChatCompletionRequest.model_validate({"messages": [_wire(m) for m in messages], "tools": tools})
    tokenizer = load(name)
    ids = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=False)
    assert ids == reference.encode_chat_completion(asked).tokens


def _wire(message: dict[str, Any]) -> dict[str, object]:
    """The same message with the arguments of calls as JSON text."""
    if not message.get("tool_calls"):
        return message
    call = message["tool_calls"][0]
    return message | {"tool_calls": [call | {"function": {"name": "bash", "arguments": '{"cmd": "ls"}'}}]}


def test_ids_are_those_of_harmony(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import openai_harmony

    (tmp_path / "o200k_base.tiktoken").symlink_to(located(O200K))
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(tmp_path))
    reference = openai_harmony.load_harmony_encoding(openai_harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
    tokenizer = load("gpt-oss")
    whole = tokenizer.apply_chat_template([*ASKED, CALL, RESULT], tools=TOOLS, tokenize=False)
    assert encode(tokenizer, whole) == reference.encode(whole, allowed_special="all")
    stops = tokenizer.convert_tokens_to_ids(["<|return|>", "<|call|>"])
    assert stops == sorted(reference.stop_tokens_for_assistant_actions()) == [200002, 200012]


@pytest.mark.parametrize(
    ("name", "path"), [("deepseek-v3.1", "litellm/deepseek_tokenizer.json"), ("deepseek-v4", "deepseek/tokenizer.json")]
)
def test_ids_are_those_of_the_shipped_tokenizer(name: str, path: str) -> None:
    from tokenizers import Tokenizer

    tokenizer, reference = load(name), Tokenizer.from_file(str(located(path)))
    text = SOURCE + "<｜User｜>漢字<｜Assistant｜></think>123456<｜end▁of▁sentence｜>"
    assert encode(tokenizer, text) == reference.encode(text, add_special_tokens=False).ids


KNOWN_IDS = [
    ("qwen2.5", "<|im_end|>", 151645),
    ("qwen2.5", "</tool_call>", 151658),
    ("qwen3", "<|endoftext|>", 151643),
    ("qwen3", "</think>", 151668),
    ("r1-distill-qwen", "<｜User｜>", 151644),
    ("r1-distill-qwen", "<｜end▁of▁sentence｜>", 151643),
    ("r1-distill-qwen", "</think>", 151649),
    ("llama3.1", "<|begin_of_text|>", 128000),
    ("llama3.1", "<|start_header_id|>", 128006),
    ("llama3.1", "<|eot_id|>", 128009),
    ("llama3.1", "<|reserved_special_token_247|>", 128255),
    ("gpt-oss", "<|return|>", 200002),
    ("gpt-oss", "<|call|>", 200012),
    ("deepseek-v3", "<｜User｜>", 128803),
    ("deepseek-v3", "<｜end▁of▁sentence｜>", 1),
    ("mistral-nemo", "[/INST]", 4),
    ("mistral-nemo", "[TOOL_CALLS]", 9),
    ("mistral-small-3.2", "[SYSTEM_PROMPT]", 17),
    ("mistral-nemo-spm", "[INST]", 3),
    ("mistral-nemo-spm", "</s>", 2),
    ("gemma4", "<|turn>", 105),
    ("gemma4", "<turn|>", 106),
    ("gemma4", "<|tool_response>", 50),
    ("phi3.5", "<|end|>", 32007),
    ("smollm2", "<|im_end|>", 2),
]


@pytest.mark.parametrize(("name", "text", "number"), KNOWN_IDS)
def test_control_tokens_have_the_ids_that_the_models_know(name: str, text: str, number: int) -> None:
    tokenizer = load(name)
    assert encode(tokenizer, text) == [number]
    assert tokenizer.decode([number]) == text


@pytest.mark.parametrize(("name", "size"), [
    ("qwen2.5", 151665), ("qwen3", 151669), ("llama3.1", 128256), ("gpt-oss", 200019), ("mistral-nemo", 131072),
    ("mistral-nemo-spm", 32768), ("zephyr", 32000), ("gemma4", 262144), ("phi3.5", 32011), ("smollm2", 49152),
])  # fmt: skip
def test_vocabularies_have_no_holes(name: str, size: int) -> None:
    assert sorted(load(name).get_vocab().values()) == list(range(size))


def test_phi_swallows_the_white_space_after_a_control_token() -> None:
    tokenizer = load("phi3.5")
    assert encode(tokenizer, "<|end|>\n<|assistant|>\n") == [32007, 32001]


def test_a_beginning_token_comes_first_where_the_model_wants_one() -> None:
    assert {
        name: load(name).encode("a")[0] == load(name).bos_token_id for name in ("llama3.1", "gemma4", "zephyr")
    } == {
        "llama3.1": True,
        "gemma4": True,
        "zephyr": True,
    }
    assert load("qwen3").encode("a") == encode(load("qwen3"), "a")


def test_words_are_cut_as_transformers_cuts_them() -> None:
    from transformers.models.qwen2 import tokenization_qwen2
    from transformers.models.qwen3_5 import tokenization_qwen3_5

    assert tokenization_qwen2.PRETOKENIZE_REGEX == patterns.QWEN
    assert tokenization_qwen3_5.PRETOKENIZE_REGEX == patterns.QWEN_35


def test_specimen_renders_and_encodes_a_conversation(specimen: Specimen, tokenizer_of: Callable[[str], Any]) -> None:
    tokenizer = tokenizer_of(specimen.name)
    render = partial(tokenizer.apply_chat_template, ASKED, tools=TOOLS, add_generation_prompt=True, **specimen.kwargs)
    text, ids = render(tokenize=False), render(return_dict=False)
    controls = {number: str(token) for number, token in tokenizer.added_tokens_decoder.items()}
    assert "hi" in text
    assert ids == encode(tokenizer, text)
    assert set(ids) & set(controls)
    assert {number: encode(tokenizer, token) for number, token in controls.items()} == {i: [i] for i in controls}


def test_each_vocabulary_is_used_and_specimens_go_through_them_in_order() -> None:
    used = [specimen.vocabulary for specimen in SPECIMENS]
    assert set(used) == set(VOCABULARIES)
    changes = [name for name, before in zip(used, [None, *used], strict=False) if name != before]
    assert len(changes) == len(set(used))  # else a vocabulary is loaded more than once
    assert all(specimen.note for specimen in SPECIMENS if not specimen.real_vocabulary)


def test_loaded_tokenizers_do_not_share_a_template() -> None:
    one, other = load("qwen3"), load("qwen3-2507")
    assert one.chat_template != other.chat_template
    one.chat_template = "changed"
    assert load("qwen3").chat_template not in {"changed", other.chat_template}


def test_unknown_name_is_told_what_there_is() -> None:
    with pytest.raises(KeyError, match=r"no specimen 'qwen9'; there are qwen2\.5, qwen3"):
        load("qwen9")


@pytest.mark.parametrize("name", [specimen.name for specimen in REJECTED])
def test_rejected_templates_are_refused_by_the_sandbox(name: str) -> None:
    from jinja2.exceptions import SecurityError

    with pytest.raises(SecurityError, match="append"):
        load(name).apply_chat_template([*ASKED, CALL, RESULT], tools=TOOLS, tokenize=False)


@pytest.mark.parametrize("name", ["deepseek-v3.2", "deepseek-v4"])
def test_newer_deepseek_templates_want_arguments_that_are_mappings(name: str) -> None:
    from jinja2.exceptions import TemplateRuntimeError

    tokenizer = load(name)
    assert "ls" in tokenizer.apply_chat_template([*ASKED, CALL, RESULT], tools=TOOLS, tokenize=False)
    with pytest.raises(TemplateRuntimeError, match="from_json"):
        tokenizer.apply_chat_template([*ASKED, _wire(CALL), RESULT], tools=TOOLS, tokenize=False)


def test_verl_builds_continuous_tokens_without_the_rest_of_verl() -> None:
    import sys

    from tests.vocabularies.peers import verl_continuous_token

    tokenizer = load("qwen3")
    builder = verl_continuous_token().create_continuous_token_builder(tokenizer, model_family="qwen")
    prompt = tokenizer.apply_chat_template(ASKED, add_generation_prompt=True, return_dict=False)
    turn = [*encode(tokenizer, "yo"), 151645]
    merged = builder.merge_assistant_tokens(prompt, turn)
    assert merged.token_ids == prompt + turn
    assert "torch" not in sys.modules
