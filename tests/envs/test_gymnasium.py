"""Gymnasium's own envs, played through agents; and envs of no good will."""

import threading
import time
from collections.abc import Callable
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit import Agent, Budget, ExitReason, OutcomePolicy, Pool, Task, system, user
from agentkit.envs import GymnasiumEnv, episode_return
from agentkit.envs._episodes import plain
from agentkit.envs.gymnasium import _read
from agentkit.errors import ConfigError, SandboxDead, ToolError
from agentkit.models import ScriptedModel
from agentkit.protocols import Action, Env, ObservationStatus, Steps
from agentkit.tools import stuck_threads

gymnasium = pytest.importorskip("gymnasium")
LAKE = {"is_slippery": False, "render_mode": "ansi"}
DOWN, RIGHT = "1", "2"


def lake() -> GymnasiumEnv:
    return GymnasiumEnv("FrozenLake-v1", arguments=LAKE, instructions="0 left, 1 down, 2 right, 3 up.")


def agent(env: Callable[[], GymnasiumEnv], *answers: str, **more: Any) -> Agent:
    return Agent(ScriptedModel(list(answers)), env=env, reward=episode_return, **more)


class Own:
    """An env of three methods: `log` says which were called, in which thread."""

    def __init__(self, step: Callable[[Any], Any] = lambda action: None) -> None:
        self.log: list[tuple[str, int]] = []
        self.on_step = step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.log.append((f"reset {seed} {options}", threading.get_ident()))
        return "begin", {}

    def step(self, action: Any, /) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.log.append((f"step {action}", threading.get_ident()))
        self.on_step(action)
        return f"after {action}", 1.5, False, action == "end", {}

    def close(self) -> None:
        self.log.append(("close", threading.get_ident()))

    @property
    def calls(self) -> list[str]:
        return [call for call, _ in self.log]


@pytest.mark.slow
async def test_a_lake_is_crossed_and_every_step_has_its_reward() -> None:
    assert isinstance(lake(), Env)
    assert isinstance(lake(), Steps)
    answers = [DOWN, f"I go {DOWN}", "nowhere", RIGHT, "9", DOWN, RIGHT, "right it is: 2"]
    made: list[GymnasiumEnv] = []

    def make() -> GymnasiumEnv:
        made.append(lake())
        return made[-1]

    trajectory = await agent(make, *answers).run(Task("lake", "Cross the lake."))
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert trajectory.grade is not None
    assert trajectory.grade.score is not None
    assert trajectory.score == 1.0
    assert trajectory.grade.score.turns == (0, 0, 0, 0, 0, 0, 0, 1.0)
    assert trajectory.grade.score.metrics == {"steps": 6.0}
    assert (made[0].total_reward, made[0].steps) == (1.0, 6)
    seen = [turn.observations[0] for turn in trajectory.turns]
    assert seen[0].content == "  (Down)\nSFFF\n[F]HFH\nFFFH\nHFFG"
    assert seen[2].status is ObservationStatus.FORMAT_ERROR
    assert seen[2].content == "No action was taken: expected a whole number from 0 to 3"
    assert "expected a whole number from 0 to 3, found 9" in seen[4].content
    assert seen[-1].content.endswith("HFF[G]\n\nThe episode is over.")
    assert seen[-1].metadata == {"reward": 1.0, "terminated": True, "truncated": False}
    assert not stuck_threads()


@pytest.mark.slow
async def test_a_hole_ends_the_episode_without_a_reward() -> None:
    trajectory = await agent(lake, DOWN, RIGHT).run("Cross the lake.")
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert trajectory.score == 0.0


@pytest.mark.slow
async def test_the_rollouts_of_a_task_begin_alike_and_others_do_not() -> None:
    openings: dict[str, set[str]] = {}
    for name in "abcdef":
        for _ in range(2):
            env = GymnasiumEnv("Blackjack-v1")
            opening = await env.start(Task(name, "Play."))
            openings.setdefault(name, set()).add(opening[0].content)
            await env.close()
    assert all(len(texts) == 1 for texts in openings.values())
    assert len(set.union(*openings.values())) > 1
    env = GymnasiumEnv("Blackjack-v1")
    first = await env.start(Task("z", "Play.", data={"seed": 7}))
    await env.close()
    again = await env_opening(Task("y", "Play.", data={"seed": 7}))
    assert first[0].content == again


