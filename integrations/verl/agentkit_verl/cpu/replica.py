"""The rollout server among verl's replicas, and what hands it new weights."""
# pyright: basic, reportMissingImports=false
# torch, Ray and verl are not installed where pyright runs.

from __future__ import annotations

import os
from typing import Any

import ray
from verl.utils.fs import copy_to_local
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica
from verl.workers.rollout.utils import ensure_async_iterator

from agentkit_verl.cpu.server import CPUServer
from agentkit_verl.cpu.settings import ROLLOUT


def server_name(rank: int, suffix: str = "") -> str:
    """What the Ray actor of replica `rank` is called."""
    return f"{ROLLOUT}_server_{rank}{suffix}"


class CPUReplica(RolloutReplica):
    """One server, in an actor of its own, which claims neither a CPU nor a GPU of Ray."""

    async def init_standalone(self) -> None:
        """Without a trainer beside it: workers that take weights are needed only where there are weights to take."""
        if self.config.checkpoint_engine.backend == "naive":
            await self.launch_servers()
        else:
            await super().init_standalone()

    async def launch_servers(self) -> None:
        """Starts the server.

        Raises:
            ValueError: The model is to be spread over several processes.
        """
        if self.world_size != 1:
            raise ValueError(f"a replica of {ROLLOUT} is one process; its parallel sizes multiply to {self.world_size}")
        kind = "_reward" if self.is_reward_model else "_teacher" if self.is_teacher_model else ""
        name = server_name(self.replica_rank, kind + self.name_suffix)
        settings = {"most_rows": min(self.config.max_num_seqs, 256)} | dict(
            self.config.engine_kwargs.get(ROLLOUT) or {}
        )
        server = (
            ray.remote(CPUServer)
            .options(name=name, num_cpus=0, max_concurrency=self.max_concurrency)
            .remote(
                copy_to_local(self.model_config.path),
                prompt_length=self.config.prompt_length,
                response_length=self.config.response_length,
                context=self.config.max_model_len,
                dtype=self.config.dtype,
                seed=self.config.seed + self.replica_rank,
                trust_remote_code=bool(self.model_config.get("trust_remote_code", False)),
                **settings,
            )
        )
        await server.get_state.remote()  # it is up, or says why not
        self.servers, self._server_handle, self._server_address = [server], server, name

    async def abort_request(self, request_id: str) -> dict[str, Any]:
        """Lets a request return what it has."""
        found: dict[str, Any] = await self.servers[0].abort_request.remote(request_id)
        return found


class CPUWeightAdapter(BaseRollout):
    """Stands beside the trained model, or beside what receives its weights, and loads them into the server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1, **kwargs: Any) -> None:
        super().__init__(config, model_config, device_mesh, **kwargs)
        self.replica_rank = int(os.environ.get("RANK", "0")) if replica_rank == -1 else replica_rank
        self.is_leader_rank = True
        self._server: Any = None

    async def resume(self, tags: list[str]) -> None:
        """Nothing was released."""

    async def release(self) -> None:
        """Nothing to release."""

    async def update_weights(
        self, weights: Any, wire_format: str = "named_tensors", global_steps: int | None = None, **_: Any
    ) -> None:
        """Loads whole weights, all at once, as version `global_steps`.

        Raises:
            ValueError: They come in another form.
        """
        if wire_format != "named_tensors":
            raise ValueError(f"{ROLLOUT} takes whole weights, not {wire_format!r}")
        found = {name: value.detach().cpu().clone() async for name, value in ensure_async_iterator(weights)}
        if self._server is None:  # it starts after this adapter
            self._server = ray.get_actor(server_name(self.replica_rank))
        await self._server.load_weights.remote(found, global_steps)
