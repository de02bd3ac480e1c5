"""Bridges of other libraries: where they agree with the full render, so does ours, and each difference is told.

What is compared is what stands after a turn: the results of tools in thirteen odd contents, two results, a result and a
user, a user; with tools and without. A library that declines wants the conversation rendered afresh.
"""

import json
import unicodedata
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from agentkit.protocols import Message
from tests.tokens.families.bench import Bench, Truth, bench_of, bridged
from tests.tokens.families.matrix import MARK, Case, cases
from tests.tokens.families.peers import RENDERERS, TRL, VERL, Peer, of_renderers, of_trl, of_verl, wire, wire_tools
from tests.vocabularies.sources import located

pytestmark = [
    pytest.mark.slow,  # the vocabularies take seconds
    pytest.mark.skipif(find_spec("trl") is None, reason="the other libraries are in the development environment alone"),
]

Difference = Callable[[str, str, Case], bool]
"""From the text of the template and that of the library to whether they differ as they are known to."""


def _no_newline(template: str, theirs: str, case: Case) -> bool:
    """The newline that separates turns is missing."""
    return template == f"\n{theirs}"


def _no_newline_before_a_user(template: str, theirs: str, case: Case) -> bool:
    return not case.contents and template == f"\n{theirs}"


def _gemma_newline(template: str, theirs: str, case: Case) -> bool:
    """After a turn a newline is missing; after a result, the turn is ended where this template goes on."""
    if not case.contents:
        return template == f"\n{theirs}"
    ended = template.replace("<tool_response|><|turn>user", "<tool_response|><turn|>\n<|turn>user")
    return bool(case.users) and theirs == ended


def _header_again(template: str, theirs: str, case: Case) -> bool:
    """The stop that was sampled is the header of what follows; it is written again."""
    return theirs == f"<|observation|>{template}" and bool(case.contents)


def _kimi_names(template: str, theirs: str, case: Case) -> bool:
    r"""The tool's name stands where llama.cpp's template has "tool", a newline where that has a backslash and an n."""
    told = theirs.replace("<|im_system|>bash<|im_middle|>", "<|im_system|>tool<|im_middle|>")
    head, sep, rest = told.partition("\n")
    told = told.replace("\n", "\\n") if case.name.startswith("two") else f"{head}\\n{rest}" if sep else told
    return unicodedata.normalize("NFC", told) == template and bool(case.contents)


def _v3_outputs(template: str, theirs: str, case: Case) -> bool:
    """It is a renderer of V3, which wraps results, and closes no thought in advance."""
    wrapped = template.replace("<think></think>", "")
    if case.contents:
        first, last = wrapped.find("<｜tool▁output▁begin｜>"), wrapped.rfind("<｜tool▁output▁end｜>")
        end = last + len("<｜tool▁output▁end｜>")
        wrapped = f"{wrapped[:first]}<｜tool▁outputs▁begin｜>{wrapped[first:end]}<｜tool▁outputs▁end｜>{wrapped[end:]}"
    return theirs == wrapped


