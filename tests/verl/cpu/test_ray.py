"""The server in its Ray actor, behind verl's own client and replica."""

import asyncio

import pytest
import ray
from agentkit_verl.cpu import environment

from tests.verl.rig import local_ray

PROMPT = [5, 9, 40, 33, 7]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """verl's server manager, with one server, in a Ray of its own."""
    import os
    from pathlib import Path

    import verl
    from agentkit_verl.cpu import plugin  # noqa: F401  # what verl's processes load by its name
    from hydra import compose, initialize_config_dir
    from verl.workers.rollout.llm_server import LLMServerManager

    from tests.verl.rig.model import cached, make_model

    wanted = environment({"PATH": os.environ["PATH"]})
    env = {name: wanted[name] for name in ("VERL_USE_EXTERNAL_MODULES", "OMP_NUM_THREADS")}
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer/config"), version_base=None):
        rollout = "actor_rollout_ref.rollout"
        config = compose(
            "ppo_trainer",
            overrides=[
                f"actor_rollout_ref.model.path={cached('random', make_model)}",
                f"{rollout}.name=agentkit_cpu",
                f"{rollout}.prompt_length=64",
                f"{rollout}.response_length=32",
                f"{rollout}.tensor_model_parallel_size=1",
                f"{rollout}.nnodes=1",
                f"{rollout}.n_gpus_per_node=1",
                f"{rollout}.dtype=float32",
                f"+{rollout}.engine_kwargs.agentkit_cpu.most_rows=7",
            ],
        )
    with local_ray(env=env):
        yield LLMServerManager.create(config=config)


@pytest.fixture
def server(servers):
    return servers.server_handles[0]


async def until(server, name, least):
    async with asyncio.timeout(60):
        while (found := (await server.get_state.remote())[name]) < least:
            await asyncio.sleep(0.02)
    return found


async def test_verls_client_gets_replies(servers, server):
    client = servers.get_client()
    before = await server.get_state.remote()
    params = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "repetition_penalty": 1.0,
        "logprobs": True,
        "max_tokens": 6,
    }
    found = await asyncio.gather(
        *(client.generate(f"s{i}", prompt_ids=PROMPT, sampling_params=dict(params)) for i in range(20))
    )
    assert all(1 <= len(one.token_ids) == len(one.log_probs) <= 6 for one in found)
    assert {one.stop_reason for one in found} == {"completed"}
    after = await server.get_state.remote()
    assert after["calls"] - before["calls"] == 20
    assert after["largest_batch"] <= 7  # engine_kwargs reach it


async def test_a_cancelled_call_stops_what_it_began(server):
    before = await server.get_state.remote()
    call = server.generate.remote(PROMPT, {"max_tokens": 2000, "ignore_eos": True}, "long")
    await until(server, "generated", before["generated"] + 5)
    ray.cancel(call)
    await until(server, "cancelled", before["cancelled"] + 1)
    with pytest.raises(ray.exceptions.RayError):
        await call
    await server.wait_for_requests_to_drain.remote()
    after = await server.get_state.remote()
    await asyncio.sleep(0.3)
    assert (await server.get_state.remote())["generated"] == after["generated"] < before["generated"] + 2000


async def test_a_replica_aborts_and_resumes(servers, server):
    replica = servers.get_replicas()[0]
    before = await server.get_state.remote()
    call = server.generate.remote(PROMPT, {"max_tokens": 2000, "ignore_eos": True}, "long")
    await until(server, "generated", before["generated"] + 5)
    await replica.abort_all_requests()
    found = await call
    assert found.stop_reason == "aborted"
    assert 0 < len(found.token_ids) < 2000
    waiting = server.generate.remote(PROMPT, {"max_tokens": 3, "ignore_eos": True}, "short")
    await until(server, "parked", 1)
    await replica.sleep()
    await replica.resume_generation()
    assert len((await waiting).token_ids) == 3
    call = server.generate.remote(PROMPT, {"max_tokens": 2000, "ignore_eos": True}, "again")
    await until(server, "running", 1)
    assert await replica.abort_request("again") == {"aborted": True, "request_id": "again"}
    assert (await call).stop_reason == "aborted"


async def test_a_request_goes_on_after_a_gate_that_rejects(servers, server):
    """verl's client for asynchronous training asks again, with what it has."""
    from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

    client = servers.get_client(FullyAsyncLLMServerClient)
    replica = servers.get_replicas()[0]
    before = await server.get_state.remote()
    params = {"max_tokens": 900, "ignore_eos": True, "logprobs": True}
    await server.set_global_steps.remote(7)
    task = asyncio.ensure_future(client.generate("s", prompt_ids=PROMPT, sampling_params=params))
    await until(server, "generated", before["generated"] + 20)
    await replica.abort_all_requests(reject_request=True)
    await server.set_global_steps.remote(8)
    await replica.resume_generation()
    async with asyncio.timeout(60):
        found = await task
    assert len(found.token_ids) == len(found.log_probs) == 900
    assert (found.extra_fields["min_global_steps"], found.extra_fields["max_global_steps"]) == (7, 8)
