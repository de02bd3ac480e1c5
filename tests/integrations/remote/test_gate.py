import anyio
import pytest
from agentkit_remote.frames import WINDOW_BYTES
from agentkit_remote.gate import Gate
from agentkit_remote.live import MOST_BYTES, Live
from agentkit_remote.streams import Outflow


async def test_a_shut_gate_holds_a_coroutine_between_two_steps() -> None:
    gate = Gate()
    steps: list[int] = []

    async def work() -> str:
        for step in range(6):
            steps.append(step)
            if step == 2:
                gate.shut()
            await anyio.sleep(1)
        return "done"

    async def open_later() -> None:
        await anyio.sleep(60)
        assert steps == [0, 1, 2]
        gate.open()

    async with anyio.create_task_group() as group:
        group.start_soon(open_later)
        began = anyio.current_time()
        assert await gate.hold(work(), is_over=lambda: False) == "done"
    assert steps == list(range(6))
    assert anyio.current_time() - began == pytest.approx(63, abs=0.1)


async def test_a_limit_inside_strikes_while_the_gate_is_shut() -> None:
    gate = Gate()

    async def work() -> tuple[str, float]:
        with anyio.move_on_after(5) as scope:
            while True:
                gate.shut()
                await anyio.sleep(0.1)
        await anyio.sleep(1)  # what is done about it is not held any more
        await anyio.sleep(1)
        return ("late" if scope.cancelled_caught else "early"), anyio.current_time()

    began = anyio.current_time()
    said, at = await gate.hold(work(), is_over=lambda: True)
    assert (said, at - began) == ("late", pytest.approx(7, abs=0.1))


async def test_cancelling_passes_a_shut_gate() -> None:
    gate = Gate()
    cleaned: list[str] = []

    async def work() -> None:
        gate.shut()
        try:
            await anyio.sleep(0.1)
            cleaned.append("went on")
        finally:
            cleaned.append("cleaned")

    with anyio.move_on_after(3) as scope:
        await gate.hold(work(), is_over=lambda: True)
    assert scope.cancelled_caught
    assert cleaned == ["cleaned"]


async def test_errors_and_results_come_through() -> None:
    async def fail() -> None:
        await anyio.sleep(0)
        raise LookupError("inside")

    async def at_once() -> int:
        return 5

    with pytest.raises(LookupError, match="inside"):
        await Gate().hold(fail(), is_over=lambda: False)
    assert await Gate().hold(at_once(), is_over=lambda: False) == 5


async def test_output_waits_for_the_client_and_its_memory_is_bounded() -> None:
    gate = Gate()
    live = Live(gate)
    sent = bytearray()

    async def send(piece: bytes) -> None:
        sent.extend(piece)

    outflow = Outflow(send)
    async with anyio.create_task_group() as group:
        group.start_soon(live.drain, outflow)
        produced = 0
        while not gate.is_shut:
            live.take(b"x" * 65_536)
            produced += 65_536
            await anyio.sleep(0.01)
        assert WINDOW_BYTES < produced <= 3 * WINDOW_BYTES
        assert len(sent) == WINDOW_BYTES
        for _ in range(200):  # whoever cannot be held
            live.take(b"q" * 65_536)
        live.end()
        assert live._bytes <= MOST_BYTES + 100
        outflow.credit(WINDOW_BYTES)
        await anyio.sleep(0.1)
        while len(sent) % WINDOW_BYTES == 0:
            outflow.credit(WINDOW_BYTES)
            await anyio.sleep(0.01)
    assert not gate.is_shut
    assert sent.startswith(b"x" * produced)
    kept = sent.count(b"q")
    assert sent.endswith(b"\n[... %d bytes left out ...]\n" % (200 * 65_536 - kept))
