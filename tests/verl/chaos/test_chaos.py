"""A fifth of 256 rollouts goes wrong, in every way there is: the batch comes in time, each row right, nothing left."""

import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.verl.chaos.policy import KINDS, kind_of
from tests.verl.rig import local_ray, make_model
from tests.verl.rig.model import cached

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
PROMPTS, N = 32, 8

AGENT = """
- name: chaos
  _target_: agentkit_verl.AgentKitLoop
  agent:
    env: {use: sandbox, backend: BACKEND}
    tools: [execute_bash, finish, judge:Unplug]
    reward: judge:judge
    budget:
      {trajectory_s: 90, setup_s: 90, generation_s: 15, tool_s: 8, reward_s: 20, max_turns: 4, max_tool_timeouts: 0}
    outcomes:
      exits: {model_error: drop, env_dead: drop, tool_timeouts: mask, generation_timeout: replace}
      replacements: 1
  pool: {max_rollouts: 128, max_starts: 8}
  verl: {min_group: 2, on_lost_group: drop, batch_s: 120}
"""

# what each fault ends as, and what the policy above makes of it
ENDS = {
    "sandbox_dead": ("env_dead", "drop"),
    "tool_hang": ("tool_timeouts", "mask"),
    "server_error": ("model_error", "drop"),
    "reward_crash": ("finished", "drop"),  # the grader's fault, so it is no zero
    "deadline": ("generation_timeout", "replace"),
    None: ("finished", "train"),
}


@pytest.fixture(scope="module")
def workers_env() -> dict[str, str]:
    return {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "TOKENIZERS_PARALLELISM": "false"}


@pytest.fixture(scope="module")
def ray_and_queue(workers_env: dict[str, str]) -> Iterator[None]:
    import transfer_queue as tq
    from omegaconf import OmegaConf

    with local_ray(cpus=16, env=workers_env):
        tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
        yield
        tq.close()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import verl
    from hydra import compose, initialize_config_dir

    folder = tmp_path_factory.mktemp("chaos")
    (folder / "judge.py").write_text((HERE / "judge.py").read_text())
    backend = "bwrap" if subprocess.run(["which", "bwrap"], capture_output=True).returncode == 0 else "host"
    (folder / "agents.yaml").write_text(AGENT.replace("BACKEND", backend))
    model = cached("random", make_model)
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer/config"), version_base=None):
        return compose(
            "ppo_trainer",
            overrides=[
                f"actor_rollout_ref.model.path={model}",
                "actor_rollout_ref.rollout.name=chaos",
                "actor_rollout_ref.rollout.prompt_length=1024",
                "actor_rollout_ref.rollout.response_length=1024",
                "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
                "actor_rollout_ref.rollout.nnodes=1",
                "actor_rollout_ref.rollout.n_gpus_per_node=1",
                f"actor_rollout_ref.rollout.n={N}",
                "actor_rollout_ref.rollout.agent.num_workers=2",
                f"actor_rollout_ref.rollout.agent.agent_loop_config_path={folder}/agents.yaml",
                "actor_rollout_ref.rollout.calculate_log_probs=True",
                "actor_rollout_ref.rollout.multi_turn.format=hermes",
            ],
        )


@pytest.fixture
def servers(ray_and_queue: None, config: Any) -> Any:
    from verl.workers.rollout.llm_server import LLMServerManager
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    from tests.verl.chaos.policy import ScriptedReplica

    RolloutReplicaRegistry.register("chaos", lambda: ScriptedReplica)
    manager = LLMServerManager.create(config=config)
    yield manager
    import ray

    for handle in manager.server_handles:
        ray.kill(handle)


