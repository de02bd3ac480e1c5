"""Generations over verl's own clients, load balancer and servers in Ray: how they end, and what is left of them."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from agentkit_hf import hf_renderer
from agentkit_verl.calls import Call, Caller
from agentkit_verl.model import TAKEN, ServerModel, Taken
from agentkit_verl.pauses import Pauses, find_board, put_up_board
from transformers import AutoTokenizer
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from agentkit import Agent, Budget, ExitReason, OutcomePolicy, Task, Trajectory
from agentkit.errors import ModelError
from agentkit.parsing import HermesParser
from agentkit.protocols import SpanKind
from tests.verl.rig.model import cached, make_model
from tests.verl.rig.ray import local_ray

PROMPT, RESPONSE = 256, 1500
GREEDY = {"temperature": 0, "logprobs": True, "ignore_eos": True}
"""Of the model's most likely tokens none ends an answer."""
CONFIG = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(name="agentkit_cpu")))


class Cluster:
    """A server that takes 5 ms a token, and verl's balancer before it."""

    def __init__(self) -> None:
        self.folder = cached("random", make_model)
        self.renderer = hf_renderer(AutoTokenizer.from_pretrained(self.folder))
        self.server = _slow_server().remote(str(self.folder), prompt_length=PROMPT, response_length=RESPONSE)
        self.balancer = balancer_of(self.server)
        self.board = put_up_board()
        ray.get(self.server.get_state.remote())

    def client(self, kind: type = LLMServerClient) -> Any:
        return kind(CONFIG, self.balancer)

    def agent(self, model: ServerModel, *, params: Any = GREEDY, max_tokens: int = 2000, **budget: Any) -> Agent:
        return Agent(
            model,
            renderer=self.renderer,
            parser=HermesParser(),
            params=params,
            budget=Budget(max_tokens=max_tokens, **budget),
            outcomes=OutcomePolicy(retries=0),
            model_retries=0,
        )

    async def state(self) -> dict[str, Any]:
        return await self.server.get_state.remote()  # type: ignore[no-any-return]

    async def sampled(self, count: int) -> None:
        """Until the server has sampled so many more."""
        before = (await self.state())["generated"]
        await until(lambda: self._has(before + count))

    async def _has(self, count: int) -> bool:
        return bool((await self.state())["generated"] >= count)

    async def _idle(self) -> bool:
        return bool((await self.state())["running"] == 0)

    async def check_still(self) -> int:
        """Nothing runs, nothing more is sampled, nothing is held against the server: how much was sampled in all."""
        await until(self._idle)
        await self.server.wait_for_requests_to_drain.remote()  # for a step in which nobody takes part any more
        before = (await self.state())["generated"]
        await asyncio.sleep(0.1)
        assert (await self.state())["generated"] == before
        await until(lambda: in_flight_is_zero(self.balancer))
        return int(before)


def balancer_of(server: Any) -> Any:
    return ray.remote(GlobalRequestLoadBalancer).options(num_cpus=0).remote(servers={"s": server})


async def in_flight_is_zero(balancer: Any) -> bool:
    return await balancer.get_total_inflight.remote() == 0


def _slow_server() -> Any:
    from agentkit_verl.cpu.server import CPUServer

    class SlowServer(CPUServer):  # within a function, so that it travels by value
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            model = self._engine.batch.model
            forward = model.forward

            def slow(**inputs: Any) -> Any:
                import time

                time.sleep(0.005)
                return forward(**inputs)

            model.forward = slow

    return ray.remote(SlowServer).options(num_cpus=0, max_concurrency=1000)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with local_ray(cpus=4):
        yield Cluster()


def model_of(client: Any, pauses: Pauses | None = None, *, response: int = RESPONSE) -> ServerModel:
    return ServerModel(client, prompt_length=PROMPT, response_length=response, window=2000, pauses=pauses)