KNOWN: dict[tuple[str, str], Difference] = {
    ("verl", "gemma4"): _gemma_newline,
    ("verl", "gemma4-v5"): _no_newline_before_a_user,
    ("verl", "zephyr"): _no_newline,  # the default builder knows no separators
    ("trl", "glm-4.5"): _header_again,
    ("trl", "glm-4.7-flash"): _header_again,
    ("renderers", "kimi-k2"): _kimi_names,
    ("renderers", "deepseek-v3.1"): _v3_outputs,
}
# How many cases end in (agreement, a known difference, declining, an error).
COUNTS = {
    ("renderers", "qwen3"): (28, 0, 4, 0),
    ("renderers", "qwen3.5"): (28, 0, 4, 0),
    ("renderers", "qwen3.6"): (28, 0, 4, 0),
    ("renderers", "glm-4.5"): (28, 0, 4, 0),
    ("renderers", "minimax-m2"): (28, 0, 4, 0),
    ("renderers", "kimi-k2"): (2, 30, 0, 0),
    ("renderers", "llama3.1"): (28, 0, 0, 0),
    ("renderers", "gemma4"): (30, 0, 2, 0),
    ("renderers", "gemma4-v5"): (30, 0, 2, 0),
    ("renderers", "deepseek-v3.1"): (0, 16, 0, 0),
    ("renderers", "deepseek-v4"): (28, 0, 4, 0),
    ("verl", "qwen2.5"): (32, 0, 0, 0),
    ("verl", "qwen3"): (32, 0, 0, 0),
    ("verl", "qwen3-training"): (32, 0, 0, 0),
    ("verl", "qwen3.5"): (32, 0, 0, 0),
    ("verl", "minimax-m2"): (32, 0, 0, 0),
    ("verl", "glm-4.5"): (32, 0, 0, 0),
    ("verl", "glm-4.7-flash"): (32, 0, 0, 0),
    ("verl", "gemma4"): (28, 4, 0, 0),
    ("verl", "gemma4-v5"): (30, 2, 0, 0),
    ("verl", "gpt-oss"): (28, 0, 0, 0),
    ("verl", "deepseek-v3.1"): (16, 0, 0, 0),
    ("verl", "kimi-k2"): (32, 0, 0, 0),
    ("verl", "llama3.1"): (28, 0, 0, 0),
    ("verl", "mistral-small-3.2"): (28, 0, 0, 2),  # its dummy conversation has a user before the user
    ("verl", "zephyr"): (0, 16, 0, 0),
    ("trl", "qwen2.5"): (28, 0, 0, 0),
    ("trl", "qwen3"): (0, 0, 0, 28),  # its dummy turn is rewritten; it wants the training template
    ("trl", "qwen3-training"): (28, 0, 0, 0),
    ("trl", "qwen3.5"): (28, 0, 0, 0),
    ("trl", "qwen3.6"): (28, 0, 0, 0),
    ("trl", "glm-4.5"): (0, 28, 0, 0),
    ("trl", "glm-4.7-flash"): (0, 28, 0, 0),
    ("trl", "minimax-m2"): (28, 0, 0, 0),
    ("trl", "kimi-k2"): (28, 0, 0, 0),
    ("trl", "llama3.1"): (24, 0, 0, 0),
    ("trl", "gemma4"): (28, 0, 0, 0),
    ("trl", "gemma4-v5"): (28, 0, 0, 0),
    ("trl", "deepseek-v3.1"): (14, 0, 0, 0),
    ("trl", "deepseek-v4"): (28, 0, 0, 0),
    ("trl", "gpt-oss"): (24, 0, 0, 0),
    ("trl", "mistral-small-3.2"): (0, 0, 0, 28),  # its dummy call has no id
    ("trl", "zephyr"): (14, 0, 0, 0),
}


@pytest.mark.parametrize("name", RENDERERS)
def test_renderers_of_prime_intellect(name: str) -> None:
    compare("renderers", of_renderers, bench_of(name))


@pytest.mark.parametrize("name", VERL)
def test_continuous_tokens_of_verl(name: str) -> None:
    compare("verl", of_verl, bench_of(name))


@pytest.mark.parametrize("name", TRL)
def test_tool_suffixes_of_trl(name: str) -> None:
    compare("trl", of_trl, bench_of(name), users=False)