def children_of(pids: list[int]) -> list[str]:
    """The commands of all processes below these, but for the spawner that every worker keeps."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in table.splitlines()]
    below, found = set(pids), []
    for _ in range(20):
        new = {int(pid) for pid, ppid, *_ in rows if int(ppid) in below} - below
        below |= new
    for pid, _ppid, args in rows:
        if int(pid) in below - set(pids) and "spawner" not in args and "ps -eo" not in args and "defunct" not in args:
            found.append(args)
    return found


def nothing_left(manager: Any, servers: Any) -> None:
    import ray

    deadline = time.monotonic() + 15
    while True:
        state = ray.get(servers.server_handles[0].get_state.remote())
        left = [
            line for line in children_of(worker_pids(manager)) if "bwrap" in line or "bash" in line or "sleep" in line
        ]
        if not state["running"] and not left:
            break
        assert time.monotonic() < deadline, (state, left)
        time.sleep(0.2)


def worker_pids(manager: Any) -> list[int]:
    import ray

    ids = {handle._actor_id.hex() for handle in manager.agent_loop_workers}
    actors = ray._private.state.actors()
    return [int(actors[each]["Address"].get("Pid") or actors[each].get("Pid") or 0) for each in ids]


def planned() -> dict[int, Counter[str | None]]:
    """How often each thing goes wrong in each group."""
    return {number: Counter(kind_of(number, session) for session in range(N)) for number in range(PROMPTS)}


def test_the_plan_has_a_fifth_of_faults_and_every_kind() -> None:
    kinds = sum(planned().values(), Counter())
    assert sum(count for kind, count in kinds.items() if kind) == PROMPTS * N // 5
    assert set(kinds) == {*KINDS, None}
    assert min(kinds.values()) >= 10


@pytest.mark.timeout(240)
def test_256_rollouts_with_faults_through_the_v1_manager(config: Any, servers: Any) -> None:
    import transfer_queue as tq
    from agentkit_verl.rows import RowInfo
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ
    from verl.utils import tensordict_utils as tu

    manager = AgentLoopManagerTQ.create(config=config, llm_client=servers.get_client())
    uids = [f"u{number}" for number in range(PROMPTS)]
    batch = tu.get_tensordict(
        {
            "raw_prompt": np.array(prompts(), dtype=object),
            "agent_name": np.array(["chaos"] * PROMPTS, dtype=object),
            "data_source": np.array(["chaos"] * PROMPTS, dtype=object),
            "index": np.arange(PROMPTS),
            "uid": np.array(uids, dtype=object),
        }
    )
    tu.assign_non_tensor_data(batch, "global_steps", 1)
    warm_up(manager)
    began = time.monotonic()
    manager.generate_sequences(batch)
    while True:
        tags = (tq.kv_list("train") or {}).get("train", {})
        ended = [uid for uid in uids if tags.get(uid, {}).get("status") in ("finished", "failure")]
        if len(ended) == PROMPTS:
            break
        assert time.monotonic() - began < 180, f"{len(ended)} of {PROMPTS} groups ended"
        time.sleep(0.2)
    took = time.monotonic() - began
    assert took < 150  # the step's own deadline, and what grading and closing may take after it
    assert {tags[uid]["status"] for uid in uids} == {"finished"}

    keys = [key for key in tags if key not in uids]
    data = tq.kv_batch_get(
        keys=keys, partition_id="train", select_fields=["extra_fields", "response_mask", "rm_scores"]
    )
    fields = [getattr(each, "data", each) for each in data["extra_fields"]]
    rows: dict[int, list[RowInfo]] = {number: [] for number in range(PROMPTS)}
    for key, extra, mask, scores in zip(
        keys, fields, data["response_mask"].unbind(), data["rm_scores"].unbind(), strict=True
    ):
        info = RowInfo.of_extra_fields(extra)
        assert info is not None
        assert info.outcome in ("train", "mask")
        number = int(key.split("_")[0][1:])
        rows[number].append(info)
        assert bool(mask.sum()) == (info.outcome == "train")
        assert float(scores.sum()) == pytest.approx(1.0 if info.exit_reason == "finished" else 0.25)
        assert extra["min_global_steps"] == extra["max_global_steps"] == 3
    for number, plan in planned().items():
        ends = Counter((info.exit_reason, info.outcome) for info in rows[number])
        # a deadline's rollout is replaced while its siblings still run: one that ended last is dropped
        expected = Counter({("finished", "train"): plan[None]})
        expected[("tool_timeouts", "mask")] += plan["tool_hang"]
        replaced = ends[("finished", "train")] - plan[None]
        assert 0 <= replaced <= plan["deadline"], (number, ends, plan)
        expected[("finished", "train")] += replaced
        assert ends == +expected, (number, ends, plan)
    nothing_left(manager, servers)
    print(f"256 rollouts, a fifth of them faulty: {took:.1f} s, {len(keys)} rows")


@pytest.mark.timeout(240)
def test_256_rollouts_with_faults_through_the_older_manager(config: Any, servers: Any) -> None:
    from agentkit_verl.rows import FIELD, RowInfo
    from agentkit_verl.v0 import GroupedAgentLoopManager
    from verl.protocol import DataProto

    manager = GroupedAgentLoopManager.create(config=config, llm_client=servers.get_client())
    repeated = [prompt for prompt in prompts() for _ in range(N)]
    raw = np.empty(len(repeated), dtype=object)
    raw[:] = repeated
    index = np.repeat(np.arange(PROMPTS), N)
    batch = DataProto(
        batch=None,
        non_tensor_batch={
            "raw_prompt": raw,
            "agent_name": np.array(["chaos"] * len(repeated), dtype=object),
            "data_source": np.array(["chaos"] * len(repeated), dtype=object),
            "index": index,
        },
        meta_info={"global_steps": 1},
    )
    began = time.monotonic()
    output = manager.generate_sequences(batch)
    took = time.monotonic() - began
    assert took < 180  # workers start within it
    assert len(output) == PROMPTS * N
    infos = [RowInfo.of(fields) for fields in output.non_tensor_batch[FIELD]]
    scores = output.batch["rm_scores"].sum(-1)
    trained = output.batch["response_mask"].sum(-1) > 0
    for number, plan in planned().items():
        at = [row for row in range(len(infos)) if index[row] == number]
        ends = Counter((infos[row].exit_reason, infos[row].outcome) for row in at)
        assert sum(ends.values()) == N
        assert ends[("env_dead", "drop")] == plan["sandbox_dead"]
        assert ends[("model_error", "drop")] == plan["server_error"]
        assert ends[("tool_timeouts", "mask")] == plan["tool_hang"]
        kept = [float(scores[row]) for row in at if infos[row].outcome != "drop"]
        for row in at:
            assert bool(trained[row]) == (infos[row].outcome == "train")
            if infos[row].outcome == "drop":  # at the mean of its siblings, so that it moves no baseline
                assert float(scores[row]) == pytest.approx(sum(kept) / len(kept), abs=1e-5)
    nothing_left(manager, servers)
    print(f"256 rollouts through v0: {took:.1f} s")


def warm_up(manager: Any) -> None:
    """Workers that are up: what is measured after it is the batch."""
    import ray

    ray.get([worker.__ray_ready__.remote() for worker in manager.agent_loop_workers])


def prompts() -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": f"Task {number}. Look around, then finish."}] for number in range(PROMPTS)]