async def env_opening(task: Task) -> str:
    env = GymnasiumEnv("Blackjack-v1")
    try:
        return (await env.start(task))[0].content
    finally:
        await env.close()


@pytest.mark.slow
async def test_blackjack_and_numbers_in_boxes() -> None:
    trajectory = await agent(lambda: GymnasiumEnv("Blackjack-v1"), "0").run(Task("b", "Play."))
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert trajectory.score in (-1.0, 0.0, 1.0)
    pendulum = GymnasiumEnv("Pendulum-v1")
    try:
        opening = await pendulum.start(Task("p", "Swing."))
        assert opening[0].content.startswith("Swing.\n\n[")
        moved = await pendulum.step(Action("", "[0.5]"))
        assert moved.status is ObservationStatus.OK
        assert isinstance(moved.metadata["reward"], float)
        for wrong in ("0.5", "[5.0]", "[0.5, 0.5]", "up", '["a"]', "[1e999]", "[" * 100_000):
            refused = await pendulum.step(Action("", wrong))
            assert refused.status is ObservationStatus.FORMAT_ERROR
            assert len(refused.content) < 500
        assert pendulum.steps == 1
    finally:
        await pendulum.close()


@pytest.mark.slow
async def test_a_thread_of_its_own_and_arguments_as_the_task_has_them() -> None:
    inner = Own()
    env = GymnasiumEnv(lambda: inner, act=str.upper, render=lambda observation: f"<{observation}>")
    task = Task("t", (system("Rules."), user("Play.")), data={"seed": 5, "options": {"level": 2}})
    opening = await env.start(task)
    assert [(message.role, message.content) for message in opening] == [
        ("system", "Rules."),
        ("user", "Play.\n\n<begin>"),
    ]
    assert (await env.step(Action("", "go"))).content == "<after GO>"
    await env.close()
    assert inner.calls == ["reset 5 {'level': 2}", "step GO", "close"]
    threads = {thread for _, thread in inner.log}
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    with anyio.fail_after(10):
        while any(thread.ident in threads for thread in threading.enumerate()):
            await anyio.sleep(0.01)


@pytest.mark.slow
async def test_a_truncated_episode_is_over() -> None:
    env = GymnasiumEnv(Own, act=str)
    await env.start(Task("t"))
    observation = await env.step(Action("", "end"))
    assert observation.done
    assert observation.metadata == {"reward": 1.5, "terminated": False, "truncated": True}
    with pytest.raises(SandboxDead, match="the episode is over"):
        await env.step(Action("", "more"))
    await env.close()


@pytest.mark.slow
async def test_an_act_that_finds_nothing_tells_the_policy() -> None:
    def act(text: str) -> str:
        raise ToolError(f"write a move, not {text!r}") if text == "a" else ValueError("write a move")

    env = GymnasiumEnv(Own, act=act)
    await env.start(Task("t"))
    assert (await env.step(Action("", "a"))).content == "No action was taken: write a move, not 'a'"
    assert (await env.step(Action("", "b"))).content == "No action was taken: write a move"
    await env.close()


@pytest.mark.slow
async def test_a_step_that_hangs_holds_nobody_and_is_named() -> None:
    release = threading.Event()
    inner = Own(lambda action: release.wait(30))
    began = time.monotonic()
    play = agent(
        lambda: GymnasiumEnv(lambda: inner, act=str),
        "hang",
        "more",
        budget=Budget(tool_s=0.3, grace_s=0.5),
        outcomes=OutcomePolicy(retries=0),
    )
    async with Pool(play) as pool:
        trajectory = await pool.start("Play.").result()
        assert time.monotonic() - began < 10
        assert [turn.observations[0].status for turn in trajectory.turns] == [
            ObservationStatus.TIMEOUT,
            ObservationStatus.ERROR,
        ]
        assert trajectory.exit_reason is ExitReason.ENV_DEAD, "what became of the step, nobody knows"
    assert any(name.endswith("<lambda>.step") for name in stuck_threads())
    assert inner.calls == ["reset " + inner.calls[0].split()[1] + " None", "step hang"]
    release.set()
    with anyio.fail_after(10):
        while "close" not in inner.calls or stuck_threads():
            await anyio.sleep(0.01)
    assert inner.calls.count("close") == 1


