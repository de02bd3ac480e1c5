"""An agent: a policy and everything it works with, checked when it is composed."""

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from attrs import field, frozen

from agentkit.actors.loops import react
from agentkit.actors.outcomes import OutcomePolicy
from agentkit.errors import ConfigError
from agentkit.protocols import (
    Budget,
    Env,
    Json,
    Message,
    MessageModel,
    Model,
    Renderer,
    Reward,
    Task,
    TokenModel,
    Tool,
    ToolParser,
    Trajectory,
)
from agentkit.tools import check_needs

if TYPE_CHECKING:
    from agentkit.actors.rollout import Rollout

logger = logging.getLogger(__name__)

Loop: TypeAlias = "Callable[[Rollout], Awaitable[None]]"
EnvFactory: TypeAlias = Callable[[], Env]
ToolFactory: TypeAlias = Callable[[], Tool]
RewardFactory: TypeAlias = "Callable[[], Reward[Any]]"  # a reward names the env class it knows


def _tuple(value: Sequence[Tool | ToolFactory]) -> tuple[Tool | ToolFactory, ...]:
    if isinstance(value, Tool):
        raise ConfigError(f"agent.tools must be a list of tools, found the tool {value.spec.name!r}: [it] will do")
    return tuple(value)


@frozen
class Agent:
    """A model, an env, tools, a reward, a loop and a budget.

    `env`, and those of `tools` and `reward` that hold state, are classes or functions without arguments: one object is
    made for each rollout (and one of each tool when the agent is composed, to check it). `renderer` and `parser` are
    needed by token-level models that do not bring their own. `params` go to the model with each request.
    `on_rewrite` says what happens where the chat template cannot be extended append-only: an error, or a new chain.

    Raises:
        ConfigError: the parts do not fit; the message lists what to change.
    """

    model: Model
    env: EnvFactory | None = field(default=None, kw_only=True)
    tools: tuple[Tool | ToolFactory, ...] = field(default=(), kw_only=True, converter=_tuple)
    reward: "Reward[Any] | RewardFactory | None" = field(default=None, kw_only=True)
    loop: Loop = field(default=react, kw_only=True)
    budget: Budget = field(factory=Budget, kw_only=True)
    renderer: Renderer | None = field(default=None, kw_only=True)
    parser: ToolParser | None = field(default=None, kw_only=True)
    params: Mapping[str, Json] = field(factory=dict, kw_only=True)
    outcomes: OutcomePolicy = field(factory=OutcomePolicy, kw_only=True)
    on_rewrite: Literal["error", "new_chain"] = field(default="error", kw_only=True)
    model_retries: int = field(default=3, kw_only=True)
    name: str = field(default="agent", kw_only=True)

    def __attrs_post_init__(self) -> None:
        model: object = self.model
        if inspect.isclass(model):
            raise ConfigError(f"agent.model must be a model, found {model!r}: make one of it")
        if not isinstance(self.model, TokenModel | MessageModel):
            raise ConfigError(
                f"agent.model must have sample_tokens or sample_message, found {type(self.model).__name__}: "
                "see agentkit.protocols.TokenModel and MessageModel"
            )
        if isinstance(self.model, TokenModel):
            self._fill("renderer", Renderer)
            self._fill("parser", ToolParser)
        _check_values(self)
        _check_calls(self)
        _check_env(self.env)
        tools = self.make_tools()
        names = [tool.spec.name for tool in tools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"agent.tools has several tools of one name: {', '.join(map(repr, twice))}")
        check_needs(tools, self.env)
        _check_shown(self.renderer if self.token_level else None, tools)

    def _fill(self, name: str, kind: type) -> None:
        if getattr(self, name) is None:
            brought = getattr(self.model, name, None)  # by name: a model may know its renderer and no parser
            if not isinstance(brought, kind):
                raise ConfigError(
                    f"agent.{name} is missing: {type(self.model).__name__} samples tokens and brings no "
                    f"{kind.__name__} of its own; pass {name}=..."
                )
            object.__setattr__(self, name, brought)  # frozen, and still being made

    @property
    def token_level(self) -> bool:
        """Whether the model takes and gives token ids."""
        return isinstance(self.model, TokenModel)

    def make_env(self) -> Env | None:
        """A fresh env, or None for an agent without one."""
        return None if self.env is None else self.env()

    def make_tools(self) -> tuple[Tool, ...]:
        """The tools of one rollout: fresh ones from factories, shared ones as they are.

        Raises:
            ConfigError: something among the tools is none.
        """
        tools = []
        for index, item in enumerate(self.tools):
            made: object = item
            if inspect.isclass(made) or not isinstance(made, Tool):
                if not callable(made) or inspect.iscoroutinefunction(made) or _needs_arguments(made):
                    raise ConfigError(
                        f"agent.tools[{index}] is no tool and no factory of one, found {item!r}: "
                        "decorate a function with @agentkit.tool, or pass an object with spec and call"
                    )
                made = cast("ToolFactory", item)()
            if not isinstance(made, Tool):
                raise ConfigError(f"agent.tools[{index}] made {type(made).__name__}, which has no spec and call")
            tools.append(made)
        return tuple(tools)

    def make_reward(self, reward: "Reward[Any] | RewardFactory") -> "Reward[Any]":
        """The reward of one rollout: a fresh one from a class."""
        if inspect.isclass(reward):
            return cast("RewardFactory", reward)()
        return cast("Reward[Any]", reward)

    async def run(self, task: Task | str, *, index: int = 0) -> Trajectory:
        """One rollout on its own, sealed whatever happens to it.

        Cancellation: the rollout is cancelled and its env closed before the cancellation goes on.
        """
        from agentkit.actors.pool import Pool  # the pool knows agents, not the other way round

        if isinstance(task, str):
            task = Task("task", task)
        async with Pool(self, max_rollouts=1) as pool:
            return await pool.start(task, index=index).result()


