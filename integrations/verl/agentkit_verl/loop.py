# verl and torch are not installed where the library is checked
# pyright: basic, reportMissingImports=false
"""The agent loop that verl's YAML names: production rollouts in, rows of a batch out."""

import asyncio
import functools
import logging
import sys
from array import array
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from attrs import evolve
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from agentkit.errors import AgentkitError, ConfigError
from agentkit.protocols import Outcome, Trajectory
from agentkit.tokens import shown_in
from agentkit_verl.building import Built, Handed, build
from agentkit_verl.groups import Groups
from agentkit_verl.media import multi_modal_data
from agentkit_verl.model import Taken
from agentkit_verl.outputs import Row
from agentkit_verl.rows import FIELD, RowInfo
from agentkit_verl.version import check_verl_version
from agentkit_verl.worker import SessionRows, Worker

logger = logging.getLogger(__name__)

_check_once = functools.cache(check_verl_version)  # reading the metadata takes as long as a turn; errors are not kept


class AgentKitLoop(AgentLoopBase):
    """Runs an agent of agentkit for verl: `_target_: agentkit_verl.AgentKitLoop` in `agent_loop_config_path`.

    verl makes one for each trajectory; what it needs is made once for each worker process. A session returns a list of
    rows to V1 trainers, none where nothing may be trained on; v0 gets exactly one, masked where nothing may be.

    Raises:
        ConfigError: verl is of a version that this was not run with.
    """

    def __init__(self, *args: Any, tools: Any = None, name: str = "agentkit", **kwargs: Any) -> None:
        _check_once()
        super().__init__(*args, **kwargs)
        self._name = name
        self._tools = tuple(getattr(tools, "tools", None) or ())
        self._process = _process_of(self.server_manager)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """One session: its rows for V1, one row for v0.

        Raises:
            AgentkitError: the agent's configuration or the row is at fault, or its group is lost.
        Cancellation: the rollout is ended, sealed, and its env closed before the cancellation goes on.
        """
        is_v1 = "session_id" in row
        key = (
            (self._name, str(row["uid"]))
            if "uid" in row
            else (self._name, str(row.get("index")), str(row["raw_prompt"]))
        )
        group = self._process.groups.join(key)  # before anything is awaited: all siblings join before one goes on
        number = int(row["session_id"]) if is_v1 else group.joined - 1
        try:
            try:
                worker = await self._process.worker(self)
            except BaseException:
                group.settle(Outcome.DROP)
                raise
            session = await worker.session(
                _plain(row), sampling_params, group, number=number, validate=_is_validation()
            )
        finally:
            self._process.groups.leave(key, group)
        outputs = [_output(row_, session, worker.built, row, compact=is_v1) for row_ in session.rows]
        if is_v1:
            return outputs
        return outputs[-1] if outputs else _placeholder(session, worker.built, row, self.tokenizer)

    def handed(self) -> Handed:
        """What verl handed over, but for what belongs to one trajectory."""
        return Handed(
            config=self.config,
            client=self.server_manager,
            tokenizer=self.tokenizer,
            processor=self.processor,
            dataset_cls=self.dataset_cls,
            data_config=self.data_config,
            tools=self._tools,
        )


class _Process:
    """What the loops of one worker process share: its agents, each made once, and the groups under way."""

    def __init__(self) -> None:
        self.groups = Groups()
        self._workers: dict[str, asyncio.Task[Worker]] = {}

    async def worker(self, loop: AgentKitLoop) -> Worker:
        """The worker of the loop's agent, made by the first that asks.

        Cancellation: it is made all the same, for the others.
        """
        name = loop._name
        making = self._workers.get(name)
        if making is None or (making.done() and not _is_alive(making)):
            making = self._workers[name] = asyncio.create_task(_make(loop.handed(), name, before=making))
        return await asyncio.shield(making)

    async def close(self) -> None:
        """End all workers. Cancellation: those that were reached end."""
        while self._workers:
            _, making = self._workers.popitem()
            await asyncio.wait((making,))  # one that is being made would live on
            if not making.cancelled() and making.exception() is None:
                await making.result().close()


