"""Whole runs on virtual time: through, stopped, gone on with, and what is left where a run cannot even begin."""

import contextlib
import itertools
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Self

import anyio
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit import Agent, Budget, ConfigError, ExitReason, ModelError, Outcome, OutcomePolicy, Task, Trajectory
from agentkit.journal import Journal, JournalError, JournalReader
from agentkit.models import ScriptedModel
from agentkit.runs import (
    NotBegun,
    Origin,
    PoolLimits,
    Progress,
    RunConfig,
    RunFolder,
    RunResult,
    SittingEnd,
    Stop,
    execute,
    resume,
)
from agentkit.testing import World, virtual_asyncio, virtual_trio
from agentkit.tokens import byte_chatml

RENDERER = byte_chatml()  # building one takes a while
TASKS = tuple(Task(f"t{n}", "Go.") for n in range(10))


def config_of(model: object = None, *, seconds: float = 10.0, tasks=TASKS, group_size: int = 2, **parts) -> RunConfig:
    chosen = model or ScriptedModel(["Hello."], renderer=RENDERER, first_token_s=seconds)
    return RunConfig(
        name="counting",
        agent=Agent(chosen, **parts),
        dataset=tasks,
        pool=PoolLimits(max_rollouts=4, group_size=group_size),
    )


async def run(config: RunConfig, path: Path, begin=execute, **options) -> RunResult:
    return await begin(config, path, writer="inline", **options)


async def stopped_after(seconds: float, config: RunConfig, path: Path, ask: str = "drain", begin=execute) -> RunResult:
    stop, results = Stop(), list[RunResult]()

    async def later() -> None:
        await anyio.sleep(seconds)
        getattr(stop, ask)()

    not_begun = None
    async with anyio.create_task_group() as group:
        group.start_soon(later)
        try:
            results.append(await run(config, path, begin, stop=stop))
        except NotBegun as error:  # past the task group, which would wrap it
            not_begun = error
        group.cancel_scope.cancel()
    if not_begun is not None:
        raise not_begun
    return results[0]


def sealed(path: Path) -> dict[tuple[str, int], ExitReason]:
    with JournalReader.open(path) as reader:
        assert reader.unfinished() == ()
        return {(each.key.task_id, each.key.index): each.exit_reason for each in reader.summaries()}


EVERYTHING = {(task.id, index): ExitReason.FINISHED for task in TASKS for index in range(2)}


async def test_a_run_goes_through_and_leaves_what_a_report_needs(tmp_path: Path) -> None:
    async def reward(trajectory: Trajectory, _env: object) -> float:
        return float(trajectory.task_id < "t5")

    world = World()
    result = await run(config_of(env=world, reward=reward), tmp_path / "a")
    assert (result.why, result.finished, result.folder) == (SittingEnd.FINISHED, True, tmp_path / "a")
    assert (result.progress.done, result.progress.mean_score) == (20, 0.5)
    assert result.progress.reasons == {ExitReason.FINISHED: 20}
    assert sealed(tmp_path / "a") == EVERYTHING
    info = RunFolder(tmp_path / "a").info()
    assert (info.name, info.expected, info.group_size) == ("counting", 20, 2)
    assert info.dataset_sha256
    assert [sitting.why for sitting in info.sittings] == [SittingEnd.FINISHED]
    assert not world.open


async def test_without_a_folder_each_run_gets_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        result = await execute(config_of(), writer="inline")
        assert result.folder == Path(f"runs/counting-{number}")


async def test_a_second_run_in_a_folder_is_refused_before_anything_happens(tmp_path: Path) -> None:
    await run(config_of(), tmp_path / "a")
    asked = []

    def script(prompt: str) -> str:
        asked.append(prompt)
        return "x"

    with pytest.raises(ConfigError, match="is a run already: go on with it by `agentkit resume"):
        await run(config_of(ScriptedModel(script)), tmp_path / "a")
    assert not asked


