"""The specimens: which vocabulary goes with which chat template, and what is real about the two."""

from collections.abc import Mapping

from attrs import field, frozen

from tests.vocabularies.vocabularies import SMOLLM2, VOCABULARIES


@frozen
class Specimen:
    """A tokenizer and a chat template that belong together.

    Attributes:
        name: what `load` takes.
        family: the line of models that it stands for.
        vocabulary: the name of its vocabulary.
        template: the file that its chat template is (".jinja") or is in (".gguf"), or the template itself.
        kwargs: what the template is rendered with besides messages and tools.
        note: what is not as with the model itself.
    """

    name: str
    family: str
    vocabulary: str
    template: str
    kwargs: Mapping[str, object] = field(factory=dict, converter=dict)
    note: str = ""

    @property
    def real_vocabulary(self) -> bool:
        """Whether the ids are the model's own; else they are another vocabulary's under its control tokens."""
        return VOCABULARIES[self.vocabulary].real

    def build(self) -> object:
        """The tokenizer, as `load` gives it."""
        from tests.vocabularies.loading import load

        return load(self.name)


_ON_QWEN, _ON_LLAMA, _ON_GEMMA_4 = (
    f"its control tokens on the vocabulary of {other}" for other in ("Qwen 3", "Llama 3", "Gemma 4")
)
_FROM_MEMORY = "the ids of its control tokens are from memory"
_NO_TOOLS = "the template knows no tools"
_LLAMA_CPP = "llama.cpp has changed the template, or written it"

