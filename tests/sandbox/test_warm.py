"""A warm pool against a back end that starts slowly, fails, and loses sandboxes; on virtual time but for the last."""

import logging
import math
import time
from collections.abc import Callable

import anyio
import attrs
import pytest
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit.errors import ConfigError, SandboxError
from agentkit.protocols import SandboxSpec
from agentkit.sandbox import BwrapBackend, WarmPool
from agentkit.testing import virtual_asyncio, virtual_trio

START_S = 0.5


@define(eq=False)
class Fake:
    """A sandbox that lives until it is killed, closed, or its lifetime is over."""

    spec: SandboxSpec
    until: float
    killed: bool = False
    closed: bool = False
    slow_to_answer: bool = False
    answers_after_s: float = 0.001

    async def alive(self) -> bool:
        if self.slow_to_answer:
            await anyio.sleep_forever()
        lives = self.lives
        await anyio.sleep(self.answers_after_s)
        return lives

    @property
    def lives(self) -> bool:
        return not self.killed and not self.closed and anyio.current_time() < self.until

    async def close(self) -> None:
        await anyio.sleep(0.1)
        self.closed = True


@define(eq=False)
class Starter:
    """A back end that counts what it was asked for; the next `failing` starts fail."""

    made: list[Fake] = field(factory=list)
    asked: list[float] = field(factory=list)
    failing: int = 0

    async def start(self, spec: SandboxSpec, /) -> Fake:
        self.asked.append(anyio.current_time())
        begun = anyio.current_time()
        await anyio.sleep(START_S)
        if self.failing:
            self.failing -= 1
            raise SandboxError("no room")
        self.made.append(Fake(spec, begun + (math.inf if spec.lifetime_s is None else spec.lifetime_s)))
        return self.made[-1]

    def living(self) -> list[Fake]:
        return [one for one in self.made if not one.closed]


def pool_of(starter: Starter, spec: SandboxSpec, size: int, wait_s: float = 300.0) -> WarmPool:
    return WarmPool(starter, spec, size=size, wait_s=wait_s)  # type: ignore[arg-type]  # as much of one as is used


async def test_what_is_ready_costs_no_start_and_is_replaced() -> None:
    starter = Starter()
    async with pool_of(starter, SandboxSpec(cwd="/a"), 3) as pool:
        await anyio.sleep(1.0)
        assert pool.ready == 3
        before = anyio.current_time()
        got = await pool.start(SandboxSpec(cwd="/a"))
        assert anyio.current_time() - before < 0.005
        assert got is starter.made[0]
        await anyio.sleep(1.0)
        assert (pool.ready, len(starter.made)) == (3, 4)
    assert starter.living() == [got]
    late = await pool.start(SandboxSpec(cwd="/a"))
    assert late is starter.made[-1]


async def test_another_spec_goes_to_the_back_end_as_it_is() -> None:
    starter = Starter()
    async with pool_of(starter, SandboxSpec(cwd="/a"), 2) as pool:
        await anyio.sleep(1.0)
        other = SandboxSpec(cwd="/a", env={"A": "b"})
        got = await pool.start(other)
        assert got is starter.made[2]
        assert starter.made[2].spec == other
        assert pool.ready == 2


async def test_who_waits_for_nothing_starts_one_and_gets_its_error() -> None:
    starter = Starter(failing=10**9)
    async with pool_of(starter, SandboxSpec(), 2) as pool:
        with pytest.raises(SandboxError, match="no room"):
            await pool.start(SandboxSpec())


async def test_failures_ahead_of_time_are_kept_and_do_not_spin(caplog: pytest.LogCaptureFixture) -> None:
    starter = Starter(failing=10**9)
    with caplog.at_level(logging.WARNING, "agentkit.sandbox"):
        async with pool_of(starter, SandboxSpec(), 4) as pool:
            await anyio.sleep(120.0)
            assert isinstance(pool.error, SandboxError)
            assert len(starter.asked) < 20
            assert len(caplog.records) >= 4
            starter.failing = 0
            await anyio.sleep(60.0)
            assert (pool.ready, pool.error) == (4, None)


