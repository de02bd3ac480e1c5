"""Whoever logs within a rollout is known, and each rollout can have a file of its own."""

import contextlib
import io
import logging
import os
import threading
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentkit as ak
from agentkit.logs import configure, current_rollout, rollout_file, within_rollout
from agentkit.logs.files import RolloutFiles
from agentkit.models import ScriptedMessageModel, ScriptedModel
from agentkit.protocols import RolloutKey
from agentkit.testing import FakeTool, World, strategies, swallow_cancellation

log = logging.getLogger("mine")
CALL = '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>'
TASKS = [ak.Task(name, "Find it.") for name in ("lima", "oslo")]


async def test_everything_that_runs_for_a_rollout_is_known_to() -> None:
    seen: dict[str, set[str]] = {}

    def note(where: str) -> None:
        key = current_rollout()
        assert key is not None, where
        seen.setdefault(where, set()).add(f"{key}.{key.attempt}")

    class Noting:
        def __init__(self) -> None:
            note("factory")

        async def start(self, task: ak.Task) -> None:
            note("start")
            async with anyio.create_task_group() as group:
                group.start_soon(self._inner)

        async def _inner(self) -> None:
            note("task")
            await anyio.sleep(0.1)
            note("task later")

        async def close(self) -> None:
            note("close")

    class Model(ScriptedModel):
        async def sample_tokens(self, request, emit):
            note("model")
            return await super().sample_tokens(request, emit)

    async def search(_: object) -> str:
        note("tool")
        await anyio.sleep(0.1)
        note("tool later")
        return "ok"

    async def score(trajectory, env) -> float:
        note("reward")
        return 1.0

    async def loop(rollout: ak.Rollout) -> None:
        note("loop")
        await rollout.child(ak.Agent(ScriptedModel(["hello"]), name="helper"), "Hello?")
        note("loop")
        await ak.react(rollout)

    outside = current_rollout()
    tools = [FakeTool("search", search)]
    agent = ak.Agent(Model([CALL, "done"]), env=Noting, tools=tools, reward=score, loop=loop)
    async with ak.Pool(agent, group_size=2) as pool:
        await pool.run(TASKS)
    names = {f"{task.id}#{index}.0" for task in TASKS for index in range(2)}
    places = {"factory", "start", "task", "task later", "model", "tool", "tool later", "reward", "loop", "close"}
    assert seen == dict.fromkeys(places, names)
    assert current_rollout() is outside is None


async def test_retries_and_sub_agents_have_names_of_their_own() -> None:
    seen = []

    async def start(task: ak.Task) -> None:
        seen.append(current_rollout())
        if len(seen) < 3:
            raise OSError("no image")

    async def child_loop(rollout: ak.Rollout) -> None:
        seen.append(current_rollout())

    async def loop(rollout: ak.Rollout) -> None:
        await rollout.child(ak.Agent(ScriptedModel(["x"]), loop=child_loop, name="helper"), "Hello?")
        seen.append(current_rollout())

    agent = ak.Agent(ScriptedModel(["x"]), env=World(on_start=start), loop=loop)
    trajectory = await agent.run(ak.Task("lima", "Find it."))
    assert trajectory.exit_reason is ak.ExitReason.FINISHED
    assert seen == [
        RolloutKey("lima", 0, 0),
        RolloutKey("lima", 0, 1),
        RolloutKey("lima", 0, 2),
        RolloutKey("lima#0/helper", 0, 0),
        RolloutKey("lima", 0, 2),
    ]


@pytest.mark.slow
async def test_the_threads_of_blocking_tools_are_known_too(tmp_path: Path) -> None:
    @ak.tool
    def search() -> str:
        """Look for it."""
        log.info("in thread %s", threading.current_thread().name.partition(":")[0])
        return "ok"

    with configure(to=tmp_path / "run.log"):
        agent = ak.Agent(ScriptedModel([CALL, "done"]), tools=[search])
        async with ak.Pool(agent) as pool:
            await pool.run(TASKS)
    lines = sorted(line.partition(" mine ")[2] for line in (tmp_path / "run.log").read_text().splitlines())
    assert lines == ["[lima#0.0] in thread agentkit-tool", "[oslo#0.0] in thread agentkit-tool"]


async def search(_: object) -> str:
    log.info("searching\nfor it")
    return "nothing\nat all\x1b[2J sk-proj-Ab12Cd34Ef56Gh78"


