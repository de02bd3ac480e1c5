"""What a worker process needs to run one agent of verl's, made once: renderer, parser, model, agent, limits."""
# verl is not installed where the library is checked
# pyright: reportMissingImports=false

import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from agentkit.actors import Agent
from agentkit.errors import ConfigError
from agentkit.extras import require
from agentkit.parsing import HermesParser, Qwen3CoderParser
from agentkit.protocols import Renderer, ToolParser
from agentkit.tokens import Images
from agentkit_verl.entry import PARSERS, Entry, agent_names, load_entry
from agentkit_verl.instances import with_tools
from agentkit_verl.media import server_media
from agentkit_verl.model import ServerModel
from agentkit_verl.outputs import RowLimits
from agentkit_verl.pauses import Pauses
from agentkit_verl.tools import ResponseLimit, verl_tools

logger = logging.getLogger(__name__)

_PARSERS: Mapping[str, type[Any]] = {"hermes": HermesParser, "qwen3-coder": Qwen3CoderParser}


@frozen(kw_only=True)
class Handed:
    """What verl hands to an agent loop: E4 to E9 and the tools of its configuration. One object a worker process."""

    config: Any
    client: Any
    tokenizer: Any
    processor: Any
    dataset_cls: Any
    data_config: Any
    tools: tuple[Any, ...] = ()

    @property
    def rollout(self) -> Any:
        """The section `actor_rollout_ref.rollout`."""
        return self.config.actor_rollout_ref.rollout


@frozen(kw_only=True)
class Built:
    """One agent, ready to run in this process, with what it shares with the other workers' shares taken off."""

    entry: Entry
    model: ServerModel
    renderer: Renderer
    limits: RowLimits
    pauses: Pauses
    images: Images
    workers: int
    refills: bool
    """The trainer fetches another group where one failed."""
    handed: Handed

    def agent(self, agent: Agent, params: Mapping[str, Any]) -> Agent:
        """`agent` as it works under verl: with its sampling parameters, its limits, and its tools."""
        rollout, budget = self.handed.rollout, agent.budget
        window = self.limits.prompt_length + self.limits.response_length
        turns = rollout.multi_turn.get("max_assistant_turns", None)
        most_turns = budget.max_turns if not turns else min(budget.max_turns, int(turns))
        tools, env = agent.tools, agent.env
        if self.entry.settings.verl_tools and self.handed.tools:
            multi_turn = rollout.multi_turn
            limit = ResponseLimit(multi_turn.max_tool_response_length, multi_turn.tool_response_truncate_side)
            side_by_side = int(multi_turn.get("max_parallel_calls", None) or 1) > 1
            theirs = verl_tools(self.handed.tools, limit=limit, parallel=side_by_side)
            tools = (*tools, *theirs)
            if any(tool.spec.needs for tool in theirs):  # functions want no instances, which an env must hold
                env = with_tools(env)
        return evolve(
            agent,
            tools=tools,
            env=env,
            params={**agent.params, **params},
            budget=evolve(budget, max_tokens=min(budget.max_tokens, window), max_turns=most_turns),
        )


def build(handed: Handed, name: str) -> Built:
    """The agent `name` of verl's `agent_loop_config_path`. Takes up to some seconds, so it is for a thread.

    Raises:
        ConfigError: lists what does not fit.
    """
    rollout = handed.rollout
    path = _config_path(rollout)
    limits = RowLimits(prompt_length=int(rollout.prompt_length), response_length=int(rollout.response_length))
    pauses, images = Pauses(), Images()
    sees = handed.processor is not None
    model = ServerModel(
        handed.client,
        prompt_length=limits.prompt_length,
        response_length=limits.response_length,
        window=int(rollout.get("max_model_len", None) or limits.prompt_length + limits.response_length),
        logprobs=bool(rollout.calculate_log_probs),
        pauses=pauses,
        shown=functools.partial(server_media, images=images, expanded=rollout.name == "sglang") if sees else None,
    )
    named = agent_names(path, name)
    parts: dict[str, object] = {}
    if "renderer" not in named:
        parts["renderer"] = renderer_of(handed)
    if "parser" not in named:
        parts["parser"] = parser_of(rollout)
    entry = load_entry(path, name, model=model, parts=parts)
    if entry.config.agent.reward is None:
        logger.warning("agent.reward is missing in %s: verl's own reward function is asked for scores", path)
    if entry.config.agent.renderer is None:  # an agent over a token-level model has one
        raise ConfigError(f"{path}: agent.renderer is missing")
    return Built(
        entry=entry,
        model=model,
        renderer=entry.config.agent.renderer,
        limits=limits,
        pauses=pauses,
        images=images,
        workers=max(1, int(rollout.agent.num_workers)),
        refills=_refills(handed.config),
        handed=handed,
    )


def renderer_of(handed: Handed) -> Renderer:
    """The trainer's own tokenizer, with its chat template and `data.apply_chat_template_kwargs`.

    A template that rewrites earlier turns is read as one that keeps what it rendered and what was sampled: that is what
    chains of more than one turn need, and what verl's own loop does.
    """
    from agentkit_hf import hf_renderer, processor_renderer

    given = handed.data_config.get("apply_chat_template_kwargs", None) or {}
    kwargs = {str(key): value for key, value in dict(given).items()}
    make: Any = hf_renderer if handed.processor is None else processor_renderer
    source = handed.tokenizer if handed.processor is None else handed.processor
    try:
        return make(source, **kwargs)  # type: ignore[no-any-return]
    except ConfigError as error:
        if "not append-only" not in str(error):
            raise
        logger.warning("the chat template rewrites earlier turns; chains keep them as they were sampled: %s", error)
        return make(source, keep_history=True, **kwargs)  # type: ignore[no-any-return]


def parser_of(rollout: Any) -> ToolParser:
    """The parser that `rollout.multi_turn.format` names.

    Raises:
        ConfigError: there is none of ours for it.
    """
    name = str(rollout.multi_turn.format)
    if name not in PARSERS:
        raise ConfigError(
            f"rollout.multi_turn.format is {name!r}, for which there is no parser: use one of {', '.join(PARSERS)}, or "
            "name one in the agent's section (parser: my_package:MyParser)"
        )
    return _PARSERS[PARSERS[name]]()  # type: ignore[no-any-return]


def _config_path(rollout: Any) -> Path:
    path = rollout.agent.agent_loop_config_path
    if not path:
        raise ConfigError(
            "rollout.agent.agent_loop_config_path must name the YAML file with the agent, which is where AgentKitLoop "
            "reads it"
        )
    imports: Any = require("verl.utils.import_utils", extra="verl", purpose="an agent loop of verl")
    return Path(imports.resolve_config_path(path))


def _refills(config: Any) -> bool:
    """Whether a failed group is evicted and another fetched: V1's asynchronous trainers do, the sync one if told to."""
    v1 = config.trainer.get("v1", None)
    if not config.trainer.get("use_v1", False) or v1 is None:
        return False
    filters = config.algorithm.get("filter_groups", None)  # it raises for a group that ended well and left no rows
    is_filtered = bool(filters is not None and filters.get("enable", False))
    return (
        str(v1.trainer_mode).endswith("async")
        or is_filtered
        or bool(v1.sampler.get("sync_refill_failed_groups", False))
    )