async def test_the_dead_are_not_handed_out_but_replaced() -> None:
    starter = Starter()
    async with pool_of(starter, SandboxSpec(), 3) as pool:
        await anyio.sleep(1.0)
        starter.made[0].killed = True
        starter.made[1].slow_to_answer = True
        before = anyio.current_time()
        got = await pool.start(SandboxSpec())
        assert anyio.current_time() - before < 10.0
        assert got is starter.made[2]
        await anyio.sleep(1.0)
        assert starter.made[0].closed
        assert starter.made[1].closed
        assert pool.ready == 3


async def test_whoever_gets_one_has_all_of_its_lifetime() -> None:
    starter = Starter()
    async with pool_of(starter, SandboxSpec(lifetime_s=60.0), 2, wait_s=30.0) as pool:
        for waited in (1.0, 28.0, 31.0, 500.0):
            await anyio.sleep(waited)
            got = await pool.start(SandboxSpec(lifetime_s=60.0))
            assert isinstance(got, Fake)
            assert got.until - anyio.current_time() >= 60.0 - 0.01
            assert got.until - anyio.current_time() <= 90.0
        shorter = await pool.start(SandboxSpec(lifetime_s=20.0))
        assert isinstance(shorter, Fake)
        assert shorter.spec.lifetime_s == 90.0
        longer = await pool.start(SandboxSpec(lifetime_s=600.0))
        assert isinstance(longer, Fake)
        assert longer.spec.lifetime_s == 600.0


async def test_what_must_end_is_not_served_from_what_never_does(caplog: pytest.LogCaptureFixture) -> None:
    starter = Starter()
    async with pool_of(starter, SandboxSpec(), 1) as pool:
        await anyio.sleep(1.0)
        for _ in range(2):
            got = await pool.start(SandboxSpec(lifetime_s=5.0))
            assert isinstance(got, Fake)
            assert got.spec.lifetime_s == 5.0
    assert len([one for one in caplog.records if "no lifetime_s" in one.message]) == 1


async def test_a_cancelled_start_leaves_the_sandbox_waiting() -> None:
    starter = Starter()
    async with pool_of(starter, SandboxSpec(), 1) as pool:
        await anyio.sleep(1.0)
        starter.made[0].slow_to_answer = True
        with anyio.move_on_after(0.5):
            await pool.start(SandboxSpec())
        starter.made[0].slow_to_answer = False
        assert await pool.start(SandboxSpec()) is starter.made[0]


async def test_nobody_shares_one() -> None:
    starter = Starter()
    got: list[object] = []
    async with pool_of(starter, SandboxSpec(), 2) as pool:
        await anyio.sleep(1.0)

        async def start() -> None:
            got.append(await pool.start(SandboxSpec()))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(start)
    assert len(set(map(id, got))) == 3


async def test_what_is_being_handed_out_when_the_pool_is_left_is_closed() -> None:
    starter = Starter()
    got: list[object] = []
    async with anyio.create_task_group() as tasks:  # which outlives the pool
        pool = pool_of(starter, SandboxSpec(), 1)
        async with pool:
            await anyio.sleep(1.0)
            starter.made[0].answers_after_s = 2.0  # what was true when it was asked

            async def start() -> None:
                got.append(await pool.start(SandboxSpec()))

            tasks.start_soon(start)
            await anyio.sleep(0.1)
    assert starter.made[0].closed
    assert got == starter.living() == [starter.made[1]]


@pytest.mark.parametrize("size", [0, -1])
def test_sizes(size: int) -> None:
    with pytest.raises(ConfigError, match="size"):
        pool_of(Starter(), SandboxSpec(), size)