def sampled(trajectory: Trajectory) -> list[tuple[int, float]]:
    """(id, log-probability) of what the record says was sampled."""
    return [
        (token, logprob)
        for chain in trajectory.chains
        for token, logprob, mask in zip(chain.ids, chain.logprobs, chain.response_mask, strict=True)
        if mask
    ]


KINDS = pytest.mark.parametrize("kind", [LLMServerClient, FullyAsyncLLMServerClient])


@KINDS
async def test_a_whole_generation(cluster: Cluster, kind: type) -> None:
    model = model_of(cluster.client(kind))
    before = (await cluster.state())["generated"]
    trajectory = await cluster.agent(model, max_tokens=120, max_turns=1).run(Task("t", "Hello."))
    said = sampled(trajectory)
    assert len(said) == (await cluster.check_still()) - before == 120 - trajectory.turns[0].start
    assert all(logprob < 0 for _, logprob in said)
    assert trajectory.error is None


@KINDS
@pytest.mark.parametrize("limit", ["generation_s", "trajectory_s"])
async def test_a_deadline_ends_the_servers_work_and_keeps_what_was_sampled(
    cluster: Cluster, kind: type, limit: str
) -> None:
    agent = cluster.agent(model_of(cluster.client(kind)), **{limit: 1.0})
    before, began = (await cluster.state())["generated"], time.monotonic()
    trajectory = await agent.run(Task("t", "Hello."))
    assert time.monotonic() - began < 5.0
    timeouts = {"generation_s": ExitReason.GENERATION_TIMEOUT, "trajectory_s": ExitReason.TRAJECTORY_TIMEOUT}
    assert trajectory.exit_reason is timeouts[limit]
    said = sampled(trajectory)
    done = (await cluster.check_still()) - before
    assert 0 < len(said) < RESPONSE // 2
    assert done - 1 <= len(said) <= done  # a token that was computed when the request left is the server's
    assert all(logprob < 0 for _, logprob in said)


@KINDS
@pytest.mark.parametrize("cancels", [1, 2, 3])
async def test_a_native_cancel_ends_the_servers_work(cluster: Cluster, kind: type, cancels: int) -> None:
    task = asyncio.create_task(cluster.agent(model_of(cluster.client(kind))).run(Task("t", "Hello.")))
    await cluster.sampled(20)
    began = time.monotonic()
    for _ in range(cancels):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    await cluster.check_still()
    assert time.monotonic() - began < 5.0


async def test_a_cancel_before_a_server_was_found_asks_none(cluster: Cluster) -> None:
    before = (await cluster.state())["calls"]
    task = asyncio.create_task(cluster.agent(model_of(cluster.client())).run(Task("t", "Hello.")))
    for _ in range(8):  # into the question which server
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await cluster.check_still()
    assert (await cluster.state())["calls"] <= before + 1


# weights that are exchanged while a generation is under way


@asynccontextmanager
async def paused(cluster: Cluster, seconds: float, version: int) -> AsyncIterator[None]:
    """As a trainer does it: interrupt all, exchange, go on."""
    await cluster.server.abort_all_requests.remote()
    await cluster.server.set_global_steps.remote(version)
    yield
    await asyncio.sleep(seconds)
    await cluster.server.resume_generation.remote()


async def with_sync(cluster: Cluster, seconds: float, pauses: Pauses | None, board: Any = None, **budget: Any) -> Any:
    """A generation of 200 tokens with a sync in its middle: (trajectory, taken, versions)."""
    await cluster.server.set_global_steps.remote(5)
    model = model_of(cluster.client(FullyAsyncLLMServerClient), pauses)
    taken = Taken()
    token = TAKEN.set(taken)
    try:
        agent = cluster.agent(model, max_tokens=220, max_turns=1, **budget)
        task = asyncio.create_task(agent.run(Task("t", "Hello.")))
    finally:
        TAKEN.reset(token)
    await cluster.sampled(10)
    if board is not None:
        await board.announce.remote(True)
    async with paused(cluster, seconds, 6):
        pass
    if board is not None:
        await board.announce.remote(False)
    trajectory = await task
    await cluster.check_still()
    spans = [
        (span.stop - span.start, span.policy_version)
        for span in trajectory.chains[0].spans
        if span.kind is SpanKind.SAMPLED
    ]
    return trajectory, taken, spans