# No control token at all stands between two turns but "</s>"; everything else is text.
_ZEPHYR = """\
{% for message in messages -%}
{{ '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' }}
{%- endfor -%}
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""

# In the order of their vocabularies: whoever goes through them loads each one once.
SPECIMENS: tuple[Specimen, ...] = (
    Specimen("qwen2.5", "qwen", "qwen2.5", "trl/qwen2_5.jinja"),
    Specimen("qwen3", "qwen", "qwen3", "trl/qwen3.jinja"),
    Specimen("qwen3-nothink", "qwen", "qwen3", "trl/qwen3.jinja", {"enable_thinking": False}),
    Specimen("qwen3-2507", "qwen", "qwen3", "trl/qwen3_instruct_2507.jinja"),
    Specimen("qwen3-training", "qwen", "qwen3", "trl/qwen3_training.jinja"),
    Specimen("qwen3-coder", "qwen", "qwen3", "llama.cpp/templates/Qwen3-Coder.jinja"),
    Specimen("qwq", "qwen", "qwen3", "llama.cpp/templates/Qwen-QwQ-32B.jinja"),
    Specimen("qwen3.5", "qwen", "qwen3.5", "trl/qwen3_5_think.jinja", note=_ON_QWEN),
    Specimen(
        "qwen3.5-nothink",
        "qwen",
        "qwen3.5",
        "trl/qwen3_5_think.jinja",
        {"enable_thinking": False},
        _ON_QWEN,
    ),
    Specimen("qwen3.6", "qwen", "qwen3.5", "trl/qwen3_6.jinja", note=_ON_QWEN),
    Specimen("qwen3.6-preserve", "qwen", "qwen3.5", "trl/qwen3_6.jinja", {"preserve_thinking": True}, _ON_QWEN),
    Specimen("r1-distill-qwen", "deepseek", "r1-qwen", "trl/deepseek_r1_distill.jinja"),
    Specimen("r1-distill-llama", "deepseek", "r1-llama", "trl/deepseek_r1_distill.jinja", note=_ON_LLAMA),
    Specimen("kimi-k2", "kimi", "kimi", "llama.cpp/templates/moonshotai-Kimi-K2.jinja", note=_ON_QWEN),
    Specimen("minimax-m2", "minimax", "minimax", "llama.cpp/templates/MiniMax-M2.jinja", note=_ON_QWEN),
    Specimen("llama3", "llama", "llama3", "trl/llama3.jinja", note=_NO_TOOLS),
    Specimen("llama3.1", "llama", "llama3", "trl/llama3_1.jinja"),
    Specimen("llama3.2", "llama", "llama3", "trl/llama3_2.jinja"),
    Specimen("llama3.3", "llama", "llama3", "llama.cpp/templates/meta-llama-Llama-3.3-70B-Instruct.jinja"),
    Specimen(
        "hermes3",
        "hermes",
        "hermes3",
        "llama.cpp/templates/NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja",
        note=f"{_FROM_MEMORY}; the template wants tools",
    ),
    Specimen("smollm3", "smollm", "smollm3", "llama.cpp/templates/HuggingFaceTB-SmolLM3-3B.jinja", note=_FROM_MEMORY),
    Specimen("glm-4.5", "glm", "glm", "trl/glm4moe.jinja", note=_ON_LLAMA),
    Specimen("glm-4.6", "glm", "glm", "llama.cpp/templates/GLM-4.6.jinja", note=_ON_LLAMA),
    Specimen("glm-4.7-flash", "glm", "glm", "llama.cpp/templates/GLM-4.7-Flash.jinja", note=_ON_LLAMA),
    Specimen("gpt-oss", "gpt-oss", "gpt-oss", "trl/gptoss.jinja"),
    Specimen(
        "deepseek-v3",
        "deepseek",
        "deepseek-v3",
        "trl/deepseekv3.jinja",
        note="the template ignores tools, and wants the arguments of a call as text",
    ),
    Specimen(
        "deepseek-v3.1",
        "deepseek",
        "deepseek-v3",
        "llama.cpp/templates/deepseek-ai-DeepSeek-V3.1.jinja",
        note=_LLAMA_CPP,
    ),
    Specimen(
        "deepseek-v3.2",
        "deepseek",
        "deepseek-v3",
        "llama.cpp/templates/deepseek-ai-DeepSeek-V3.2.jinja",
        note=_LLAMA_CPP,
    ),
    Specimen(
        "deepseek-v4", "deepseek", "deepseek-v4", "llama.cpp/templates/deepseek-ai-DeepSeek-V4.jinja", note=_LLAMA_CPP
    ),
    Specimen(
        "mistral-nemo", "mistral", "mistral-nemo", "llama.cpp/templates/mistralai-Mistral-Nemo-Instruct-2407.jinja"
    ),
    Specimen(
        "mistral-nemo-spm",
        "mistral",
        "mistral-v3",
        "llama.cpp/templates/mistralai-Mistral-Nemo-Instruct-2407.jinja",
        note="the template on the SentencePiece vocabulary of Mistral 7B v0.3",
    ),
    Specimen(
        "mistral-small-3.2", "mistral", "mistral-small", "llama.cpp/templates/Mistral-Small-3.2-24B-Instruct-2506.jinja"
    ),
    Specimen("zephyr", "zephyr", "mistral-v1", _ZEPHYR, note="a plain template in the manner of Zephyr"),
    Specimen("gemma2", "gemma", "gemma3", "trl/gemma.jinja", note=f"{_ON_GEMMA_4}; {_NO_TOOLS}"),
    Specimen("gemma3", "gemma", "gemma3", "trl/gemma3.jinja", note=f"{_ON_GEMMA_4}; {_NO_TOOLS}"),
    Specimen("gemma4", "gemma", "gemma4", "llama.cpp/templates/google-gemma-4-31B-it.jinja"),
    Specimen("gemma4-v5", "gemma", "gemma4", "trl/gemma4_v5.jinja"),
    Specimen("phi3.5", "phi", "phi3.5", "trl/phi3_5.jinja", note=_NO_TOOLS),
    Specimen("smollm2", "smollm", "smollm2", SMOLLM2, note=_NO_TOOLS),
)

# What no tokenizer can render: the sandbox of transformers refuses the template.
REJECTED: tuple[Specimen, ...] = (
    Specimen("kimi-k2-thinking", "kimi", "kimi", "llama.cpp/templates/Kimi-K2-Thinking.jinja", note=_ON_QWEN),
)


def specimen_named(name: str) -> Specimen:
    """The specimen of that name.

    Raises:
        KeyError: there is none; names those there are.
    """
    known = {specimen.name: specimen for specimen in (*SPECIMENS, *REJECTED)}
    if name not in known:
        raise KeyError(f"no specimen {name!r}; there are {', '.join(known)}")
    return known[name]