@pytest.mark.slow
async def test_a_start_that_is_cut_short_closes_the_env_when_it_returns() -> None:
    release = threading.Event()
    inner = Own()

    def make() -> Own:
        release.wait(30)
        return inner

    env = GymnasiumEnv(make)
    with anyio.move_on_after(0.2):
        await env.start(Task("t"))
    await env.close()
    assert inner.calls == []
    release.set()
    with anyio.fail_after(10):
        while "close" not in inner.calls:
            await anyio.sleep(0.01)


@pytest.mark.slow
async def test_what_the_env_raises_is_the_envs() -> None:
    def fail(action: Any) -> None:
        raise (SystemExit(3) if action == "exit" else KeyError("broken"))

    play = agent(lambda: GymnasiumEnv(lambda: Own(fail), act=str), "x", outcomes=OutcomePolicy(retries=0))
    trajectory = await play.run("Play.")
    assert trajectory.exit_reason is ExitReason.ENV_DEAD
    assert "broken" in (trajectory.error or "")
    env = GymnasiumEnv(lambda: Own(fail), act=str)
    await env.start(Task("t"))
    with pytest.raises(SandboxDead, match="SystemExit"):
        await env.step(Action("", "exit"))
    await env.close()


@pytest.mark.slow
async def test_what_cannot_be_made_is_the_callers_to_mend() -> None:
    for env, message in (
        (GymnasiumEnv("NoSuchLake-v1"), "the env 'NoSuchLake-v1' cannot be made"),
        (GymnasiumEnv("FrozenLake-v1", arguments={"no": 1}), "cannot be made"),
    ):
        with pytest.raises(ConfigError, match=message):
            await env.start(Task("t"))
        await env.close()
    for data in ({"seed": -1}, {"seed": "1"}, {"options": 3}):
        env = GymnasiumEnv(Own)
        with pytest.raises(ConfigError, match=r"task 't': data\.(seed|options) must be"):
            await env.start(Task("t", data=data))
        await env.close()


def test_arguments_belong_to_a_name() -> None:
    with pytest.raises(ConfigError, match="arguments go with the name"):
        GymnasiumEnv(Own, arguments={"a": 1})
    with pytest.raises(ConfigError, match="make must be"):
        GymnasiumEnv(3)  # type: ignore[arg-type]


async def test_close_without_a_start_starts_nothing() -> None:
    before = threading.active_count()
    await GymnasiumEnv(Own).close()
    assert threading.active_count() == before


def spaces() -> st.SearchStrategy[Any]:
    kinds = gymnasium.spaces
    return st.sampled_from(
        [
            kinds.Discrete(4),
            kinds.Discrete(3, start=-1),
            kinds.Box(-1, 1, (2,), np.float32),
            kinds.MultiDiscrete([2, 3]),
            kinds.MultiBinary(3),
            kinds.Text(10),
            kinds.Dict({"a": kinds.Discrete(2)}),
        ]
    )


@given(
    spaces(), st.text(max_size=20) | st.sampled_from(["[1, 2]", "-1", "[0.5, 0.1]", '{"a": 1}', "9" * 30, "[]", "NaN"])
)
def test_any_answer_is_an_action_or_a_word_about_it(space: Any, text: str) -> None:
    told = ""
    try:
        assert space.contains(_read(text, space)) in (True, False)
    except ValueError as error:
        told = str(error)
    assert not told or told.startswith("expected ")


@given(
    st.text(max_size=40)
    | st.lists(st.sampled_from(["\x1b[41m", "\x1b[0m", "S", "\x1b", "\x9b", "\n", "["])).map("".join)
)
def test_no_escape_reaches_the_policy(text: str) -> None:
    shown = plain(text)
    assert not any((ord(letter) < 32 and letter not in "\t\n") or 0x7F <= ord(letter) < 0xA0 for letter in shown)
