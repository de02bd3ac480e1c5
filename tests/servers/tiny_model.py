"""tiny_model.py FOLDER: a Qwen2 model of half a million random weights, with a tokenizer and a chat template.

Seeded, so the same Python makes the same model. The tokenizer is trained on the sources of Python's standard library.
"""

import json
import sys
import sysconfig
from pathlib import Path

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED = ("<tool_call>", "</tool_call>")  # control tokens that the tokenizer does not call special, as in real families
WINDOW = 4096
CHAT_TEMPLATE = r"""
{%- macro turn(role, content) %}{{ '<|im_start|>' + role + '\n' + content + '<|im_end|>\n' }}{% endmacro %}
{%- macro call(function) %}
{{- '\n<tool_call>\n{"name": ' + (function.name | tojson) + ', "arguments": ' }}
{{- (function.arguments if function.arguments is string else function.arguments | tojson) + '}\n</tool_call>' }}
{%- endmacro %}
{%- set said = messages[0].content if messages[0].role == 'system' else '' %}
{%- set listed = '\n' + (tools | map('tojson') | join('\n')) if tools else '' %}
{%- if said or listed %}{{ turn('system', said + listed) }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|im_start|>assistant\n' + (message.content or '') }}
{%- for each in message.tool_calls or [] %}{{ call(each.function) }}{% endfor %}{{ '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- elif message.role == 'user' or not loop.first %}{{ turn(message.role, message.content) }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""


def make(folder: Path) -> None:
    """Write the model into `folder`."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=list(SPECIAL), initial_alphabet=alphabet)
    bpe.train_from_iterator((source.read_text(errors="replace") for source in sources), trainer)
    bpe.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHAT_TEMPLATE.strip(),
        model_max_length=WINDOW,
    )
    tokenizer.save_pretrained(folder)

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=2048,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=WINDOW,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
        dtype="float32",
    )
    model = Qwen2ForCausalLM(config).to(torch.float32)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.15)  # wide enough that the next token is no coin toss over all of them
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    (folder / "made.json").write_text(json.dumps({"python": sys.version}))  # last: says that the rest is whole


if __name__ == "__main__":
    make(Path(sys.argv[1]))
