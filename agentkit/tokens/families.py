"""The families people train, as data, and how to find the one a chat template belongs to by asking it."""

from collections.abc import Sequence

from agentkit.errors import ConfigError
from agentkit.protocols.messages import assistant, user
from agentkit.protocols.tokens import ChatTemplate, Tokenizer
from agentkit.tokens.family import Family, Thought
from agentkit.tokens.probes import asking

_BARE = Thought(cut="</think>")

CHATML = Family(name="chatml", marks=("<|im_start|>",), stops=("<|im_end|>", "<|endoftext|>"), close="<|im_end|>")
"""ChatML without more: Hermes, SmolLM2, Yi and many fine-tunes."""
QWEN = Family(name="qwen", marks=("<|im_start|>",), stops=("<|im_end|>", "<|endoftext|>"), close="<|im_end|>")
"""Qwen2.5, Qwen3 (thinking and not), Qwen3-Coder, Qwen3.5, QwQ."""
LLAMA3 = Family(
    name="llama3",
    stops=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    close="<|eot_id|>",
)
"""Llama 3.1, 3.2, 3.3."""
MISTRAL = Family(
    name="mistral",
    marks=("[INST]",),
    stops=("</s>",),
    close="</s>",
    thought=Thought(opens="[THINK]", closes="[/THINK]", cut="[/THINK]"),
)
"""Mistral, with SentencePiece and with tekken vocabularies; also other templates that end a turn with `</s>`."""
DEEPSEEK = Family(name="deepseek", stops=("<｜end▁of▁sentence｜>",), close="<｜end▁of▁sentence｜>", thought=_BARE)
"""DeepSeek V3, V3.1 and the R1 distillations. V3.2 and V4 have no template that Hugging Face can render."""
GPT_OSS = Family(
    name="gpt-oss",
    marks=("<|channel|>", "<|call|>"),
    stops=("<|return|>", "<|call|>"),
    written=("<|end|>",),
    close="<|end|>",
    thought=Thought(
        opens="<|channel|>analysis<|message|>",
        closes="<|channel|>final<|message|>",
        cut="<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
)
"""gpt-oss, the harmony format."""
GLM = Family(
    name="glm",
    marks=("<|observation|>",),
    stops=("<|user|>", "<|observation|>", "<|endoftext|>"),
    headers=("<|user|>", "<|observation|>"),
    thought=_BARE,
)
"""GLM 4.5 to 4.7: the token that stops a turn is the header of the next."""
KIMI = Family(name="kimi", marks=("<|im_middle|>",), stops=("<|im_end|>", "[EOS]"), close="<|im_end|>", thought=_BARE)
"""Kimi K2."""
MINIMAX = Family(name="minimax", stops=("[e~[",), close="[e~[")
"""MiniMax M2."""
GEMMA = Family(name="gemma", stops=("<end_of_turn>", "<eos>"), close="<end_of_turn>", thought=None)
"""Gemma 2 and 3."""
GEMMA4 = Family(
    name="gemma4",
    marks=("<|tool_response>",),
    stops=("<turn|>", "<|tool_response>", "<eos>"),
    headers=("<|tool_response>",),
    close="<turn|>",
    thought=Thought(opens="<|channel>", closes="<channel|>", cut="\n<channel|>"),
)
"""Gemma 4: results stand within the turn that called, and the token that stops a call opens its result."""
PHI = Family(name="phi", marks=("<|assistant|>",), stops=("<|end|>", "<|endoftext|>"), close="<|end|>", thought=None)
"""Phi-3 and 3.5."""

FAMILIES: tuple[Family, ...] = (
    KIMI,
    QWEN,
    CHATML,
    LLAMA3,
    DEEPSEEK,
    GPT_OSS,
    GLM,
    MINIMAX,
    GEMMA,
    GEMMA4,
    MISTRAL,
    PHI,
)
"""What `find_family` chooses from, the first that fits being taken; all of ChatML ends turns as QWEN."""

_ASKED, _SAID = "probe asked", "probe said"
_CONVERSATION = (user(_ASKED), assistant(_SAID), user("probe asks more"))


def find_family(tokenizer: Tokenizer, template: ChatTemplate, *, families: Sequence[Family] = FAMILIES) -> Family:
    """The first of `families` whose turns end as this template ends them; else one made from how it ends them.

    Raises:
        ConfigError: the template refuses a plain conversation, or no control token tells where a turn ends.
    """
    ending, opening = _around(tokenizer, template)
    for family in families:
        fits = ending in (family.close, *family.headers) and all(mark in tokenizer.control for mark in family.marks)
        if ending and fits:
            return family
    if ending is None:
        raise ConfigError(
            "the chat template writes no control token after a turn, so nothing tells where one ends: give a "
            "chat_template whose turns end with a control token"
        )
    if ending == opening:
        return Family(name="default", stops=(ending,), headers=(ending,))
    return Family(name="default", stops=(ending,), close=ending)


def family_named(name: str, *, families: Sequence[Family] = FAMILIES) -> Family:
    """The family of that name.

    Raises:
        ConfigError: there is none; the message lists them.
    """
    for family in families:
        if family.name == name:
            return family
    names = ", ".join(["'auto'", *(repr(family.name) for family in families)])
    raise ConfigError(f"family must be one of {names}, or a Family, found {name!r}")


def _around(tokenizer: Tokenizer, template: ChatTemplate) -> tuple[str | None, str | None]:
    """The first control token written after an assistant's turn, and the last one before the first user message."""
    try:
        rendered = asking(template)(_CONVERSATION, True)
    except Exception as error:  # the template is the user's code, and refuses in its own words
        raise ConfigError(
            f"the chat template refuses a plain conversation (user, assistant, user): {type(error).__name__}: {error}"
        ) from error
    before, found, rest = rendered.partition(_SAID)
    if not found:
        raise ConfigError("the chat template does not write what an assistant message says")
    control = tokenizer.control
    after = [(rest.find(text), -len(text), text) for text in control if text in rest]
    head = before.partition(_ASKED)[0]
    ahead = [(head.rfind(text) + len(text), text) for text in control if text in head]
    return (min(after)[2] if after else None, max(ahead)[1] if ahead else None)