@pytest.mark.parametrize(("ask", "why"), [("drain", SittingEnd.DRAINED), ("cancel", SittingEnd.CANCELLED)])
async def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path, ask: str, why: SittingEnd) -> None:
    world, path = World(), tmp_path / "a"
    config = config_of(env=world)
    result = await stopped_after(15, config, path, ask)
    assert (result.why, result.finished) == (why, False)
    assert result.progress.done == (8 if ask == "drain" else 4)
    reasons = list(sealed(path).values())
    assert reasons.count(ExitReason.CANCELLED) == (0 if ask == "drain" else 4)
    assert not world.open
    again = await run(config, path, resume)
    assert (again.why, again.progress.done, again.progress.done_before) == (
        SittingEnd.FINISHED,
        20,
        result.progress.done,
    )
    assert sealed(path) == EVERYTHING
    assert [sitting.why for sitting in RunFolder(path).info().sittings] == [why, SittingEnd.FINISHED]


async def test_a_drained_run_may_still_be_cancelled(tmp_path: Path) -> None:
    stop, levels = Stop(), list[tuple[float, str]]()
    world = World()

    async def later() -> None:
        await anyio.sleep(15)
        stop.drain()
        await anyio.sleep(1)
        stop.cancel()

    def note(progress: Progress) -> None:
        levels.append((round(progress.elapsed_s), progress.stopping.name))

    async with anyio.create_task_group() as group:
        group.start_soon(later)
        result = await run(config_of(env=world), tmp_path / "a", stop=stop, on_progress=note)
    assert result.why is SittingEnd.CANCELLED
    assert not world.open
    assert {name: at for at, name in reversed(levels)} == {"GO_ON": 0, "DRAIN": 15, "CANCEL": 16}, "told at once"


@pytest.mark.parametrize("ask", ["drain", "cancel"])
async def test_a_run_stopped_before_its_first_rollout_has_left_nothing(tmp_path: Path, ask: str) -> None:
    closed = []

    class Slow(ScriptedModel):
        async def __aenter__(self) -> Self:
            try:
                await anyio.sleep(100)
            finally:
                closed.append(anyio.current_time())
            return self

        async def __aexit__(self, *_: object) -> None: ...

    with pytest.raises(NotBegun, match="before its first rollout"):
        await stopped_after(5, config_of(Slow(["x"], renderer=RENDERER)), tmp_path / "a", ask)
    assert list(tmp_path.iterdir()) == []
    assert len(closed) == 1
    stop = Stop()
    stop.drain()
    with pytest.raises(NotBegun):
        await run(config_of(), tmp_path / "b", stop=stop)
    assert list(tmp_path.iterdir()) == []


class Open(ScriptedModel):
    """A model that must be entered, and knows what happened to it."""

    def __init__(self, fail: bool = False) -> None:
        super().__init__(["x"], renderer=RENDERER, first_token_s=1.0)
        self.fail = fail
        self.events: list[str] = []

    async def __aenter__(self) -> Self:
        if self.fail:
            raise ModelError("the server does not answer")
        self.events.append("open")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.events.append("close")


async def test_a_model_is_entered_before_and_left_after_the_rollouts(tmp_path: Path) -> None:
    model = Open()
    assert (await run(config_of(model), tmp_path / "a")).finished
    assert model.events == ["open", "close"]
    model = Open()
    await stopped_after(2.5, config_of(model), tmp_path / "b", "cancel")
    assert model.events == ["open", "close"]


