"""OpenEnv's own server, played through its own client; and servers that are full, slow or gone."""

import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from agentkit import Agent, Budget, ExitReason, OutcomePolicy, Task
from agentkit.envs import OpenEnv, episode_return
from agentkit.errors import ConfigError, SandboxDead, SandboxError
from agentkit.models import ScriptedModel
from agentkit.protocols import Action, Env, ObservationStatus, Steps
from agentkit.sandbox import StartPolicy

pytestmark = pytest.mark.slow
Serve = Callable[..., tuple[str, subprocess.Popen[str]]]
PATIENT = StartPolicy(attempts=100, first_wait_s=0.05, longest_wait_s=0.2)


def say(text: str) -> Action:
    return Action("", text)


async def test_a_game_is_played_and_every_step_has_its_reward(serve: Serve) -> None:
    url, _ = serve()
    made: list[OpenEnv] = []

    def make() -> OpenEnv:
        made.append(OpenEnv(url, field="message", instructions="Answer with a number."))
        assert isinstance(made[-1], Env)
        assert isinstance(made[-1], Steps)
        return made[-1]

    answers = [str(number) for number in range(10)]
    agent = Agent(ScriptedModel(["I do not know", *answers]), env=make, reward=episode_return)
    trajectory = await agent.run(Task("t", "Play.", data={"seed": 5}))
    assert trajectory.exit_reason is ExitReason.FINISHED
    observations = [turn.observations[0] for turn in trajectory.turns]
    assert observations[0].status is ObservationStatus.FORMAT_ERROR
    assert "invalid literal for int" in observations[0].content
    wrong = len(observations) - 2
    assert [each.content for each in observations[1:-1]] == ["higher"] * wrong
    assert observations[-1].content.endswith("The episode is over.")
    assert "found" in observations[-1].content
    assert trajectory.score == 1.0 - 0.25 * wrong
    assert made[0].total_reward == trajectory.score
    assert made[0].steps == wrong + 1


async def opening(url: str, task: Task) -> tuple[str, str]:
    """How it begins, and which number is found first."""
    env = OpenEnv(url, field="message")
    try:
        text = (await env.start(task))[0].content
        for number in range(200):
            if (await env.step(say(str(number)))).done:
                return text, str(number)
        raise AssertionError("no number was right")
    finally:
        await env.close()


async def test_the_rollouts_of_a_task_begin_alike_and_options_reach_the_env(serve: Serve) -> None:
    url, _ = serve()
    first = await opening(url, Task("a", "Play.", data={"options": {"most": 100}}))
    assert first[0] == "Play.\n\nGuess from 0 to 100.", "no escape reaches the policy"
    assert await opening(url, Task("a", "Play.", data={"options": {"most": 100}})) == first
    others = [await opening(url, Task(name, "Play.", data={"options": {"most": 100}})) for name in "bcd"]
    assert any(other != first for other in others)


async def test_json_a_client_of_ones_own_and_what_the_server_cannot_read(serve: Serve) -> None:
    from openenv.core import GenericEnvClient

    url, _ = serve()
    env = OpenEnv(client=lambda: GenericEnvClient(url), render=lambda observation: f"<{observation['echo']}>")
    await env.start(Task("t", data={"seed": 5}))
    for text in ("no json", "[1]", "3", "[" * 100_000, '{"massage": "1"}'):
        refused = await env.step(say(text))
        assert refused.status is ObservationStatus.FORMAT_ERROR
        assert refused.content.startswith("No action was taken: ")
    assert env.steps == 0
    assert (await env.step(say('{"message": "-1"}'))).content == "<higher>"
    await env.close()
    with pytest.raises(SandboxDead, match="the env is closed"):
        await env.step(say('{"message": "-1"}'))