def test_what_the_back_end_cannot_do_is_said_at_once() -> None:
    async def enter() -> None:
        async with WarmPool(BwrapBackend(), SandboxSpec(image="debian")):
            pass

    with pytest.raises(ConfigError, match="image"):
        anyio.run(enter)


Step = tuple[str, float]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("sleep"), st.sampled_from((0.0, 0.05, 0.4, 3.0, 40.0, 90.0))),
        st.tuples(st.just("start"), st.sampled_from((0.0, 10.0, 50.0, 400.0))),
        st.tuples(st.just("other"), st.just(0.0)),
        st.tuples(st.just("cancel"), st.sampled_from((0.0, 0.0005, 0.3))),
        st.tuples(st.just("kill"), st.integers(0, 5).map(float)),
        st.tuples(st.just("fail"), st.integers(1, 6).map(float)),
    ),
    max_size=15,
)


@pytest.mark.parametrize("clock", [virtual_asyncio, virtual_trio])
@given(steps=STEPS, size=st.integers(1, 4), lifetime_s=st.sampled_from((None, 50.0)))
@settings(max_examples=max(10, settings().max_examples // 3))
def test_nothing_is_lost_shared_dead_or_too_old(
    clock: Callable[[], tuple[str, dict[str, object]]], steps: list[Step], size: int, lifetime_s: float | None
) -> None:
    async def live() -> None:
        starter = Starter()
        spec = SandboxSpec(lifetime_s=lifetime_s)
        owned: list[Fake] = []
        async with pool_of(starter, spec, size, wait_s=30.0) as pool:
            for what, value in steps:
                if what == "sleep":
                    await anyio.sleep(value)
                elif what == "kill":
                    unowned = [one for one in starter.living() if one not in owned]
                    if unowned:
                        unowned[int(value) % len(unowned)].killed = True
                elif what == "fail":
                    starter.failing = int(value)
                else:
                    asked = SandboxSpec(cwd="/other") if what == "other" else attrs.evolve(spec)
                    if what == "start" and value:
                        asked = attrs.evolve(spec, lifetime_s=value)
                    with anyio.move_on_after(value if what == "cancel" else math.inf):
                        try:
                            got = await pool.start(asked)
                        except SandboxError:
                            continue
                        assert isinstance(got, Fake)
                        assert got not in owned
                        assert got.lives
                        assert attrs.evolve(got.spec, lifetime_s=None) == attrs.evolve(asked, lifetime_s=None)
                        if asked.lifetime_s is not None:  # one started for the asker has spent its start
                            left = got.until - anyio.current_time()
                            assert asked.lifetime_s - START_S - 0.01 <= left
                            assert left <= max(asked.lifetime_s, (lifetime_s or 0.0) + 30.0)
                        owned.append(got)
                unowned = [one for one in starter.living() if one not in owned]
                assert pool.ready <= size
                assert len(unowned) <= 2 * size  # as many again are being closed
            starter.failing = 0
            await anyio.sleep(70.0)
            assert pool.ready == size or lifetime_s is not None
            assert pool.ready >= 1
        assert sorted(map(id, starter.living())) == sorted(map(id, owned))
        gaps = anyio.current_time() / START_S * (size + 1)
        assert len(starter.asked) <= gaps + size + len(steps)

    backend, options = clock()
    anyio.run(live, backend=backend, backend_options=options)


@pytest.mark.slow
async def test_a_real_one_is_handed_out_within_milliseconds(bwrap: BwrapBackend) -> None:
    async with bwrap, WarmPool(bwrap, SandboxSpec(), size=2) as pool:
        with anyio.fail_after(30.0):
            while pool.ready < 2:
                await anyio.sleep(0.05)
        took: list[float] = []
        for _ in range(2):
            before = time.perf_counter()
            sandbox = await pool.start(SandboxSpec())
            took.append(time.perf_counter() - before)
            async with sandbox:  # type: ignore[attr-defined]  # that of bwrap is
                assert (await sandbox.run("echo on")).text == "on\n"
        assert min(took) < 0.1