async def test_a_model_or_a_dataset_that_fails_at_the_start_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not answer"):
        await run(config_of(Open(fail=True)), tmp_path / "a")
    with pytest.raises(ConfigError, match="t1"):
        await run(config_of(tasks=(*TASKS, TASKS[1])), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


async def test_a_run_that_is_through_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    await run(config_of(), path)
    before = (path / "run.json").read_text()
    model = Open()
    result = await run(config_of(model), path, resume)
    assert (result.why, result.progress.done, result.progress.done_before) == (SittingEnd.FINISHED, 20, 20)
    assert result.progress.reasons == {ExitReason.FINISHED: 20}
    assert model.events == [], "nothing to sample, so nothing to start"
    assert (path / "run.json").read_text() == before


async def test_what_is_repeated_takes_the_place_of_what_was(tmp_path: Path) -> None:
    fails = [True]

    class Flaky(ScriptedModel):
        async def sample_tokens(self, request, emit):
            if fails[0]:
                raise ModelError("500")
            return await super().sample_tokens(request, emit)

    path = tmp_path / "a"
    result = await run(config_of(Flaky(["x"], renderer=RENDERER), model_retries=0), path)
    assert (result.finished, result.progress.reasons) == (True, {ExitReason.MODEL_ERROR: 20})
    fails.clear()
    fails.append(False)
    assert (await run(config_of(Flaky(["x"], renderer=RENDERER)), path, resume)).progress.reasons == {
        ExitReason.MODEL_ERROR: 20
    }
    again = await run(config_of(Flaky(["x"], renderer=RENDERER)), path, resume, repeat=[ExitReason.MODEL_ERROR])
    assert again.finished
    assert (again.progress.done_before, again.progress.reasons) == (0, {ExitReason.FINISHED: 20})
    assert sealed(path) == EVERYTHING


async def test_a_replacement_that_was_cut_off_is_still_to_be_made(tmp_path: Path) -> None:
    async def reward(trajectory: Trajectory, _env: object) -> float:
        if trajectory.key.index == 0:
            raise ValueError("no grade")
        return 1.0

    policy = OutcomePolicy(ungraded=Outcome.REPLACE)
    path, config = tmp_path / "a", config_of(tasks=TASKS[:1], group_size=1, reward=reward, outcomes=policy)
    result = await stopped_after(15, config, path, "cancel")
    assert (result.progress.done, result.progress.expected) == (1, 1)
    again = await run(config, path, resume)
    assert again.finished
    assert sealed(path) == {("t0", 0): ExitReason.FINISHED, ("t0", 1): ExitReason.FINISHED}
    assert len(RunFolder(path).info().sittings) == 2
    await run(config, path, resume)
    assert len(RunFolder(path).info().sittings) == 2, "nothing was left"


async def test_whenever_it_is_stopped_no_replacement_is_lost(tmp_path: Path) -> None:
    class Bad:
        """An env that takes its time to start, and fails in every second task."""

        async def start(self, task: Task) -> None:
            await anyio.sleep(task.data["late"])  # type: ignore[arg-type]
            if task.data["bad"]:
                raise RuntimeError("no luck")

        async def close(self) -> None:
            await anyio.sleep(1)

    tasks = tuple(Task(f"t{n}", "Go.", data={"late": n, "bad": n % 2 == 0}) for n in range(3))
    policy = OutcomePolicy(exits={ExitReason.ENV_START_FAILED: Outcome.REPLACE}, replacements=2, retries=0)
    config = config_of(tasks=tasks, env=Bad, outcomes=policy)
    await run(config, tmp_path / "whole")
    whole = sealed(tmp_path / "whole")
    assert len(whole) == 10, "two for each of the bad ones"
    for moment in range(1, 13):
        path = tmp_path / str(moment)
        with contextlib.suppress(NotBegun):
            await stopped_after(moment / 2 + 0.01, config, path, "cancel")
        begin = resume if RunFolder(path).exists else execute
        assert (await run(config, path, begin)).finished
        assert sealed(path) == whole
        before = len(RunFolder(path).info().sittings)
        await run(config, path, resume)
        assert len(RunFolder(path).info().sittings) == before, "nothing was left"


async def test_another_dataset_is_an_error_that_says_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "a"
    await stopped_after(35, config_of(), path)
    tasks = (Task("t0", "Go!"), *TASKS[2:], Task("new", "Go."))
    with pytest.raises(ConfigError) as caught:
        await run(config_of(tasks=tasks), path, resume)
    said = str(caught.value)
    assert "10 tasks then, 10 now" in said
    assert "gone: 't1'" in said
    assert "asking something else: 't0'" in said
    assert "--force" in said
    before = sealed(path)
    result = await run(config_of(tasks=tasks), path, resume, force=True)
    assert result.finished
    assert set(sealed(path)) == set(before) | {(task.id, index) for task in tasks for index in range(2)}
    assert (await run(config_of(tasks=tasks), path, resume)).finished, "what was forced is the new state of things"


async def test_another_group_size_or_an_edited_config_is_an_error(tmp_path: Path) -> None:
    path, origin = tmp_path / "a", Origin(text="name: x\n", base=str(tmp_path))
    stop = Stop()
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: _drain_later(stop))
        await run(config_of(), path, origin=origin, stop=stop)
    assert json.loads((path / "run.json").read_text())["base"] == ".."
    with pytest.raises(ConfigError, match=r"pool\.group_size is 3, it was 2"):
        await run(config_of(group_size=3), path, resume, origin=origin)
    with pytest.raises(ConfigError, match=r"config\.yaml was edited"):
        await run(config_of(), path, resume, origin=evolve(origin, text="name: y\n"))
    assert (await run(config_of(group_size=3), path, resume, origin=origin, force=True)).progress.expected == 30