async def test_a_step_that_was_cut_short_is_not_answered_by_the_next(serve: Serve) -> None:
    url, _ = serve()
    env = OpenEnv(url, field="message")
    await env.start(Task("t"))
    with anyio.move_on_after(0.3) as scope:
        await env.step(say("slow"))
    assert scope.cancelled_caught
    with pytest.raises(SandboxDead, match="an earlier step was cut short"):
        await env.step(say("1"))
    await env.close()
    agent = Agent(
        ScriptedModel(["slow", "1"]),
        env=lambda: OpenEnv(url, field="message"),
        budget=Budget(tool_s=0.5),
        outcomes=OutcomePolicy(retries=0),
    )
    trajectory = await agent.run("Play.")
    assert trajectory.exit_reason is ExitReason.ENV_DEAD


async def test_a_server_that_dies_ends_the_world(serve: Serve) -> None:
    url, server = serve()
    env = OpenEnv(url, field="message")
    await env.start(Task("t"))
    server.kill()
    server.wait()
    with pytest.raises(SandboxDead, match="the OpenEnv server is gone"):
        await env.step(say("1"))
    await env.close()


async def test_a_full_server_is_asked_again(serve: Serve) -> None:
    url, _ = serve(room=1)
    first = OpenEnv(url, field="message")
    await first.start(Task("t"))
    impatient = OpenEnv(url, field="message", starts=StartPolicy(attempts=2, first_wait_s=0.01))
    with pytest.raises(SandboxError) as caught:
        await impatient.start(Task("t"))
    assert caught.value.retryable
    await impatient.close()
    second = OpenEnv(url, field="message", starts=PATIENT)

    async def leave() -> None:
        await anyio.sleep(0.5)
        await first.close()

    async with anyio.create_task_group() as group:
        group.start_soon(leave)
        with anyio.fail_after(20):
            await second.start(Task("t"))
    assert (await second.step(say("-1"))).content
    await second.close()


async def test_a_server_that_comes_late_is_found_and_one_that_never_comes_is_told_of(serve: Serve) -> None:
    url, server = serve()
    server.kill()
    server.wait()
    secret = url.replace("http://", "http://user:secret1@") + "?token=secret2"
    env = OpenEnv(secret, starts=StartPolicy(attempts=2, first_wait_s=0.01))
    with pytest.raises(SandboxError, match="the OpenEnv server cannot be reached") as caught:
        await env.start(Task("t"))
    await env.close()
    assert "secret" not in str(caught.value)
    late = OpenEnv(url, field="message", starts=PATIENT)
    async with anyio.create_task_group() as group:

        async def start() -> None:
            with anyio.fail_after(30):
                await late.start(Task("t"))

        group.start_soon(start)
        await anyio.sleep(0.3)
        await anyio.to_thread.run_sync(serve, 8, int(url.rpartition(":")[2]))
    await late.close()


async def test_what_the_env_refuses_to_begin_with_is_not_tried_again(serve: Serve) -> None:
    url, _ = serve()
    env = OpenEnv(url, starts=StartPolicy(attempts=50, first_wait_s=5))
    with pytest.raises(SandboxError, match="most must be at least 1") as caught, anyio.fail_after(10):
        await env.start(Task("t", data={"options": {"most": 0}}))
    assert not caught.value.retryable
    await env.close()


async def test_close_waits_for_no_server_that_hangs(serve: Serve) -> None:
    url, server = serve()
    env = OpenEnv(url, field="message")
    await env.start(Task("t"))
    server.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await env.close()
    assert time.monotonic() - began < 10
    await env.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs the url of a server or a client"),
        ({"url": "http://x", "client": dict}, "not both"),
        ({"url": "http://x", "field": "a", "act": str}, "give one of them"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OpenEnv(**arguments)


def test_on_trio_it_says_so() -> None:
    async def main() -> None:
        env = OpenEnv("http://127.0.0.1:9")
        with pytest.raises(ConfigError, match="runs on asyncio"):
            await env.start(Task("t"))
        await env.close()

    anyio.run(main, backend="trio")
