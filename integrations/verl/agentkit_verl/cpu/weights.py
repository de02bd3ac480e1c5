"""Weights from trainer to rollout servers that do not share its process, through Ray's object store."""
# pyright: basic, reportMissingImports=false
# torch, Ray and verl are not installed where pyright runs.

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import ray
import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from agentkit_verl.cpu.settings import WEIGHTS


class _Mailbox:
    """Runs in a Ray actor: holds one delivery until all who expect it have taken it."""

    def __init__(self) -> None:
        self._delivery: asyncio.Future[Any] | None = None
        self._expected = 0

    async def expect(self, receivers: int) -> None:
        self._expected = receivers
        self._delivery = asyncio.get_running_loop().create_future()

    async def put(self, delivery: list[Any]) -> None:
        if self._delivery is None:
            raise RuntimeError("nobody expects weights: they were sent before the processes met")
        self._delivery.set_result(delivery)

    async def take(self) -> list[Any]:
        if self._delivery is None:
            raise RuntimeError("no weights are on their way: they were asked for before the processes met")
        found: list[Any] = await asyncio.shield(self._delivery)
        self._expected -= 1
        if not self._expected:
            self._delivery = None
        return found


@CheckpointEngineRegistry.register(WEIGHTS)
class MailboxEngine(CheckpointEngine):
    """A checkpoint engine of verl: `checkpoint_engine.backend=agentkit_cpu`. All weights travel as one delivery.

    Args:
        bucket_size: Taken for compatibility; nothing is cut into buckets.
        is_master: This is the trainer's first process, which sends.
    """

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._is_master = is_master
        self._mailbox: Any = ray.remote(_Mailbox).options(num_cpus=0).remote() if is_master else None

    def prepare(self) -> Any:
        """The mailbox, from the process that has it."""
        return self._mailbox

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Everybody learns of the mailbox that the first process made."""
        mailbox = next(found for found in metadata if found is not None)
        ray.get(mailbox.expect.remote(rollout_world_size))
        return {"mailbox": [mailbox] * actor_wg_world_size}, {"mailbox": [mailbox] * rollout_world_size}

    def init_process_group(self, mailbox: Any) -> None:
        """Keeps the mailbox."""
        self._mailbox = mailbox

    def finalize(self) -> None:
        """Nothing is held between deliveries."""

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        """Delivers the weights; other processes of the trainer only go through theirs, which they compute together."""
        found = [(name, value.detach().cpu().clone()) for name, value in weights if self._is_master]
        if self._is_master:
            await self._mailbox.put.remote(found)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """The delivery, once it is there."""
        for pair in await self._mailbox.take.remote():
            yield pair