async def _drain_later(stop: Stop) -> None:
    await anyio.sleep(15)
    stop.drain()


async def test_what_the_caller_cancels_is_sealed_and_noted(tmp_path: Path) -> None:
    world, path = World(), tmp_path / "a"
    with anyio.move_on_after(15) as scope:
        await run(config_of(env=world), path)
    assert scope.cancelled_caught
    assert not world.open
    assert list(sealed(path).values()).count(ExitReason.CANCELLED) == 4
    assert [sitting.why for sitting in RunFolder(path).info().sittings] == [SittingEnd.CANCELLED]
    assert (await run(config_of(), path, resume)).finished


async def test_a_run_that_fails_says_why_and_can_be_resumed(tmp_path: Path) -> None:
    path, good = tmp_path / "a", [True]
    config = config_of()

    def tasks():
        for number, task in enumerate(TASKS):
            if number == 5 and not good[0]:
                raise ConfigError("row 6 is gone")
            yield task

    class Shrinking(tuple):
        def __iter__(self):
            return tasks()

    object.__setattr__(config, "dataset", Shrinking(TASKS))

    async def survey_then_lose() -> RunResult:
        def lose(_folder: RunFolder) -> None:
            good[0] = False

        return await run(config, path, on_begin=lose)

    with pytest.raises(ConfigError, match="row 6 is gone"):
        await survey_then_lose()
    assert [sitting.why for sitting in RunFolder(path).info().sittings] == [SittingEnd.FAILED]
    assert len(sealed(path)) == 10, "what had begun went on to its end"
    good[0] = True
    assert (await run(config, path, resume)).finished


async def test_where_the_end_cannot_be_noted_what_ended_the_run_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "a"

    class Failing(ScriptedModel):
        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None: ...

    def fill_the_disk(_: RunFolder) -> None:
        (folder / "run.json").unlink()
        (folder / "run.json").mkdir()  # nothing can be put in its place

    result = await run(config_of(Failing(["x"], renderer=RENDERER)), folder, on_begin=fill_the_disk)
    assert result.finished, "all is sealed"
    assert "the end of the sitting is not noted" in caplog.text
    with JournalReader.open(folder) as reader:
        assert len(list(reader.summaries())) == 20


async def test_two_at_once_on_one_run_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "a"
    await stopped_after(15, config_of(), path)
    async with Journal.open(path, writer="inline"):
        with pytest.raises(JournalError, match="is being written by"):
            await run(config_of(), path, resume)
    assert len(RunFolder(path).info().sittings) == 1
    assert (await run(config_of(), path, resume)).finished


async def test_who_fails_to_show_progress_does_not_fail_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def broken(progress: Progress) -> None:
        calls.append(progress)
        raise BrokenPipeError

    with caplog.at_level(logging.WARNING, "agentkit"):
        assert (await run(config_of(), tmp_path / "a", on_progress=broken)).finished
    assert len(calls) == 1
    assert "progress is shown no longer" in caplog.text


async def test_progress_is_told_while_rollouts_are_under_way_and_at_the_end(tmp_path: Path) -> None:
    seen: list[Progress] = []
    await run(config_of(), tmp_path / "a", on_progress=seen.append)
    assert {progress.live for progress in seen} >= {4}
    assert seen[-1].done == 20
    assert seen[-1].live == 0
    assert all(before.done <= after.done for before, after in itertools.pairwise(seen))


