"""What goes wrong at the worst moment: cancels that come twice, servers and disks that fail half-way."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from agentkit_verl import RowInfo, close_workers
from agentkit_verl.calls import Call, Caller
from agentkit_verl.loop import _process_of
from agentkit_verl.worker import Worker

from tests.verl.rig.loops import Loops

CODE = """
import anyio

from agentkit.protocols import Score

state = {"open": 0, "most": 0}


class Env:
    async def start(self, task):
        state["open"] += 1
        state["most"] = max(state["most"], state["open"])

    async def close(self):
        await anyio.sleep(0.05)
        state["open"] -= 1


async def score(trajectory, env):
    return Score(0.5)
"""
DONE = "Done.<|im_end|>"


@pytest.fixture(autouse=True)
async def ended() -> AsyncIterator[None]:
    before = list(sys.path)
    yield
    await asyncio.wait_for(close_workers(), 20)
    sys.path[:] = before


def loops(folder: Path, answer: Callable[[str], str | None] = lambda prompt: DONE, **entry: Any) -> Loops:
    agent = {"env": "PARTS:Env", "reward": "PARTS:score", "budget": {"trajectory_s": 60, "grace_s": 0.5}}
    return Loops(folder, answer, entry={"agent": agent, **entry}, code=CODE)


async def worker_of(verl: Loops) -> Worker:
    return await _process_of(verl.client)._workers["toy"]


async def test_a_session_that_is_cancelled_again_lets_nothing_go_early(tmp_path: Path) -> None:
    verl = loops(tmp_path, lambda prompt: None if "hang" in prompt else DONE, pool={"max_rollouts": 1})
    await verl.session("first")
    cut = asyncio.create_task(verl.session("cut", content="hang"))
    while not verl.client.running:
        await asyncio.sleep(0.01)
    others = asyncio.create_task(verl.group("others", 2))
    await asyncio.sleep(0.01)
    while not cut.done():
        cut.cancel()
        await asyncio.sleep(0)
    assert cut.cancelled()
    assert verl.parts.state["open"] == 0
    assert [len(rows) for rows in await asyncio.wait_for(others, 20)] == [1, 1]
    assert verl.parts.state["most"] == 1
    worker = await worker_of(verl)
    assert not worker.built.model._wires
    assert not worker._params


async def test_an_agent_that_is_being_made_when_all_ends_does_not_live_on(tmp_path: Path) -> None:
    verl = loops(tmp_path)
    session = asyncio.create_task(verl.session("u"))
    await asyncio.sleep(0)
    await close_workers()
    await asyncio.wait_for(asyncio.wait((session,)), 20)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "agentkit worker toy"]


def answer_of(ids: list[int], stop: str) -> Any:
    """A `TokenOutput`."""
    return SimpleNamespace(
        token_ids=ids,
        log_probs=[-0.5] * len(ids),
        stop_reason=stop,
        routed_experts=None,
        num_preempted=None,
        extra_fields={"global_steps": 1},
    )


async def test_an_answer_cut_by_a_server_whose_client_cannot_be_watched_is_tried_again(tmp_path: Path) -> None:
    verl = loops(tmp_path)
    end = verl.tokenizer.convert_tokens_to_ids("<|im_end|>")

    class Cut:
        calls = 0

        async def generate(self, request_id: str, **arguments: Any) -> Any:
            self.calls += 1
            return answer_of([70, 71], "aborted") if self.calls == 1 else answer_of([70, end], "completed")

    verl.client = Cut()  # type: ignore[assignment]
    (row,) = await asyncio.wait_for(verl.session("u"), 20)
    info = RowInfo.of_extra_fields(row.extra_fields)
    assert info is not None
    assert (info.exit_reason, info.counts["attempts"], list(row.response_ids)) == ("finished", 2, [70, end])


async def test_a_server_that_cannot_be_told_to_abort_does_not_keep_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reference:
        def __init__(self) -> None:
            self.task = asyncio.ensure_future(asyncio.sleep(3600))

        def __await__(self) -> Any:
            return asyncio.shield(self.task).__await__()

    class Server:
        def __init__(self) -> None:
            self.generate = SimpleNamespace(remote=lambda **_: Reference())
            self.abort_request = SimpleNamespace(remote=self._gone)

        def _gone(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("the actor is gone")

    class Client:
        held = 0

        async def _acquire_server(self, request_id: str) -> tuple[str, Any]:
            return "s", Server()

        async def generate(self, request_id: str, **arguments: Any) -> Any:
            _, server = await self._acquire_server(request_id)
            Client.held += 1
            try:
                return await server.generate.remote(request_id=request_id)
            finally:
                Client.held -= 1

    monkeypatch.setattr(ray, "cancel", lambda reference: reference.task.cancel())
    task = asyncio.create_task(Caller(Client()).run(Call(lambda part: None, lambda number: None), {"request_id": "r"}))
    while not Client.held:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)
    await asyncio.sleep(0.05)
    assert Client.held == 0


async def test_after_a_disk_was_full_the_next_group_has_its_rows(tmp_path: Path) -> None:
    verl = loops(tmp_path, verl={"journal": str(tmp_path / "journal")})
    assert [len(rows) for rows in await verl.group("before", 2)] == [1, 1]
    sink = (await worker_of(verl))._pool._services.sink  # type: ignore[union-attr]

    async def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    sink.seal = full  # type: ignore[method-assign, union-attr]
    assert all("could not be sealed" in str(error) for error in await asyncio.wait_for(verl.group("full", 2), 20))
    found = await asyncio.wait_for(verl.group("after", 2), 20)
    assert [rows if isinstance(rows, BaseException) else len(rows) for rows in found] == [1, 1]


async def test_a_worker_that_ended_by_itself_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    verl = loops(tmp_path, verl={"journal": str(tmp_path / "journal")})
    await verl.group("before", 1)
    worker = await worker_of(verl)
    sink = worker._pool._services.sink  # type: ignore[union-attr]

    async def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    sink.seal = full  # type: ignore[method-assign, union-attr]
    await asyncio.wait_for(verl.group("full", 1), 20)
    async with asyncio.timeout(20):
        while not worker._task.done():
            await asyncio.sleep(0.01)
    await asyncio.sleep(0)
    (told,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("agentkit worker ")]
    assert " ended: " in told
    assert "No space left on device" in told or "unhandled errors" in told
