"""What verl, and a cancelled rollout, may ask of the server."""

import asyncio
import threading
import time

import pytest
import torch
from agentkit_verl.cpu.server import CPUServer

PROMPT = [5, 9, 40, 33, 7]
LONG = {"temperature": 1.0, "max_tokens": 1500, "ignore_eos": True, "logprobs": True}


@pytest.fixture
async def server(model_folder):
    server = CPUServer(str(model_folder), prompt_length=64, response_length=32)
    yield server
    await server.abort_all_requests()
    server._engine.close()


def start(server, name, params=LONG, prompt=PROMPT):
    return asyncio.ensure_future(server.generate(prompt, dict(params), name))


async def until(condition, seconds=20):
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.005)


def sampling(server, tokens):
    """Until the server has sampled so many."""

    async def enough():
        return (await server.get_state())["generated"] >= tokens

    return until(enough)


async def still(server):
    """That nothing more is sampled."""
    await server.wait_for_requests_to_drain()
    before = (await server.get_state())["generated"]
    await asyncio.sleep(0.2)
    assert (await server.get_state())["generated"] == before


async def test_a_reply(server):
    found = await server.generate(PROMPT, {"temperature": 0, "max_tokens": 5, "logprobs": True}, "a")
    assert len(found.token_ids) == len(found.log_probs) == 5
    assert found.stop_reason == "completed"
    assert found.extra_fields == {"global_steps": None, "min_global_steps": None, "max_global_steps": None}
    again = await server.generate(PROMPT, {"temperature": 0, "max_tokens": 5, "logprobs": False}, "a")
    assert again.token_ids == found.token_ids
    assert again.log_probs is None


async def test_limits(server):
    ids = [7] * 80
    found = await server.generate(ids, {"ignore_eos": True}, "a")
    assert len(found.token_ids) == 64 + 32 - 80  # what a prompt has beyond its length is the response's loss
    found = await server.generate([7] * 2040, {"ignore_eos": True, "max_tokens": 100}, "a")
    assert len(found.token_ids) == 8  # the model's context
    with pytest.raises(ValueError, match="the prompt has 2048 tokens: of the model's 2048 none is left"):
        await server.generate([7] * 2048, {}, "a")
    with pytest.raises(ValueError, match="the prompt is empty"):
        await server.generate([], {}, "a")
    with pytest.raises(ValueError, match="reads text alone"):
        await server.generate(PROMPT, {}, "a", image_data=[object()])


async def test_requests_that_are_there_together_share_steps(server):
    params = {"ignore_eos": True, "max_tokens": 20}
    found = await asyncio.gather(*(server.generate(PROMPT, dict(params), f"r{i}") for i in range(40)))
    state = await server.get_state()
    assert all(len(one.token_ids) == 20 for one in found)
    assert state["largest_batch"] == 40
    assert state["steps"] <= 25
    assert state["generated"] == 800
    assert state["completed"] == state["calls"] == 40


async def test_an_aborted_request_returns_what_it_has(server):
    kept, other = start(server, "a"), start(server, "b", LONG | {"max_tokens": 150})
    await sampling(server, 20)
    assert await server.abort_request("a") == {"aborted": True, "request_id": "a"}
    found = await kept
    assert found.stop_reason == "aborted"
    assert 5 <= len(found.token_ids) == len(found.log_probs) < 150
    assert len((await other).token_ids) == 150
    assert (await server.abort_request("a"))["aborted"] is False
    assert (await server.get_state())["aborted"] == 1