async def said_at_once(cluster: Cluster, trajectory: Trajectory) -> list[int]:
    """What the server says to the same prompt when nothing interrupts it."""
    start, stop = trajectory.turns[0].start, trajectory.turns[0].stop
    prompt = list(trajectory.chains[0].ids[:start])
    output = await cluster.server.generate.remote(
        request_id=f"again {time.monotonic()}",
        prompt_ids=prompt,
        sampling_params={**GREEDY, "max_tokens": stop - start},
    )
    return list(output.token_ids)


async def test_versions_of_an_interrupted_generation_are_exact(cluster: Cluster) -> None:
    trajectory, taken, spans = await with_sync(cluster, 0.0, Pauses())
    assert [version for _, version in spans] == [5, 6]
    assert all(length > 0 for length, _ in spans)
    said = sampled(trajectory)
    assert sum(length for length, _ in spans) == len(said) == 220 - trajectory.turns[0].start
    assert [token for token, _ in said] == await said_at_once(cluster, trajectory)
    assert 0.5 < taken.synced_s < 3.0  # the client's own second
    assert trajectory.turns[0].queued_s == pytest.approx(taken.synced_s, abs=0.2)


@pytest.mark.parametrize("count_waiting", [False, True])
async def test_an_announced_sync_costs_the_budget_nothing_unless_it_says_so(
    cluster: Cluster, count_waiting: bool
) -> None:
    board, pauses = cluster.board, Pauses()
    assert find_board() is not None
    await board.announce.remote(False)  # it is there
    following = asyncio.create_task(pauses.follow(board))
    try:
        limits = {"generation_s": 5.0, "trajectory_s": 5.0, "count_waiting": count_waiting}
        trajectory, taken, spans = await with_sync(cluster, 5.0, pauses, board, **limits)
    finally:
        following.cancel()
    if count_waiting:
        assert trajectory.exit_reason in (ExitReason.GENERATION_TIMEOUT, ExitReason.TRAJECTORY_TIMEOUT)
        assert spans[0][1] == 5
        return
    assert (trajectory.exit_reason, trajectory.error) == (ExitReason.TURN_LIMIT, None)
    assert [version for _, version in spans] == [5, 6]
    assert taken.synced_s >= 5.0
    assert trajectory.timings.generation_s < 5.0


# servers that fail, and servers that cannot be told to abort


def _bare_server() -> Any:
    class Bare:
        """Takes for ever, and counts who was cancelled."""

        def __init__(self) -> None:
            self.running = self.cancelled = 0

        async def generate(self, **arguments: Any) -> None:
            import asyncio

            self.running += 1
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            finally:
                self.running -= 1

        async def counts(self) -> tuple[int, int]:
            return self.running, self.cancelled

    return ray.remote(Bare).options(num_cpus=0, max_concurrency=100).remote()


async def test_a_server_without_abort_is_cancelled_and_a_dead_one_is_named(cluster: Cluster) -> None:
    server = _bare_server()
    balancer = balancer_of(server)
    model = model_of(LLMServerClient(CONFIG, balancer))

    async def runs() -> bool:
        return (await server.counts.remote())[0] == 1

    async def was_cancelled() -> bool:
        return tuple(await server.counts.remote()) == (0, 1)

    task = asyncio.create_task(cluster.agent(model).run(Task("t", "Hello.")))
    await until(runs)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(was_cancelled)
    assert time.monotonic() - began < 5.0
    await until(lambda: in_flight_is_zero(balancer))

    task = asyncio.create_task(cluster.agent(model).run(Task("t", "Hello.")))
    await until(runs)
    ray.kill(server)
    trajectory = await asyncio.wait_for(task, 20)
    assert trajectory.exit_reason is ExitReason.MODEL_ERROR
    assert "verl's rollout server failed the request: ActorDiedError" in str(trajectory.error)
    await until(lambda: in_flight_is_zero(balancer))