def _check_values(agent: Agent) -> None:
    for name, kind in (("budget", Budget), ("outcomes", OutcomePolicy)):
        value = getattr(agent, name)
        if not isinstance(value, kind):
            raise ConfigError(f"agent.{name} must be of {kind.__name__}, found {value!r}")


def _check_calls(agent: Agent) -> None:
    for name in ("sample_tokens", "sample_message"):
        method = getattr(agent.model, name, None)
        if inspect.ismethod(method) and not inspect.iscoroutinefunction(method):
            raise ConfigError(f"agent.model: {type(agent.model).__name__}.{name} must be async, found a plain method")
    loop: object = agent.loop
    if not callable(loop) or (inspect.isfunction(loop) and not inspect.iscoroutinefunction(loop)):
        raise ConfigError(f"agent.loop must be an async function, found {loop!r}")
    reward: object = agent.reward
    if reward is not None and not callable(reward):
        raise ConfigError(f"agent.reward must be an async function or another callable, found {reward!r}")
    if inspect.isfunction(reward) and not _takes_two(reward):  # trajectory and env
        raise ConfigError(
            f"agent.reward is called with (trajectory, env), but {reward.__name__} takes fewer arguments; "
            f"where it makes a reward, call it: {reward.__name__}()"
        )


def _takes_two(function: Callable[..., object]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return len(parameters) >= 2 or any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)


def _check_shown(renderer: Renderer | None, tools: Sequence[Tool]) -> None:
    """A renderer that cannot show these tools says so now, not in every rollout."""
    if renderer is None or not tools:
        return
    try:
        renderer.prompt([Message("user", "x")], [tool.spec for tool in tools])
    except ConfigError:
        raise
    except Exception as error:  # a template may want more than one word of a user: a rollout will see
        logger.debug("trying agent.renderer with the agent's tools: %r", error)


def _check_env(env: object) -> None:
    if env is not None and not callable(env):
        raise ConfigError(
            "agent.env must be a class or a function that makes one env for each rollout, found an object of "
            f"{type(env).__name__}: pass the class itself, or a lambda"
        )
    if not inspect.isclass(env):
        return
    for name in ("start", "close"):
        method = getattr(env, name, None)
        if method is None:
            raise ConfigError(f"agent.env: {env.__name__} has no {name}; an env has async methods start and close")
        if inspect.isfunction(method) and not inspect.iscoroutinefunction(method):
            raise ConfigError(f"agent.env: {env.__name__}.{name} must be async, found a plain method")


def _needs_arguments(factory: object) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()  # type: ignore[arg-type]  # callable, as checked
    except (TypeError, ValueError):
        return False
    return any(
        parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        for parameter in parameters
    )