async def test_a_cancelled_request_is_sampled_no_further(server):
    task = start(server, "a")
    await sampling(server, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await still(server)
    state = await server.get_state()
    assert (state["cancelled"], state["running"]) == (1, 0)
    assert state["generated"] < 1000
    assert len((await server.generate(PROMPT, {"max_tokens": 3, "ignore_eos": True}, "a")).token_ids) == 3


async def test_requests_wait_behind_a_closed_gate(server):
    running = start(server, "a")
    await sampling(server, 10)
    assert await server.abort_all_requests() == {"aborted_count": 1, "request_ids": ["a"]}
    assert (await running).stop_reason == "aborted"
    waiting = start(server, "b", {"max_tokens": 4, "ignore_eos": True})
    await still(server)
    assert not waiting.done()
    assert (await server.get_state())["parked"] == 1
    await server.resume_generation()
    assert len((await waiting).token_ids) == 4


async def test_a_rejecting_gate_hands_requests_back(server):
    await server.abort_all_requests()
    waiting = start(server, "a")
    await asyncio.sleep(0)
    await server.abort_all_requests(reject_request=True)
    for found in (await waiting, await server.generate(PROMPT, dict(LONG), "b")):
        assert (found.stop_reason, found.token_ids) == ("aborted", [])
    await server.abort_all_requests()  # one that does not reject lets them wait again
    waiting = start(server, "c", {"max_tokens": 2, "ignore_eos": True})
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await server.resume_generation()
    assert len((await waiting).token_ids) == 2


async def test_one_that_waits_can_be_aborted_and_cancelled(server):
    await server.abort_all_requests()
    first, second = start(server, "a"), start(server, "b")
    await asyncio.sleep(0)
    assert (await server.abort_request("a"))["aborted"] is True
    assert (await first).token_ids == []
    second.cancel()
    await asyncio.wait([second])
    assert (await server.get_state())["parked"] == 0
    await server.resume_generation()
    await still(server)
    assert (await server.get_state())["generated"] == 0


async def test_versions_of_weights_that_come_while_it_runs(server, load_model):
    await server.set_global_steps(3)
    task = start(server, "a", LONG | {"max_tokens": 300})
    await sampling(server, 20)
    assert await server.load_weights(load_model().state_dict(), 4) > 10
    found = await task
    assert found.extra_fields == {"global_steps": 4, "min_global_steps": 3, "max_global_steps": 4}
    assert len(found.token_ids) == 300
    fresh = await server.generate(PROMPT, {"max_tokens": 2}, "b")
    assert fresh.extra_fields["min_global_steps"] == 4


async def test_new_weights_are_sampled_from(server, load_model):
    greedy = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
    before = await server.generate(PROMPT, dict(greedy), "a")
    changed = {name: torch.randn_like(value) for name, value in load_model().named_parameters()}
    await server.load_weights(changed)
    after = await server.generate(PROMPT, dict(greedy), "a")
    assert after.token_ids != before.token_ids
    with pytest.raises(ValueError, match="no weight 'x'"):
        await server.load_weights({"x": torch.zeros(1)})


async def test_two_requests_of_one_name(server):
    task = start(server, "a")
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="request 'a' is under way already"):
        await server.generate(PROMPT, {}, "a")
    await server.abort_request("a")
    await task


async def test_a_failing_model_fails_its_requests_and_no_later_one(server, monkeypatch):
    batch = server._engine.batch
    whole = batch.model

    def broken(**_):
        raise FloatingPointError("no such number")

    batch.model = broken
    tasks = [start(server, name) for name in "ab"]
    for found in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(found, RuntimeError)
        assert str(found) == "the model failed: FloatingPointError: no such number"
    batch.model = whole
    assert len((await server.generate(PROMPT, {"max_tokens": 3, "ignore_eos": True}, "c")).token_ids) == 3


async def test_the_loop_goes_on_while_the_model_computes(server, monkeypatch):
    whole = server._engine.batch.model
    threads = set()

    def slow(**inputs):
        threads.add(threading.current_thread())
        time.sleep(0.3)
        return whole(**inputs)

    server._engine.batch.model = slow
    task = start(server, "a", LONG | {"max_tokens": 3})
    await asyncio.sleep(0.02)
    began = time.monotonic()
    assert (await server.get_state())["running"] == 1
    await asyncio.sleep(0.01)
    assert time.monotonic() - began < 0.25
    await task
    assert threading.current_thread() not in threads


async def test_requests_come_and_go_at_random(server):
    """Whatever happens to them: each is answered with a whole reply, a part of one or its cancellation."""
    import random

    rng = random.Random(4)

    async def one(index, fates):
        fate = rng.choice(fates)
        limit = rng.randint(1, 60) if fate == "whole" else rng.randint(80, 160)
        task = start(server, f"r{index}", {"max_tokens": limit, "ignore_eos": True, "logprobs": True})
        await asyncio.sleep(rng.random() * 0.1)
        if fate == "abort":
            await server.abort_request(f"r{index}")
        elif fate == "cancel":
            task.cancel()
        elif fate == "pause":
            await server.abort_all_requests()
            await server.resume_generation()
        try:
            found = await task
        except asyncio.CancelledError:
            return "cancelled"
        assert len(found.token_ids) == len(found.log_probs)
        if found.stop_reason == "completed":
            assert len(found.token_ids) == limit
        else:
            assert len(found.token_ids) < limit
        return found.stop_reason

    fates = []
    async with asyncio.timeout(60):
        for wave in range(4):
            others = ["whole", "abort", "cancel"] + ["pause"] * (wave > 1)
            fates += await asyncio.gather(*(one(100 * wave + i, others) for i in range(20)))
        await still(server)
    state = await server.get_state()
    assert {"completed", "aborted", "cancelled"} <= set(fates)
    assert (state["running"], state["parked"], state["paused"]) == (0, 0, False)
    ended = {name: state[name] for name in ("completed", "aborted", "cancelled")}
    assert sum(ended.values()) == state["calls"] == len(fates)
    # a call may be cancelled when its request has just ended in another way
    assert all(ended[name] >= fates.count(name) for name in ("completed", "aborted"))
    assert len(server._engine.batch) == 0
    assert not server._engine._requests