def _is_alive(made: "asyncio.Task[Worker]") -> bool:
    return not made.cancelled() and made.exception() is None and made.result().alive


async def _make(handed: Handed, name: str, *, before: "asyncio.Task[Worker] | None" = None) -> Worker:
    if before is not None and not before.cancelled() and before.exception() is None:
        await before.result().close()  # the one before may not have let go of its journal yet
    try:
        built = await asyncio.to_thread(build, handed, name)
    except AgentkitError:
        raise
    except Exception as error:
        raise ConfigError(f"the agent {name!r} cannot be made: {type(error).__name__}: {error}") from error
    return Worker(built)


# verl makes and drops loop objects; what lives as long as the process hangs on the one thing that does, the client.
_PROCESSES: "WeakKeyDictionary[Any, _Process]" = WeakKeyDictionary()


def _process_of(client: Any) -> _Process:
    process = _PROCESSES.get(client)
    if process is None:
        process = _PROCESSES[client] = _Process()
    return process


async def close_workers() -> None:
    """End what `AgentKitLoop`s have under way in this process, and close it: for tests, and for a clean exit.

    Cancellation: see `Worker.close`.
    """
    for process in list(_PROCESSES.values()):
        await process.close()


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row without the tensors that some datasets add."""
    return {key: value for key, value in row.items() if not isinstance(value, torch.Tensor)}


def _is_validation() -> bool:
    """Whether verl runs this session to validate. Agent loops are not told, but verl's own code above them knows.

    All callers are looked at: Ray wraps the methods of its actors, so that verl's is not the task's outermost one.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        if "trajectory" in frame.f_code.co_varnames:
            trajectory = frame.f_locals.get("trajectory")
            if isinstance(trajectory, Mapping) and "validate" in trajectory:
                return bool(trajectory["validate"])
        frame = frame.f_back
    return False


_OF_TOKENS = ("prompt_ids", "response_ids", "response_mask", "response_logprobs", "routed_experts", "token_rewards")


class AgentKitOutput(AgentLoopOutput):
    """One row. Token ids, mask and log-probabilities are kept as arrays, 9 bytes a token, until verl wants tensors."""

    token_rewards: Any = None
    """What the reward said of single tokens, where the agent's credit asks for that; (R,)."""

    def as_dict(self) -> dict[str, Any]:
        """As verl's own, from arrays; `rm_scores` are those of turns or tokens where the agent's credit asks for them.

        Shapes: `prompts` (P,), `responses`, `response_mask`, `rollout_log_probs` and `rm_scores` (R,).
        """
        rest = {key: getattr(self, key) for key in self.model_fields_set if key not in _OF_TOKENS}
        output: dict[str, Any] = AgentLoopOutput(prompt_ids=[0], response_ids=[0], response_mask=[0], **rest).as_dict()
        output["prompts"] = _tensor(self.prompt_ids, torch.int64)
        output["responses"] = _tensor(self.response_ids, torch.int64)
        output["response_mask"] = mask = _tensor(self.response_mask, torch.int64)
        if self.response_logprobs is not None:
            output["rollout_log_probs"] = _tensor(self.response_logprobs, torch.float32)
        if "rm_scores" in output:
            output["rm_scores"] = torch.zeros(len(mask), dtype=torch.float32)
            if self.token_rewards is None:
                output["rm_scores"][-1] = self.reward_score
            else:
                output["rm_scores"][:] = _tensor(self.token_rewards, torch.float32)
        if self.routed_experts is not None:
            experts = torch.as_tensor(self.routed_experts, dtype=torch.int16)
            total = len(self.prompt_ids) + len(mask)
            aligned = experts.new_zeros((total, *experts.shape[1:]))
            aligned[: min(len(experts), total)] = experts[:total]
            output["routed_experts"] = aligned
        return output


_DTYPES = {"b": torch.int8, "i": torch.int32, "f": torch.float32}


def _tensor(values: "array[Any]", dtype: torch.dtype) -> torch.Tensor:
    """A tensor of its own from an array, by its buffer: `torch.tensor` would make an object of each item."""
    if not values:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(values, dtype=_DTYPES[values.typecode]).to(dtype, copy=True)