def test_harmony_of_openai(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results stand as gpt-oss's own encoder writes them; its chat template quotes them as JSON first."""
    import openai_harmony as harmony

    (tmp_path / "o200k_base.tiktoken").symlink_to(located("litellm/fb374d419588a4632f3f557e76b4b70aebbca790"))
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(tmp_path))
    encoding = harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
    bench, role = bench_of("gpt-oss"), harmony.Role
    call = harmony.Message.from_role_and_content(role.ASSISTANT, '{"cmd": "argument 20"}')
    call = call.with_channel("commentary").with_recipient("functions.bash").with_content_type("<|constrain|>json")
    author = harmony.Author.new(role.TOOL, "functions.bash")
    for content in ("ok", "", " ok", "\nok", "ok\n\n\n", "7", "\u0301e\u0301"):
        action, new = bench.turn(2, 1), [bench.result(2, 0, content)]
        said = harmony.Message.from_author_and_content(author, json.dumps(content, ensure_ascii=False))
        said = said.with_channel("commentary").with_recipient("assistant")
        asked = harmony.Message.from_role_and_content(role.USER, "hi")
        conversation = harmony.Conversation.from_messages([asked, call, said])
        ids = encoding.render_conversation_for_completion(conversation, role.ASSISTANT)
        assert bridged(bench.subject, action, new, (), [0, 200012]) == ids[ids.index(200012) + 1 :], content


@pytest.mark.parametrize(
    ("name", "file"),
    [("mistral-nemo", "tekken_240718.json"), ("mistral-nemo-spm", "mistral_instruct_tokenizer_240323.model.v3")],
)
def test_instruct_encoding_of_mistral(name: str, file: str) -> None:
    """Chains without a system message are those of mistral-common, token by token.

    It writes a result as JSON, the chat template as it stands: for a text they differ by its quotes.
    """
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    reference, bench = MistralTokenizer.from_file(str(located(f"mistral/{file}"))), bench_of(name)
    opening, action = [Message("user", "hi")], bench.turn(2, 1)
    for content in ("ok", " ok", "\nok", "ok\n\n\n", "é\u0301", "\U0001f469\u200d\U0001f469 ok"):
        new = [bench.result(2, 0, json.dumps(content, ensure_ascii=False))]
        truth = bench.truth(opening, action, new, bench.shown)
        assert isinstance(truth, Truth)
        assert truth.turn is not None
        messages = wire([*opening, action, bench.result(2, 0, content)])
        messages[1]["tool_calls"][0]["function"]["arguments"] = json.dumps(dict(action.tool_calls[0].arguments))
        tools = wire_tools(Case("", (), (), bench.shown))
        asked = ChatCompletionRequest.model_validate({"messages": messages, "tools": tools})
        rest = bridged(bench.unsystemed, action, new, bench.shown, truth.turn)
        assert isinstance(rest, list)
        prompt = bench.unsystemed.renderer.prompt(opening, bench.shown)
        assert [*prompt, *truth.turn, *rest] == reference.encode_chat_completion(asked).tokens, content


def compare(library: str, peer: Peer, bench: Bench, *, users: bool = True) -> None:
    agree = differ = decline = fail = 0
    for case, truth in _told(bench, users=users):
        action, new = case.said(bench)
        assert bridged(bench.kept, action, new, case.tools, bench.sampled(truth)) == truth.tail
        try:
            theirs = peer(bench, case, bench.opening(), truth)
        except Exception as error:  # what a library raises is its own
            print(library, bench.name, case.name, type(error).__name__, error)
            fail += 1
            continue
        if theirs is None:
            decline += 1
        elif theirs == truth.tail:
            agree += 1
        else:
            texts = bench.hf.decode(truth.tail), bench.hf.decode(theirs)
            known = KNOWN.get((library, bench.name))
            assert known is not None, texts
            assert known(*texts, case), texts
            differ += 1
    print((library, bench.name), (agree, differ, decline, fail))
    assert (agree, differ, decline, fail) == COUNTS[library, bench.name]


def _told(bench: Bench, *, users: bool) -> Iterator[tuple[Case, Truth]]:
    """The cases of which the template tells what follows, with a word of a user instead of control tokens."""
    shown = ((), bench.shown) if bench.shown else ((),)
    for case in [*cases(bench), *(Case("a user", (), ("next",), tools) for tools in shown)]:
        if MARK in case.contents or (case.users and not users):
            continue
        truth = bench.truth(bench.opening(), *case.said(bench), case.tools)
        if isinstance(truth, Truth):
            yield case, truth
