"""Any gymnasium env as an env: observations as text, actions from text, rewards beside the observations."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from agentkit.envs._episodes import OVER, NoAction, opening_with, plain, seed_of
from agentkit.envs._worker import Worker
from agentkit.errors import ConfigError, SandboxDead, ToolError
from agentkit.extras import require
from agentkit.protocols.actions import Action, Observation, ObservationStatus
from agentkit.protocols.messages import Json, Message
from agentkit.protocols.task import Task

Act: TypeAlias = Callable[[str], Any]
Render: TypeAlias = Callable[[Any], str]

_NUMBER = re.compile(r"-?\d+")


class StepEnv(Protocol):
    """The part of `gymnasium.Env` that is used."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: the first observation, and what is told beside it."""
        ...

    def step(self, action: Any, /) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Observation, reward, terminated, truncated, and what is told beside it."""
        ...

    def close(self) -> None:
        """Leave nothing behind."""
        ...


class GymnasiumEnv:
    """One episode of a gymnasium env for one rollout. Satisfies Env and Steps.

    `make` is the name of a registered env, made with `arguments`, or a function that makes one; any object with
    `reset`, `step` and `close` will do. It runs in a thread of its own, so it may block, though not hold the GIL.

    `render` makes the text that the policy reads of an observation. Without it, that is the env's own picture in
    letters where it is made with `render_mode="ansi"`, what was in colour in brackets, and else the observation's own
    text. `act` makes an action of the policy's answer, and raises ValueError (or ToolError) with what the policy should
    read where it finds none. Without it, the last whole number is the action in a discrete space, the whole answer in
    a space of texts, and JSON in any other.

    The conversation opens with the task's messages, `instructions` and the first observation. The seed is
    `task.data["seed"]`, else made from the task's id, so that the rollouts of a task begin alike;
    `task.data["options"]` goes to the env's reset. An observation's metadata has its `reward`, `terminated` and
    `truncated`, which is what `episode_return` judges by.
    """

    def __init__(
        self,
        make: str | Callable[[], StepEnv],
        *,
        arguments: Mapping[str, Json] | None = None,
        render: Render | None = None,
        act: Act | None = None,
        instructions: str = "",
    ) -> None:
        if not isinstance(make, str) and not callable(make):
            raise ConfigError(f"make must be the name of an env or a function that makes one, found {make!r:.80}")
        if arguments and not isinstance(make, str):
            raise ConfigError("arguments go with the name of an env; a function that makes one has its own")
        self._make = make
        self._arguments = dict(arguments or {})
        self._render = render
        self._act = act
        self._instructions = instructions
        self._env: StepEnv | None = None
        self._worker = Worker(make if isinstance(make, str) else getattr(make, "__name__", "env"))
        self._over = False
        self.total_reward = 0.0
        """The sum of the rewards so far."""
        self.steps = 0
        """The actions that were taken; answers without one do not count."""

    async def start(self, task: Task, /) -> Sequence[Message]:
        """Make the env and begin an episode.

        Raises:
            MissingExtraError: an env is named, and the extra `gymnasium` is not installed.
            ConfigError: there is no env of that name, or the task's seed or options cannot be.
        Cancellation: the env is abandoned in its thread, where `close` sees to it.
        """
        seed, options = seed_of(task), task.data.get("options")
        if options is not None and not isinstance(options, dict):
            raise ConfigError(f"task {task.id!r}: data.options must be a mapping, found {options!r:.80}")
        given: dict[str, Any] | None = options

        def begin() -> str:
            self._env = env = self._made()
            observation, _ = env.reset(seed=seed, options=given)
            return self._text(env, observation)

        text = await self._worker.call(begin, what="reset")
        return opening_with(task.messages, "\n\n".join(part for part in (self._instructions, text) if part))

    async def step(self, action: Action, /) -> Observation:
        """What the answer caused; an answer without an action says what was expected, and nothing happens.

        Raises:
            SandboxDead: an earlier step was cut short, or the episode was over.
        Cancellation: the step goes on in its thread, and there will be no other.
        """
        env = self._env
        if env is None or self._over:
            raise SandboxDead("the episode is over" if env is not None else "the env was not started, or is closed")

        def advance() -> tuple[str, float, bool, bool]:
            chosen = self._chosen(env, action.content)
            observation, reward, terminated, truncated, _ = env.step(chosen)
            return self._text(env, observation), float(reward), bool(terminated), bool(truncated)

        try:
            text, reward, terminated, truncated = await self._worker.call(advance, what="step")
        except NoAction as error:
            return Observation(str(error), status=ObservationStatus.FORMAT_ERROR, metadata={"reward": 0.0})
        self.total_reward += reward
        self.steps += 1
        self._over = terminated or truncated
        if self._over:
            text = f"{text}\n\n{OVER}" if text else OVER
        metadata: dict[str, Json] = {"reward": reward, "terminated": terminated, "truncated": truncated}
        return Observation(text, done=self._over, metadata=metadata)

    async def close(self) -> None:
        """Close the env. Cancellation: it closes in its thread, without anybody waiting."""
        self._over = True
        if not self._worker.started:
            return

        def leave() -> None:
            env, self._env = self._env, None
            if env is not None:
                env.close()

        try:
            await self._worker.call(leave, what="close")
        except SandboxDead:  # a call that was cut short is still under way: afterwards, then
            return
        finally:
            self._worker.end(leave)

    def _made(self) -> StepEnv:
        if not isinstance(self._make, str):
            return self._make()
        gymnasium: Any = require("gymnasium", extra="gymnasium", purpose=f"the env {self._make!r}")
        try:
            made: StepEnv = gymnasium.make(self._make, **self._arguments)
        except (gymnasium.error.Error, TypeError) as error:
            raise ConfigError(f"the env {self._make!r} cannot be made: {error}") from error
        return made

    def _text(self, env: StepEnv, observation: Any) -> str:
        if self._render is not None:
            return str(self._render(observation))
        picture = env.render() if getattr(env, "render_mode", None) == "ansi" else None  # type: ignore[attr-defined]
        return plain(picture if isinstance(picture, str) else str(_bare(observation)))

    def _chosen(self, env: StepEnv, text: str) -> Any:
        space = getattr(env, "action_space", None)
        try:
            chosen = _read(text, space) if self._act is None else self._act(text)
        except (ValueError, ToolError) as error:
            raise NoAction(f"No action was taken: {error}") from error
        if space is not None and not space.contains(chosen):
            raise NoAction(f"No action was taken: {_expected(space)}, found {chosen!r:.80}")
        return chosen


def _read(text: str, space: Any) -> Any:
    """The action that `text` stands for in `space`.

    Raises:
        ValueError: there is none.
    """
    kind = type(space).__name__
    if kind == "Text":
        return text.strip()
    if kind == "Discrete":
        numbers = _NUMBER.findall(text)
        if not numbers or len(numbers[-1]) > 18:
            raise ValueError(_expected(space))
        return int(numbers[-1])
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(_expected(space)) from None
    dtype = getattr(space, "dtype", None)
    if kind in ("Box", "MultiBinary", "MultiDiscrete") and dtype is not None:
        numpy: Any = require("numpy", extra="gymnasium", purpose="an action of numbers")
        try:
            return numpy.asarray(value, dtype=dtype)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(_expected(space)) from None
    return value


def _bare(value: Any) -> Any:
    """`value` with numbers as Python writes them; arrays as they write themselves."""
    if isinstance(value, tuple | list):
        return type(value)(map(_bare, value)) if type(value) in (tuple, list) else value
    if isinstance(value, dict):
        return {key: _bare(item) for key, item in value.items()}
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "shape", None) == () else value


def _expected(space: Any) -> str:
    if type(space).__name__ == "Discrete":
        first = int(space.start)
        return f"expected a whole number from {first} to {first + int(space.n) - 1}"
    return f"expected JSON that fits {space}"
