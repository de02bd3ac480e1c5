"""The policy, from nothing: a tokenizer, a transformer of 0.6 million weights, and a warm-up that ends half-way.

Demonstrations are trajectories of a script, so that the policy is shown the very tokens that it will see in training.
"""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from agentkit_hf import hf_renderer
from attrs import frozen
from sums import calculate, expert, make_tasks
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as bars

import agentkit as ak
from agentkit.models import ScriptedModel

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<tool_call>", "</tool_call>")
TEMPLATE = r"""
{%- if tools %}{{ '<|im_start|>system\n<tools>\n' }}
{%- for tool in tools %}{{ (tool | tojson) + '\n' }}{% endfor %}{{ '</tools><|im_end|>\n' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
PIECES = 600  # of the vocabulary at most; the bytes are 256 of them


@frozen
class WarmUp:
    """How it went: `success` is the share of tasks that the policy does at temperature 1, when the warm-up ended."""

    steps: int
    success: float
    seconds: float


@frozen
class Shown:
    """Conversations as tensors: ids, and 1 where the policy speaks. Both have a row for each."""

    ids: torch.Tensor
    mask: torch.Tensor

    def __getitem__(self, rows: torch.Tensor) -> "Shown":
        return Shown(self.ids[rows], self.mask[rows])


async def warm_up(
    folder: Path,
    *,
    seed: int = 0,
    target: float = 0.25,
    limit: float = 0.6,
    most_steps: int = 200,
    told: Callable[[int, float], None] = lambda steps, success: None,
) -> WarmUp:
    """Save a policy in `folder` that does `target` to `limit` of the tasks: enough to learn from, and much to learn.

    The change from nothing to everything is sudden, so that it is looked at after every second step.
    """
    began = time.monotonic()
    tokenizer = make_tokenizer(await written(make_tasks(64, seed=seed)))
    demonstrations = await shown(make_tasks(1500, seed=10_000 + seed), tokenizer)
    unseen = await shown(make_tasks(200, seed=20_000 + seed), tokenizer)
    torch.manual_seed(seed)
    model = make_model(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
    for step in range(1, most_steps + 1):
        batch = demonstrations[torch.randint(len(demonstrations.ids), (64,))]
        loss = -log_probs(model, batch).sum() / batch.mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 2:
            continue
        success = success_of(model, unseen)
        told(step, success)
        if success >= target:
            if success > limit:
                raise RuntimeError(f"the warm-up went past {limit:.0%}, to {success:.0%}: try another seed")
            bars.disable_progress_bar()
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            return WarmUp(step, success, time.monotonic() - began)
    raise RuntimeError(f"after {most_steps} steps the policy does not do {target:.0%} of the tasks: try another seed")


# --8<-- [start:success]
def success_of(model: LlamaForCausalLM, shown: Shown) -> float:
    """The share of conversations in which the policy would sample each token that the expert said, at temperature 1."""
    with torch.no_grad():
        return log_probs(model, shown).sum(dim=1).exp().mean().item()


# --8<-- [end:success]


def log_probs(model: LlamaForCausalLM, shown: Shown) -> torch.Tensor:
    """Of each token given those before it, 0 where the policy does not speak."""
    logits = model(input_ids=shown.ids[:, :-1]).logits
    chosen: torch.Tensor = logits.log_softmax(-1).gather(2, shown.ids[:, 1:, None])[..., 0]
    return chosen * shown.mask[:, 1:]


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Llama with two small layers and random weights; of a "qwen2" transformers would load a tokenizer of its own."""
    width = 128
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        initializer_range=width**-0.5,  # with transformers' 0.02 copying takes three times as long to learn
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def make_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE made of `texts`: a token for each digit, the control tokens of ChatML, a template with tools."""
    backend = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    phrases = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # pieces of several words: a third
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, phrases])  # of the tokens that words would take
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=PIECES, initial_alphabet=alphabet, special_tokens=list(CONTROL), show_progress=False
    )
    control = re.compile("|".join(map(re.escape, CONTROL + TAGS)))
    backend.train_from_iterator((piece for text in texts for piece in control.split(text)), trainer)
    backend.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )


async def demonstrate(tasks: Sequence[ak.Task], tokenizer: PreTrainedTokenizerFast) -> list[ak.Chain]:
    """What the expert says to `tasks`, in the policy's tokens."""
    policy = ScriptedModel(expert, renderer=hf_renderer(tokenizer))
    async with ak.Pool(ak.Agent(policy, tools=[calculate])) as pool:
        return [trajectory.chains[0] for trajectory in await pool.run(tasks)]


async def shown(tasks: Sequence[ak.Task], tokenizer: PreTrainedTokenizerFast) -> Shown:
    """Demonstrations to learn from."""
    chains = await demonstrate(tasks, tokenizer)
    longest = max(map(len, chains))
    ids = torch.full((len(chains), longest), tokenizer.pad_token_id)
    mask = torch.zeros(len(chains), longest)
    for row, chain in enumerate(chains):
        ids[row, : len(chain)] = torch.tensor(list(chain.token_ids))
        mask[row, : len(chain)] = torch.tensor(list(chain.response_mask), dtype=torch.float)
    return Shown(ids, mask)


async def written(tasks: Sequence[ak.Task]) -> list[str]:
    """Demonstrations as text, by way of a tokenizer that knows bytes alone."""
    tokenizer = make_tokenizer(())
    return [tokenizer.decode(list(chain.token_ids)) for chain in await demonstrate(tasks, tokenizer)]
