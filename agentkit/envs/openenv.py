"""An env on an OpenEnv server, by the client of openenv-core. It runs on asyncio."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import anyio
from anyio.lowlevel import current_token

from agentkit.envs._episodes import OVER, NoAction, opening_with, plain, seed_of
from agentkit.errors import ConfigError, SandboxDead, SandboxError, ToolError
from agentkit.extras import require
from agentkit.protocols.actions import Action, Observation, ObservationStatus
from agentkit.protocols.messages import Json, Message
from agentkit.protocols.task import Task
from agentkit.sandbox import StartPolicy

Act: TypeAlias = Callable[[str], Any]
Render: TypeAlias = Callable[[Any], str]

CLOSE_S = 2.0
_FOREVER_S = 7 * 86_400.0  # the client's own limit for an answer: ours is the rollout's budget
_SAID = re.compile(r"Server error: (?P<text>.*) \(code: (?P<code>\w+)\)", re.DOTALL)
_URL = re.compile(r"\b(\w+://)(?:[^\s/@]*@)?([^\s?#]*)[^\s:]*")
_REFUSED = frozenset({"VALIDATION_ERROR", "EXECUTION_ERROR"})
"""What a server answers to an action that it cannot read, or that the env will not take; the session goes on."""


class OpenEnv:
    """One episode on an OpenEnv server for one rollout. Satisfies Env and Steps.

    `url` is where the server is; `client` makes a client of your own instead, a subclass of openenv's `EnvClient` say.
    `act` makes an action of the policy's answer, and raises ValueError (or ToolError) with what the policy should read
    where it finds none. Without it, the answer is the action's one `field`, and without that it is JSON. `render` makes
    the text that the policy reads of an observation: without it, its only text, or all of it as JSON.

    The conversation opens with the task's messages, `instructions` and the first observation. The seed is
    `task.data["seed"]`, else made from the task's id, so that the rollouts of a task begin alike;
    `task.data["options"]` goes to the env's reset as well. A server that is not there yet, or has no room, is tried
    again as `starts` says, within the set-up budget. An observation's metadata has its `reward`, which is what
    `episode_return` judges by.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        client: Callable[[], Any] | None = None,
        field: str | None = None,
        act: Act | None = None,
        render: Render | None = None,
        instructions: str = "",
        starts: StartPolicy = StartPolicy(),  # noqa: B008  # frozen
    ) -> None:
        if (url is None) == (client is None):
            raise ConfigError("an OpenEnv needs the url of a server or a client, and not both")
        if field is not None and act is not None:
            raise ConfigError("field says what an answer is, and so does act: give one of them")
        self._url = url
        self._make = client
        self._field = field
        self._act = act
        self._render = render
        self._instructions = instructions
        self._starts = starts
        self._client: Any = None
        self._ended: str | None = None
        self.total_reward = 0.0
        """The sum of the rewards so far."""
        self.steps = 0
        """The actions that were taken; answers without one do not count."""

    async def start(self, task: Task, /) -> Sequence[Message]:
        """Connect and begin an episode.

        Raises:
            MissingExtraError: the extra `openenv` is not installed.
            ConfigError: it does not run on asyncio, or the task's seed or options cannot be.
            SandboxError: the server cannot be reached, has no room, or refused to begin.
        Cancellation: `close` ends the session.
        """
        if not hasattr(current_token().native_token, "call_soon_threadsafe"):
            raise ConfigError("the client of OpenEnv runs on asyncio, and this is another event loop")
        options = task.data.get("options", {})
        if not isinstance(options, Mapping):
            raise ConfigError(f"task {task.id!r}: data.options must be a mapping, found {options!r:.80}")
        arguments = {"seed": seed_of(task), **options}
        failed = 0
        while True:
            try:
                result = await self._begin(arguments)
                break
            except SandboxError as error:
                await self._leave()
                failed += 1
                wait_s = self._starts.wait_s(failed)
                out_of_time = anyio.current_time() + wait_s >= anyio.current_effective_deadline()
                if not error.retryable or failed >= self._starts.attempts or out_of_time:
                    raise
            await anyio.sleep(wait_s)
        text = self._text(result.observation)
        return opening_with(task.messages, "\n\n".join(part for part in (self._instructions, text) if part))

    async def step(self, action: Action, /) -> Observation:
        """What the answer caused; an answer that is no action, or that the env refuses, says why.

        Raises:
            SandboxDead: the server is gone, the episode was over, or an earlier step was cut short: its answer would
                be taken for the next one's.
        Cancellation: the step goes on at the server, and there will be no other.
        """
        if self._ended is not None or self._client is None:
            raise SandboxDead(self._ended or "the env was not started, or is closed")
        try:
            chosen = self._chosen(action.content)
        except NoAction as error:
            return _refusal(str(error))
        self._ended = "an earlier step was cut short: what became of it, nobody knows"
        try:
            result = await self._client.step(chosen)
        except RuntimeError as error:
            said = _SAID.fullmatch(str(error))
            if said is None or said["code"] not in _REFUSED:
                raise SandboxDead(f"the OpenEnv server ended the session: {_told(error)}") from error
            self._ended = None
            return _refusal(f"No action was taken: {plain(said['text'])[:500]}")
        except Exception as error:  # whatever the client raises for a connection that is gone
            raise SandboxDead(f"the OpenEnv server is gone: {_told(error)}") from error
        self._ended = "the episode is over" if result.done else None
        reward = float(result.reward or 0.0)
        self.total_reward += reward
        self.steps += 1
        text = self._text(result.observation)
        if result.done:
            text = f"{text}\n\n{OVER}" if text else OVER
        metadata: dict[str, Json] = {"reward": reward, "terminated": bool(result.done)}
        return Observation(text, done=bool(result.done), metadata=metadata)

    async def close(self) -> None:
        """End the session. Cancellation: shielded, 2 s at most; the connection is cut where it does not close."""
        self._ended = "the env is closed"
        await self._leave()

    async def _begin(self, arguments: Mapping[str, object]) -> Any:
        self._client = client = self._made()
        try:
            await client.connect()
            return await client.reset(**arguments)
        except RuntimeError as error:
            said = _SAID.fullmatch(str(error))
            full = said is not None and said["code"] == "CAPACITY_REACHED"
            raise SandboxError(f"the OpenEnv server did not begin: {_told(error)}", retryable=full) from error
        except Exception as error:  # a refused connection, a closed one, a proxy's page
            raise SandboxError(f"the OpenEnv server cannot be reached: {_told(error)}", retryable=True) from error

    def _made(self) -> Any:
        if self._make is not None:
            return self._make()
        openenv: Any = require("openenv.core", extra="openenv", purpose="an env on an OpenEnv server")
        return openenv.GenericEnvClient(self._url, message_timeout_s=_FOREVER_S)

    async def _leave(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        transport = getattr(getattr(client, "_ws", None), "transport", None)
        try:
            with anyio.move_on_after(CLOSE_S, shield=True):
                await client.close()
        except Exception as error:
            raise SandboxError(f"the session on the OpenEnv server was not closed: {_told(error)}") from error
        finally:
            if transport is not None:
                transport.abort()

    def _chosen(self, text: str) -> Any:
        try:
            if self._act is not None:
                return self._act(text)
            if self._field is not None:
                return {self._field: text}
            value = json.loads(text)
        except (ToolError, RecursionError, ValueError) as error:
            told = "expected JSON" if self._act is None else str(error)
            raise NoAction(f"No action was taken: {told}") from error
        if not isinstance(value, dict):
            raise NoAction("No action was taken: expected a JSON object")
        return value

    def _text(self, observation: Any) -> str:
        if self._render is not None:
            return str(self._render(observation))
        dump = getattr(observation, "model_dump", None)
        found = dump() if callable(dump) else observation
        if isinstance(found, dict):
            texts = [value for value in found.values() if isinstance(value, str)]
            if len(texts) == 1:
                return plain(texts[0])
        return plain(found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, default=str))


def _refusal(text: str) -> Observation:
    return Observation(text, status=ObservationStatus.FORMAT_ERROR, metadata={"reward": 0.0})


def _told(error: Exception) -> str:
    """What the client says, short, and without what may be secret in an address."""
    return _URL.sub(r"\1\2", str(error) or type(error).__name__)[:500]