async def test_no_secret_of_the_config_reaches_the_disk_in_an_error(tmp_path: Path) -> None:
    class Leaky(ScriptedModel):
        async def sample_tokens(self, request, emit):
            raise ModelError("401 for key hunter2hunter2")

    config = evolve(config_of(Leaky(["x"], renderer=RENDERER), model_retries=0), secrets=frozenset({"hunter2hunter2"}))
    await run(config, tmp_path / "a")
    for file in (tmp_path / "a").rglob("*"):
        assert file.is_dir() or b"hunter2" not in file.read_bytes()
    with JournalReader.open(tmp_path / "a") as reader:
        assert {"401 for key [redacted]" in str(each.error) for each in reader.trajectories()} == {True}


async def test_a_change_that_spells_out_a_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("name: x\n")
    with pytest.raises(ConfigError, match=r"--set model\.api_key=\.\.\. spells out a secret") as caught:
        Origin.read(tmp_path / "run.yaml", ["model.api_key=sk-abcdefghijklmnop1234"])
    assert "abcdefgh" not in str(caught.value)
    for change in ("model.api_key=${KEY}", "model.headers.Authorization=Bearer ${KEY}", "model.api_key=${KEY:-none}"):
        assert Origin.read(tmp_path / "run.yaml", [change]).changes == (change,)
    for change in ("model.api_key=${KEY:-abcdefgh123}", "model={api_key: '${KEY}', password: abcdefgh123}"):
        with pytest.raises(ConfigError, match=r"spells out a secret"):
            Origin.read(tmp_path / "run.yaml", [change])


def test_the_base_of_a_run_moves_with_it(tmp_path: Path) -> None:
    from agentkit.runs import RunInfo
    from agentkit.runs.info import now

    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    info = RunInfo(name="x", created=now(), base=str(project))
    inside = RunFolder.create(project / "runs" / "x-1", info)
    outside = RunFolder.create(elsewhere / "x", info)
    assert inside.base() == outside.base() == project
    project.rename(tmp_path / "moved")
    assert RunFolder(tmp_path / "moved" / "runs" / "x-1").base() == tmp_path / "moved"
    assert json.loads((elsewhere / "x" / "run.json").read_text())["base"] == str(project)


moments = st.lists(st.tuples(st.floats(0, 40), st.sampled_from(["drain", "cancel"])), max_size=4)


@given(moments, st.sampled_from([virtual_asyncio, virtual_trio]), st.integers(0, 7), st.integers(1, 3))
@settings(max_examples=15)
def test_however_often_it_is_stopped_a_run_makes_each_rollout_once(
    tmp_path_factory: pytest.TempPathFactory, stops: list, clock: Callable, count: int, group_size: int
) -> None:
    path = tmp_path_factory.mktemp("run") / "a"
    world = World()

    async def main() -> None:
        config = config_of(env=world, tasks=TASKS[:count], group_size=group_size, budget=Budget(grace_s=1))
        begin, done = execute, 0
        for seconds, ask in stops:
            try:
                result = await stopped_after(seconds, config, path, ask, begin)
            except NotBegun:
                continue
            begin = resume
            assert result.progress.done >= done
            done = result.progress.done
        result = await run(config, path, begin)
        assert (result.why, result.progress.done) == (SittingEnd.FINISHED, count * group_size)

    name, options = clock()
    anyio.run(main, backend=name, backend_options=options)
    assert sealed(path) == {(f"t{n}", index): ExitReason.FINISHED for n in range(count) for index in range(group_size)}
    assert not world.open


@pytest.mark.parametrize("begin", [execute, resume])
async def test_what_is_no_config_is_said_to_be_none(tmp_path: Path, begin) -> None:
    await run(config_of(tasks=TASKS[:1]), tmp_path / "a")
    with pytest.raises(ConfigError, match="a run needs a RunConfig, found str: load_config"):
        await begin("run.yaml", tmp_path / ("b" if begin is execute else "a"))
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": 5}, "run.name must be of the class str, found the number 5"),
        ({"agent": "react"}, "run.agent must be of the class Agent, found the text 'react'"),
        (
            {"pool": {"max_rollouts": 3}},
            "run.pool must be of the class PoolLimits, found a mapping with 'max_rollouts'",
        ),
        ({"logs": None}, "run.logs must be of the class LogSettings, found null"),
        ({"dataset": [TASKS[0], "Go."]}, r"run.dataset\[1\] must be a Task, found the text 'Go.'"),
    ],
)
def test_a_config_that_is_made_of_other_things_is_told(change: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        evolve(config_of(), **change)
