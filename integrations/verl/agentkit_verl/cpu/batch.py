"""Requests that are sampled together, one token each per step, over one growing cache."""
# pyright: basic, reportMissingImports=false
# torch and transformers' models are not installed where pyright runs.

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from attrs import define, field, frozen

from agentkit_verl.cpu.sampling import Sampling, sample


@define(eq=False)
class Row:
    """A request in the batch: `tokens` is its prompt with what was sampled after it."""

    tokens: list[int]
    sampling: Sampling
    sampled: int = 0
    generator: torch.Generator | None = None

    @classmethod
    def of(cls, prompt: Iterable[int], sampling: Sampling) -> Row:
        """A request that begins."""
        generator = None if sampling.seed is None else torch.Generator().manual_seed(sampling.seed)
        return cls(list(prompt), sampling, generator=generator)


@frozen
class Sampled:
    """What one step did for one row. `last`: it was the row's last token, and the row has left the batch."""

    row: Row
    token: int
    logprob: float
    version: int | None
    last: bool


@define(eq=False)
class Batch:
    """Steps a causal language model of transformers for all its rows at once. Not safe for threads.

    Rows join and leave between steps. A joining row's prompt is computed in the step in which it joins, together with
    those that join with it; all rows then share one cache, padded on the left. The model's attention must be over the
    whole context or a window of it: state-space layers keep no cache that rows could share this way.
    """

    model: Any
    vocabulary: int | None = None
    seed: int = 0
    most_rows: int = 256
    most_tokens: int = 8192
    """Tokens, padding counted, of the prompts that one step computes; a longer prompt is computed alone."""
    version: int | None = None
    """Which weights the model has: verl's `global_steps`."""
    _rows: list[Row] = field(factory=list, init=False)
    _waiting: deque[Row] = field(factory=deque, init=False)
    _cache: list[tuple[torch.Tensor, torch.Tensor]] = field(factory=list, init=False)
    _mask: torch.Tensor = field(factory=lambda: torch.zeros(0, 0, dtype=torch.long), init=False)
    _generator: torch.Generator = field(factory=torch.Generator, init=False)

    def __attrs_post_init__(self) -> None:
        self._generator.manual_seed(self.seed)

    def __len__(self) -> int:
        return len(self._rows) + len(self._waiting)

    def step(self, joins: Iterable[Row] = (), leaves: Collection[Row] = ()) -> list[Sampled]:
        """Lets rows in and out and samples a token for each row that has its turn; empty once there is none."""
        with torch.inference_mode():
            return self._step(joins, leaves)

    def _step(self, joins: Iterable[Row], leaves: Collection[Row]) -> list[Sampled]:
        self._waiting.extend(joins)
        if leaves:
            gone = set(map(id, leaves))
            self._waiting = deque(row for row in self._waiting if id(row) not in gone)
            self._keep([i for i, row in enumerate(self._rows) if id(row) not in gone])
        logits = [self._decode()] if self._rows else []
        if joining := self._admit():
            logits.append(self._prefill(joining))
        if not logits:
            return []
        tokens, logprobs = sample(
            torch.cat(logits),
            [row.sampling for row in self._rows],
            [row.generator for row in self._rows],
            self._generator,
            self.vocabulary,
        )
        found = []
        for row, token, logprob in zip(self._rows, tokens, logprobs, strict=True):
            row.tokens.append(token)
            row.sampled += 1
            last = token in row.sampling.stops or row.sampled >= row.sampling.limit
            found.append(Sampled(row, token, logprob, self.version, last))
        self._keep([i for i, one in enumerate(found) if not one.last])
        return found

    def load(self, weights: Mapping[str, torch.Tensor], version: int | None = None) -> None:
        """Replaces weights, in place. What rows have in the cache came from the old ones and is computed again.

        Raises:
            ValueError: The model has no such weight, or it has another shape. Nothing has been replaced.
        """
        mine = self.model.state_dict(keep_vars=True)
        for name, value in weights.items():
            if name not in mine:
                raise ValueError(f"the model has no weight {name!r}; it has {', '.join(sorted(mine)[:3])}, ...")
            if mine[name].shape != value.shape:
                raise ValueError(f"weight {name!r} is {list(value.shape)}, the model's is {list(mine[name].shape)}")
        with torch.no_grad():
            for name, value in weights.items():
                mine[name].copy_(value)
        self.version = version if version is not None else self.version
        self._waiting.extendleft(reversed(self._rows))
        self._rows = []
        self._keep([])

    def clear(self) -> None:
        """Forgets all rows."""
        self._waiting.clear()
        self._rows = []
        self._keep([])

    def _admit(self) -> list[Row]:
        joining: list[Row] = []
        longest = 0
        while self._waiting and len(self._rows) + len(joining) < self.most_rows:
            longest = max(longest, len(self._waiting[0].tokens))
            if joining and longest * (len(joining) + 1) > self.most_tokens:
                break
            joining.append(self._waiting.popleft())
        return joining

    def _decode(self) -> torch.Tensor:
        """Logits after the newest token of each row that is in the cache."""
        newest = torch.tensor([[row.tokens[-1]] for row in self._rows])
        self._mask = torch.cat([self._mask, torch.ones(len(self._rows), 1, dtype=torch.long)], dim=1)
        logits, self._cache = self._forward(newest, self._mask, self._mask.sum(1, keepdim=True) - 1, self._cache)
        return logits

    def _prefill(self, joining: list[Row]) -> torch.Tensor:
        """Logits after each joining row's tokens; the rows are in the cache then."""
        length = max(len(row.tokens) for row in joining)
        tokens = torch.zeros(len(joining), length, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for i, row in enumerate(joining):
            tokens[i, length - len(row.tokens) :] = torch.tensor(row.tokens)
            mask[i, length - len(row.tokens) :] = 1
        logits, cache = self._forward(tokens, mask, (mask.cumsum(1) - 1).clamp(min=0), [])
        if self._rows:
            width = max(length, self._mask.shape[1])
            self._mask = torch.cat([_padded(self._mask, width, 1), _padded(mask, width, 1)])
            self._cache = [
                tuple(torch.cat([_padded(a, width, 2), _padded(b, width, 2)]) for a, b in zip(old, new, strict=True))
                for old, new in zip(self._cache, cache, strict=True)
            ]
        else:
            self._mask, self._cache = mask, cache
        self._rows += joining
        return logits

    def _forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: list[Any]
    ) -> tuple[torch.Tensor, list[Any]]:
        from transformers import DynamicCache

        past: Any = DynamicCache()
        for index, (keys, values) in enumerate(cache):
            past.update(keys, values, index)
        out = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=past,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1], [(layer.keys, layer.values) for layer in past.layers]

    def _keep(self, kept: list[int]) -> None:
        """Leaves these rows in the cache, without the padding that none of them needs."""
        if len(kept) == self._mask.shape[0]:
            return
        self._rows = [self._rows[i] for i in kept]
        if not kept:
            self._cache = []
            self._mask = torch.zeros(0, 0, dtype=torch.long)
            return
        mask = self._mask[kept]
        start = self._mask.shape[1] - int(mask.sum(1).max())
        self._mask = mask[:, start:]
        self._cache = [(keys[kept, :, start:], values[kept, :, start:]) for keys, values in self._cache]


def _padded(tensor: torch.Tensor, width: int, dim: int) -> torch.Tensor:
    """`tensor` with zeros before it along `dim`, up to `width`."""
    missing = width - tensor.shape[dim]
    if not missing:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = missing
    return torch.cat([tensor.new_zeros(shape), tensor], dim=dim)
