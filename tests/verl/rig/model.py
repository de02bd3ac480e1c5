"""A language model small enough for tests: a real tokenizer and a Qwen2 of two layers, random or taught for seconds."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CONTEXT = 2048
TEMPLATE = """\
{%- if tools -%}
<|im_start|>system
{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}

{% endif %}Tools:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if not (tools and loop.first and message['role'] == 'system') -%}
<|im_start|>{{ message['role'] }}
{{ message['content'] or '' }}
{%- for call in message['tool_calls'] or [] %}
{%- set arguments = call['function']['arguments'] %}
{{- '\\n' if message['content'] or not loop.first }}<tool_call>
{"name": "{{ call['function']['name'] }}", "arguments": {{ arguments if arguments is string else arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""
"""ChatML with tools, in the shape of Qwen's."""

CORPUS = (
    "system user assistant tool You are a helpful assistant. What is 1 + 2? The answer is 3.",
    '<tool_call>\n{"name": "bash", "arguments": {"command": "echo 1"}}\n</tool_call>',
    '{"type": "function", "function": {"name": "bash", "description": "", "parameters": {"type": "object"}}}',
)


def make_model(folder: Path, *, hidden: int = 64, seed: int = 0) -> Path:
    """Writes a random model of about 100 000 parameters; `folder` once more. Takes about a second."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces.train_from_iterator(CORPUS * 20, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = TEMPLATE
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def teach(folder: Path, examples: Sequence[tuple[str, str]], *, steps: int, rate: float = 3e-3) -> float:
    """Trains the model of `folder` to answer each prompt with its reply: the mean loss of the last step, in nats.

    Prompts and replies are texts of the template; control tokens in them are read as such.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)  # several wait for each other longer than so small a model takes
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = []
    for prompt, reply in examples:
        before = tokenizer.encode(prompt, add_special_tokens=False)
        after = tokenizer.encode(reply, add_special_tokens=False)
        rows.append((before + after, [-100] * len(before) + after))
    width = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows])
    labels = torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in rows])
    mask = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in rows])
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    loss = 0.0
    for _ in range(steps):
        out = model(input_ids=ids, attention_mask=mask, labels=labels)
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
        loss = float(out.loss.detach())
    model.save_pretrained(folder)
    return loss


def cached(name: str, make: Callable[[Path], object]) -> Path:
    """A folder that `make` has filled, kept between runs of the tests until something here changes."""
    root = Path(__file__).parents[3] / "build" / "verl-models"
    sources = b"".join(Path(__file__).with_name(f"{module}.py").read_bytes() for module in ("model", "shell"))
    folder = root / f"{name}-{hashlib.sha256(sources).hexdigest()[:8]}"
    if not folder.exists():
        root.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=root, prefix=f".{name}-"))
        make(fresh)
        try:
            fresh.rename(folder)
        except OSError:  # somebody else was faster
            shutil.rmtree(fresh)
    return folder