def _output(
    row: Row, session: SessionRows, built: Built, given: Mapping[str, Any], *, compact: bool
) -> AgentLoopOutput:
    info, taken, trajectory = row.info, session.taken, row.trajectory
    fields = _fields(info, row, given, session)
    stop = len(row.prompt_ids) + len(row.response_ids)
    experts = taken.experts_of(trajectory.chains[row.chain].ids, stop) if taken.experts else None
    media = _media(row, built)
    made: dict[str, Any] = {
        "prompt_ids": row.prompt_ids,
        "response_ids": row.response_ids,
        "response_mask": array("b", row.response_mask),
        "response_logprobs": row.logprobs if built.handed.rollout.calculate_log_probs else None,
        "num_turns": row.num_turns,
        "metrics": _metrics(session.info, taken),
        "extra_fields": fields,
        "reward_score": info.score,
        "token_rewards": row.rewards,
    }
    if experts is not None:
        made["routed_experts"] = experts
    if media:
        made["multi_modal_data"] = media
    if compact:
        return AgentKitOutput.model_construct(**{key: value for key, value in made.items() if value is not None})
    del made["token_rewards"]  # v0 has scalar rewards only
    for name in ("prompt_ids", "response_ids", "response_mask", "response_logprobs"):
        made[name] = None if made[name] is None else list(made[name])
    return AgentLoopOutput(**made)


def _media(row: Row, built: Built) -> dict[str, Any]:
    if built.handed.processor is None:
        return {}
    shown = shown_in(row.trajectory, row.chain, built.renderer)  # type: ignore[arg-type]  # a processor's places media
    return multi_modal_data(shown, built.images, length=len(row.prompt_ids) + len(row.response_ids))


def _metrics(info: RowInfo, taken: Taken) -> AgentLoopMetrics:
    seconds = info.seconds
    return AgentLoopMetrics(
        generate_sequences=seconds.get("generation", 0.0),
        tool_calls=seconds.get("tool", 0.0),
        compute_score=seconds.get("reward", 0.0),
        num_preempted=taken.preempted,
    )


def _fields(info: RowInfo, row: Row | None, given: Mapping[str, Any], session: SessionRows) -> dict[str, Any]:
    """The `extra_fields` of a row: those that verl knows, of which V1 wants numbers, and ours under one key."""
    step = int(given.get("global_steps") or 0)
    lowest, highest = session.taken.versions or (max(0, step - 1), max(0, step - 1))
    extra: dict[str, Any] = {
        "min_global_steps": lowest,
        "max_global_steps": highest,
        "turn_scores": [action.reward for action in info.actions],
        "tool_rewards": [] if row is None else _tool_rewards(row.trajectory),
        FIELD: info.fields(),
    }
    # v0 wants the same keys of all rows of a batch, so what a reward adds goes to V1 alone
    is_v1 = "session_id" in given
    extra["reward_extra_info"] = {
        "turns": info.counts.get("turns", 0),
        "finished": float(info.exit_reason == "finished"),
        **(row.metrics if is_v1 and row is not None else {}),
    }
    return extra


def _tool_rewards(trajectory: Trajectory) -> list[float]:
    """What verl's own tools gave for calls, in the order of the calls."""
    found = [seen.metadata.get("tool_reward") for turn in trajectory.turns for seen in turn.observations]
    return [float(reward) for reward in found if isinstance(reward, int | float)]


def _placeholder(session: SessionRows, built: Built, given: Mapping[str, Any], tokenizer: Any) -> AgentLoopOutput:
    """What v0 gets where nothing may be trained on: one token that no loss counts."""
    # a rollout whose trajectory is fine may have no row all the same: its group was given up, or no turn of it fits
    info = evolve(session.info, outcome="drop")
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    return AgentLoopOutput(
        prompt_ids=[pad],
        response_ids=[pad],
        response_mask=[0],
        response_logprobs=[0.0] if built.handed.rollout.calculate_log_probs else None,
        reward_score=None if built.entry.config.agent.reward is None else 0.0,
        metrics=_metrics(info, session.taken),
        extra_fields=_fields(info, None, given, session),
    )