async def test_answers_without_logprobs_name_the_setting(cluster: Cluster) -> None:
    agent = cluster.agent(model_of(cluster.client()), params={"temperature": 1.0}, max_tokens=100)
    trajectory = await agent.run(Task("t", "Hello."))
    assert trajectory.exit_reason is ExitReason.MODEL_ERROR
    assert "set actor_rollout_ref.rollout.calculate_log_probs=True" in str(trajectory.error)
    await cluster.check_still()


# without Ray


class Reference:
    """As Ray's: the actor's task goes on when whoever awaits it is cancelled."""

    def __init__(self, task: "asyncio.Future[Any]") -> None:
        self.task = task

    def __await__(self) -> Any:
        return asyncio.shield(self.task).__await__()


class Remote:
    """A method of an actor."""

    def __init__(self, method: Callable[..., Awaitable[Any]]) -> None:
        self.remote = lambda *args, **arguments: Reference(asyncio.ensure_future(method(*args, **arguments)))


def output(ids: list[int], stop: str = "completed", version: int = 1) -> Any:
    return SimpleNamespace(
        token_ids=ids,
        log_probs=[-0.5] * len(ids),
        stop_reason=stop,
        routed_experts=None,
        num_preempted=None,
        extra_fields={"global_steps": version},
    )


class DeafServer:
    """Takes the order to abort and goes on."""

    def __init__(self) -> None:
        self.aborts = self.ended = 0
        self.generate, self.abort_request = Remote(self._generate), Remote(self._abort)

    async def _generate(self, **arguments: Any) -> Any:
        try:
            await asyncio.sleep(3600)
        finally:
            self.ended += 1

    async def _abort(self, request_id: str, **arguments: Any) -> None:
        self.aborts += 1


class HeldClient:
    """Counts what it has acquired and not released."""

    def __init__(self, server: Any) -> None:
        self.server, self.held = server, [0]

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        self.held[0] += 1
        return "s", self.server

    async def generate(self, request_id: str, **arguments: Any) -> Any:
        _, server = await self._acquire_server(request_id)
        try:
            return await server.generate.remote(request_id=f"{request_id}/1", **arguments)
        finally:
            self.held[0] -= 1


@pytest.mark.parametrize("cancels", [1, 2])
async def test_a_server_that_does_not_abort_is_not_waited_for(cancels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "cancel", lambda reference: reference.task.cancel())
    server = DeafServer()
    client = HeldClient(server)
    call = Call(lambda part: None, lambda number: None)
    task = asyncio.create_task(Caller(client).run(call, {"request_id": "r", "prompt_ids": [1]}, answer_s=0.2))
    await asyncio.sleep(0.05)
    assert client.held == [1]
    for _ in range(cancels):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.05)
    assert (server.aborts, server.ended, client.held) == (1, 1, [0])


async def test_a_client_without_acquire_server_works_and_says_what_it_cannot_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Plain:
        async def generate(self, request_id: str, **arguments: Any) -> Any:
            return output([1, 2])

    with caplog.at_level(logging.WARNING):
        caller = Caller(Plain())
    assert "Plain has no _acquire_server" in caplog.text
    found = await caller.run(Call(lambda part: None, lambda number: None), {"request_id": "r"})
    assert found.token_ids == [1, 2]


async def test_a_request_that_somebody_else_cancelled_may_be_tried_again() -> None:
    class Cancelling:
        async def generate(self, request_id: str, **arguments: Any) -> Any:
            raise asyncio.CancelledError

    with pytest.raises(ModelError, match="cancelled at the server") as caught:
        await Caller(Cancelling()).run(Call(lambda part: None, lambda number: None), {"request_id": "r"})
    assert caught.value.retryable
