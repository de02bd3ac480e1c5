"""An agent: a policy and everything it works with, checked when it is composed."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from attrs import field, frozen

from agentkit.actors.loops import react
from agentkit.actors.outcomes import OutcomePolicy
from agentkit.errors import ConfigError
from agentkit.protocols import (
    Budget,
    Env,
    HasRenderer,
    Json,
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

Loop: TypeAlias = "Callable[[Rollout], Awaitable[None]]"
EnvFactory: TypeAlias = Callable[[], Env]
ToolFactory: TypeAlias = Callable[[], Tool]
RewardFactory: TypeAlias = "Callable[[], Reward[Any]]"  # a reward names the env class it knows


def _tuple(value: Sequence[Tool | ToolFactory]) -> tuple[Tool | ToolFactory, ...]:
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
        if not isinstance(self.model, TokenModel | MessageModel):
            raise ConfigError(
                f"agent.model must have sample_tokens or sample_message, found {type(self.model).__name__}: "
                "see agentkit.protocols.TokenModel and MessageModel"
            )
        if isinstance(self.model, TokenModel):
            self._fill("renderer", Renderer)
            self._fill("parser", ToolParser)
        for name, kind in (("budget", Budget), ("outcomes", OutcomePolicy)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise ConfigError(f"agent.{name} must be of {kind.__name__}, found {value!r}")
        for name in ("loop", "reward"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ConfigError(f"agent.{name} must be an async function or another callable, found {value!r}")
        if inspect.isfunction(self.loop) and not inspect.iscoroutinefunction(self.loop):
            raise ConfigError(f"agent.loop must be an async function, found the plain function {self.loop.__name__}")
        env: object = self.env
        if inspect.isclass(env):
            _check_env(env)
        if env is not None and not callable(env):
            raise ConfigError(
                f"agent.env must be a class or a function that makes one env for each rollout, found an object of "
                f"{type(self.env).__name__}: pass the class itself, or a lambda"
            )
        tools = self.make_tools()
        names = [tool.spec.name for tool in tools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"agent.tools has several tools of one name: {', '.join(map(repr, twice))}")
        check_needs(tools, self.env)

    def _fill(self, name: str, kind: type) -> None:
        if getattr(self, name) is None:
            if isinstance(self.model, HasRenderer):
                object.__setattr__(self, name, getattr(self.model, name))  # frozen, and still being made
                return
            raise ConfigError(
                f"agent.{name} is missing: {type(self.model).__name__} samples tokens and brings no {kind.__name__} "
                f"of its own; pass {name}=..."
            )

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
        return cast("Reward[Any]", reward() if inspect.isclass(reward) else reward)

    async def run(self, task: Task | str, *, index: int = 0) -> Trajectory:
        """One rollout on its own, sealed whatever happens to it.

        Cancellation: the rollout is cancelled and its env closed before the cancellation goes on.
        """
        from agentkit.actors.pool import Pool  # the pool knows agents, not the other way round

        if isinstance(task, str):
            task = Task("task", task)
        async with Pool(self, max_rollouts=1) as pool:
            return await pool.start(task, index=index).result()


def _check_env(env: type) -> None:
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
