"""A run's model at its worst: it opens and closes in every wrong way, and the run is worth more than it."""

from pathlib import Path
from typing import Self

import anyio
import pytest

from agentkit import Agent, ModelError, Task
from agentkit.models import ScriptedModel
from agentkit.runs import NotBegun, PoolLimits, RunConfig, SittingEnd, Stop, execute
from agentkit.tokens import byte_chatml

RENDERER = byte_chatml()  # building one takes a while
SECRET = "correct-horse-battery"


class Open(ScriptedModel):
    """A model that must be entered; `at_exit` seconds pass when it is left, and then `error` is raised."""

    def __init__(self, at_exit: float = 0.0, error: BaseException | None = None, swallow: bool = False) -> None:
        super().__init__(["x"], renderer=RENDERER, first_token_s=1.0)
        self.at_exit, self.error, self.swallow = at_exit, error, swallow
        self.left_at: float | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> bool:
        await anyio.sleep(self.at_exit)
        self.left_at = anyio.current_time()
        if self.error is not None:
            raise self.error
        return self.swallow


def config_of(model: object) -> RunConfig:
    tasks = [Task(f"t{n}", "Go.") for n in range(3)]
    return RunConfig(
        name="x",
        agent=Agent(model),  # type: ignore[arg-type]
        dataset=tasks,
        pool=PoolLimits(max_rollouts=1),
        secrets=frozenset({SECRET}),
    )


async def asking(times: dict[float, str], config: RunConfig, path: Path):
    """What `execute` gives, where more is asked of it at each of `times`; and how long it took."""
    stop, start = Stop(), anyio.current_time()

    async def ask() -> None:
        for at, what in times.items():
            await anyio.sleep_until(start + at)
            getattr(stop, what)()

    outcome: object = None
    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        try:
            outcome = await execute(config, path, stop=stop, writer="inline")
        except NotBegun as error:
            outcome = error
        took = anyio.current_time() - start
        group.cancel_scope.cancel()
    return outcome, took


@pytest.mark.parametrize("error", [ValueError(f"not with {SECRET}"), SystemExit(0)])
async def test_a_model_that_cannot_be_entered_is_one_error_without_secrets(
    tmp_path: Path, error: BaseException
) -> None:
    class Closed(Open):
        async def __aenter__(self) -> Self:
            raise error

    with pytest.raises(ModelError, match=f"could not be opened: {type(error).__name__}") as caught:
        await execute(config_of(Closed()), tmp_path / "a", writer="inline")
    assert SECRET not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ValueError(f"not with {SECRET}"), SystemExit(0)])
async def test_a_model_that_cannot_be_left_does_not_take_the_result_with_it(
    tmp_path: Path, error: BaseException
) -> None:
    result = await execute(config_of(Open(error=error)), tmp_path / "a", writer="inline")
    assert result.finished
    assert result.progress.done == 3
    (named,) = result.stuck
    assert f"the model, which could not be closed: {type(error).__name__}" in named
    assert SECRET not in named


async def test_a_model_that_does_not_close_ends_with_its_time_or_when_it_is_asked_to(tmp_path: Path) -> None:
    result, took = await asking({}, config_of(Open(at_exit=1e6)), tmp_path / "a")
    assert result.finished
    assert result.stuck == ("the model, which did not close in time",)
    assert took == pytest.approx(63.0)
    result, took = await asking({10: "drain", 20: "cancel"}, config_of(Open(at_exit=1e6)), tmp_path / "b")
    assert result.finished
    assert took == pytest.approx(20.0)


async def test_a_model_is_left_in_peace_where_the_run_was_cancelled(tmp_path: Path) -> None:
    for name, times in (("a", {0.5: "cancel"}), ("b", {0.5: "drain", 0.7: "cancel"})):
        model = Open(at_exit=30)
        result, took = await asking(times, config_of(model), tmp_path / name)
        assert result.why is SittingEnd.CANCELLED
        assert model.left_at is not None
        assert took > 30

    class Stopping(Open):
        async def __aenter__(self) -> Self:
            stop.drain()  # heard before the first rollout
            return self

    stop, model = Stop(), Stopping(at_exit=30)
    with pytest.raises(NotBegun):
        await execute(config_of(model), tmp_path / "c", stop=stop, writer="inline")
    assert model.left_at is not None
    model = Open(at_exit=30)
    with anyio.move_on_after(0.5):
        await execute(config_of(model), tmp_path / "d", writer="inline")
    assert model.left_at is not None


async def test_a_model_cannot_swallow_what_happens(tmp_path: Path) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("on begin")

    with pytest.raises(RuntimeError, match="on begin"):
        await execute(config_of(Open(swallow=True)), tmp_path / "a", on_begin=fail, writer="inline")


@pytest.mark.parametrize("ask", ["drain", "cancel"])
async def test_a_run_that_is_stopped_while_its_folder_is_made_says_that_there_is_one(tmp_path: Path, ask: str) -> None:
    stop = Stop()
    result = await execute(
        config_of(Open()), tmp_path / "a", stop=stop, on_begin=lambda _: getattr(stop, ask)(), writer="inline"
    )
    assert result.why is (SittingEnd.DRAINED if ask == "drain" else SittingEnd.CANCELLED)
    assert result.progress.done == 0
    assert result.folder.is_dir()