def without_times(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    return [line if line.startswith("    | ") else line.partition(" ")[2] for line in lines]


async def test_a_rollout_has_a_file_that_tells_it_all(tmp_path: Path) -> None:
    async def score(trajectory, env) -> float:
        return 0.5

    async def loop(rollout: ak.Rollout) -> None:
        async for action in rollout:
            if not (await rollout.act(action)).done:
                rollout.observe("Go on.")

    console = io.StringIO()
    tools = [FakeTool("search", search)]
    agent = ak.Agent(ScriptedModel([CALL, "done"]), env=World(), tools=tools, reward=score, loop=loop)
    with configure(to=console, level="WARNING", per_rollout=tmp_path / "rollouts"):
        async with ak.Pool(agent) as pool:
            await pool.run(TASKS)
    assert console.getvalue() == "", "what is said in a rollout is in its file"
    assert sorted(path.name for path in (tmp_path / "rollouts").iterdir()) == ["lima#0.0.log", "oslo#0.0.log"]
    lines = without_times(tmp_path / "rollouts" / "lima#0.0.log")
    end = lines.index("outcome: train")
    assert lines[:end] == [
        "user: Find it.",
        "turn 0, the policy (stop): <tool_call>",
        '    | {"name": "search", "arguments": {}}',
        "    | </tool_call>",
        "INFO mine: searching",
        "    | for it",
        "turn 0, search (ok): nothing",
        "    | at all\\x1b[2J [redacted]",
        "user: Go on.",
        "turn 1, the policy (stop): done",
        "ends: finished, grade ok, score 0.5, after 2 turns and 0.0 s",
    ]


async def test_a_file_shows_faults_cut_texts_and_what_the_api_said(tmp_path: Path) -> None:
    async def fail(_: object) -> str:
        raise ak.SandboxDead("gone")

    said = ak.Message("assistant", "w" * 50, (ak.ToolCall("c", "search", {}),))
    model = ScriptedMessageModel([said])
    agent = ak.Agent(model, tools=[FakeTool("search", fail)], outcomes=ak.OutcomePolicy(retries=0))
    with configure(to=io.StringIO(), per_rollout=tmp_path, cut=20):
        trajectory = await agent.run("Find it, please, wherever it is.")
    text = (tmp_path / rollout_file(trajectory.key)).read_text()
    assert "user: Find it, pleas [... " in text
    assert "ends: env_dead, blame environment" not in text, "it is cut, too"
    assert "[... " in text
    with configure(to=io.StringIO(), per_rollout=tmp_path / "long"):
        await agent.run("Find it.")
    text = (tmp_path / "long" / "task#0.0.log").read_text()
    assert "search({})" in text
    assert "ends: env_dead, blame environment" in text
    assert "SandboxDead: gone" in text


async def test_a_history_that_was_rewritten_is_told(tmp_path: Path) -> None:
    async def loop(rollout: ak.Rollout) -> None:
        await rollout.sample()
        rollout.rewrite([ak.user("In short: find it."), ak.user("Now.")])
        await rollout.sample()

    with configure(to=io.StringIO(), per_rollout=tmp_path):
        await ak.Agent(ScriptedModel(["a", "b"]), loop=loop).run(ak.Task("t", "Find it."))
    lines = without_times(tmp_path / "t#0.0.log")
    assert lines[1:6] == [
        "turn 0, the policy (stop): a",
        "the history was rewritten, to 3 messages",
        "user: In short: find it.",
        "user: Now.",
        "turn 1, the policy (stop): b",
    ]


async def test_a_generation_that_was_cut_is_told(tmp_path: Path) -> None:
    model = ScriptedModel(["one two three four five six"], token_s=1, chunk_tokens=1)
    sampled = len(model.renderer.tokenizer.encode("one two three four five six"))
    agent = ak.Agent(model, budget=ak.Budget(generation_s=sampled - 1.5))
    with configure(to=io.StringIO(), per_rollout=tmp_path):
        await agent.run(ak.Task("t", "Find it."))
    lines = without_times(tmp_path / "t#0.0.log")
    assert lines[1].startswith("ends: generation_timeout")
    assert lines[2].startswith("    | cut short: one two three four")


async def test_events_reach_those_who_watch_while_they_are_told(tmp_path: Path) -> None:
    agent = ak.Agent(ScriptedModel([CALL, "done"]), tools=[FakeTool("search", search)])
    with configure(to=io.StringIO(), per_rollout=tmp_path):
        async with ak.Pool(agent) as pool:
            actor = pool.start(TASKS[0])
            kinds = [type(event).__name__ async for event in actor.events()]
    assert kinds == ["Sampled", "Observed", "Sampled", "Observed", "Ended"]


@pytest.mark.slow
async def test_a_thousand_rollouts_leave_no_handler_and_no_file_open(tmp_path: Path) -> None:
    opened = []

    async def watch(_: object) -> str:
        opened.append(len(os.listdir("/proc/self/fd")))
        await anyio.sleep(0)
        return "ok"

    agent = ak.Agent(ScriptedModel([CALL, "done"]), env=World(), tools=[FakeTool("search", watch)])
    async with ak.Pool(agent) as pool:  # what the event loop itself opens, it has opened now
        await pool.run(TASKS)
    before, handlers = len(os.listdir("/proc/self/fd")), count_handlers()
    with configure(to=io.StringIO(), per_rollout=tmp_path) as writer:
        within = count_handlers()
        async with ak.Pool(agent, max_rollouts=200) as pool:
            await pool.run([ak.Task(f"t{n}", "Find it.") for n in range(1000)])
        assert count_handlers() == within == handlers + 2
        assert writer.flush(30)
        assert writer.dropped == 0
    assert len(os.listdir("/proc/self/fd")) == before
    assert count_handlers() == handlers
    assert max(opened) <= before + 2 + 32
    assert len(list(tmp_path.iterdir())) == 1000
    assert all(path.read_text().count("outcome: train") == 1 for path in tmp_path.iterdir())


def count_handlers() -> int:
    loggers = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    return sum(len(each.handlers) for each in [logging.root, *loggers])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_what_outlives_its_rollout_writes_to_its_file_still(tmp_path: Path) -> None:
    async def stubborn(_: object) -> str:
        try:
            await swallow_cancellation()
        finally:
            log.info("buried")
        return "never"

    agent = ak.Agent(ScriptedModel([CALL, "done"]), tools=[FakeTool("search", stubborn)], budget=ak.Budget(tool_s=1))
    with configure(to=io.StringIO(), per_rollout=tmp_path):
        await agent.run(ak.Task("t", "Find it."))
    assert "ends: finished, stuck search" in (tmp_path / "t#0.0.log").read_text()


@given(strategies.texts(100) | st.sampled_from(["..", "/etc/passwd", "a/../b", "CON", "-rf", ".hidden", "x" * 300, ""]))
def test_a_file_name_stays_in_its_folder_and_in_one_line(task_id: str) -> None:
    name = rollout_file(RolloutKey(task_id, 0))
    assert name.isascii()
    assert name.isprintable()
    assert not set(name) & set("/\\ \"'$`*?;&|<>")
    assert name[0] not in ".-"
    assert len(name) < 120
    assert Path("/folder", name).parent == Path("/folder")


@given(*[st.builds(RolloutKey, strategies.texts(6) | st.text("a#.~-0/", max_size=5), st.integers(-1, 11))] * 2)
def test_two_rollouts_never_share_a_file(one: RolloutKey, other: RolloutKey) -> None:
    assert (rollout_file(one) == rollout_file(other)) == (one == other)


def test_few_files_are_open_at_a_time(tmp_path: Path) -> None:
    files = RolloutFiles(tmp_path, limit=3)
    before = len(os.listdir("/proc/self/fd"))
    keys = [RolloutKey(f"t{n}", 0) for n in range(10)]
    for line in range(3):
        for key in keys:
            files.write(key, f"{line}\n")
            assert len(os.listdir("/proc/self/fd")) <= before + 3
    files.close(keys[-1])
    assert len(os.listdir("/proc/self/fd")) == before + 2
    files.close_all()
    assert len(os.listdir("/proc/self/fd")) == before
    assert all((tmp_path / rollout_file(key)).read_text() == "0\n1\n2\n" for key in keys)


def test_a_folder_that_is_gone_costs_the_record_and_no_more(tmp_path: Path) -> None:
    folder = tmp_path / "rollouts"
    with configure(to=io.StringIO(), per_rollout=folder) as writer:
        folder.rmdir()
        with within_rollout(RolloutKey("t", 0)), contextlib.suppress(OSError):
            log.info("lost")
        assert writer.flush()
        assert writer.dropped > 0
