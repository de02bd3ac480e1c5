"""What verl's workers are handed: lists of rows for V1, one row for v0, and what they find in them."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from agentkit_verl import RowInfo, close_workers
from agentkit_verl.rows import FIELD
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from tests.verl.rig.loops import Loops

CODE = """
from agentkit import user
from agentkit.protocols import Score


async def score(trajectory, env):
    said = trajectory.prompt[-1].content
    if "ungraded" in said:
        raise RuntimeError("no opinion")
    tokens = {n: (0.125,) * len(chain) for n, chain in enumerate(trajectory.chains)}
    return Score(0.5, tuple(0.25 for _ in trajectory.turns), tokens, {"length": 3.0})


async def loop(rollout):
    await rollout.sample()
    if "compact" in rollout.messages[0].content:
        rollout.rewrite([user("In short.")])
        await rollout.sample()
    if "branch" in rollout.messages[0].content:
        rollout.rollback()
        await rollout.sample()
"""
SAID = "It is four.<|im_end|>"


@pytest.fixture(autouse=True)
async def ended() -> AsyncIterator[None]:
    before = list(sys.path)
    yield
    await close_workers()
    sys.path[:] = before


def loops(folder: Path, *overrides: str, agent: Any = None, **entry: Any) -> Loops:
    made = {"reward": "PARTS:score", "loop": "PARTS:loop", **(agent or {})}
    return Loops(folder, lambda prompt: SAID, *overrides, entry={"agent": made, **entry}, code=CODE)


def info(row: AgentLoopOutput) -> RowInfo:
    found = RowInfo.of_extra_fields(row.extra_fields)
    assert found is not None
    return found


async def test_a_row_is_what_the_server_was_sent_and_said(tmp_path: Path) -> None:
    verl = loops(tmp_path)
    first, second = await verl.group("u", 2)
    ((prompt, said), _) = verl.client.sampled
    for number, rows in enumerate((first, second)):
        (row,) = rows
        fields = row.as_dict()
        assert fields["prompts"].tolist() == prompt
        assert fields["responses"].tolist() == said
        assert fields["response_mask"].tolist() == [1] * len(said)
        assert fields["rollout_log_probs"].tolist() == [-(1.0 + (len(prompt) + at) % 7) for at in range(len(said))]
        assert fields["rm_scores"].tolist() == [0.0] * (len(said) - 1) + [0.5]
        assert {fields[name].dtype for name in ("prompts", "responses", "response_mask")} == {torch.int64}
        assert (row.extra_fields["min_global_steps"], row.extra_fields["max_global_steps"]) == (3, 3)
        assert row.extra_fields["reward_extra_info"] == {"turns": 1, "finished": 1.0, "length": 3.0}
        told = info(row)
        assert (told.task_id, told.session, told.agent, told.score, told.data_source) == (
            "u",
            number,
            "toy",
            0.5,
            "toy",
        )
        assert (told.outcome, told.grade, told.exit_reason) == ("train", "ok", "finished")
        assert told.counts["sampled"] == told.counts["trained"] == len(said)
        assert row.metrics.generate_sequences >= 0
    assert verl.tokenizer.decode(prompt) == "<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n"


async def test_the_trainers_sampling_parameters_are_sent(tmp_path: Path) -> None:
    verl = loops(tmp_path, agent={"params": {"temperature": 0.2, "min_p": 0.1}})
    await verl.session("u")
    (params,) = verl.client.params
    assert {name: params[name] for name in ("temperature", "top_p", "top_k", "logprobs", "min_p")} == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "logprobs": True,
        "min_p": 0.1,
    }


@pytest.mark.parametrize("credit", ["outcome", "turn", "token"])
@pytest.mark.parametrize("kind", ["plain", "compact", "branch"])
async def test_rows_of_a_session_make_one_batch_and_their_rewards_sum_to_the_score(
    tmp_path: Path, credit: str, kind: str
) -> None:
    verl = loops(tmp_path, verl={"credit": credit, "kinds": True})
    first, second = await verl.group("u", 2, content=kind)
    for rows in (first, second):
        assert len(rows) == (1 if kind == "plain" else 2)
        fields = [row.as_dict() for row in rows]
        assert list_of_dict_to_tensordict(fields).batch_size == (len(rows),)
        assert [info(row).chain for row in rows] == list(range(len(rows)))
        assert {info(row).chains for row in rows} == {len(rows)}
        assert {row.reward_score for row in rows} == {0.5}
        assert sum(info(row).weight * sum(row.response_mask) for row in rows) == pytest.approx(1.0)
        assert all(sum(k.stop - k.start for k in info(row).kinds) == sum(row.response_mask) for row in rows)
        if credit != "outcome":
            assert sum(float(each["rm_scores"].sum()) for each in fields) == pytest.approx(0.5)
        if credit == "turn" and kind == "compact":
            assert [float(each["rm_scores"][-1]) for each in fields] == [0.25, 0.25]


async def test_what_is_dropped_leaves_no_row_and_what_is_masked_one(tmp_path: Path) -> None:
    verl = loops(tmp_path)
    sessions = [verl.session("u", n, content="ungraded" if n == 1 else "Go.") for n in range(3)]
    found = await asyncio.gather(*sessions)
    assert [len(rows) for rows in found] == [1, 0, 1]
    await close_workers()
    verl.write(
        {"agent": {"reward": "PARTS:score", "loop": "PARTS:loop", "outcomes": {"exits": {"turn_limit": "mask"}}}}
    )
    sessions = [
        verl.session("v", 0),
        verl.session("v", 1, content="compact", tools_kwargs={"budget": {"max_turns": 1}}),
    ]
    ((trained,), (masked,)) = await asyncio.gather(*sessions)
    assert (info(masked).outcome, info(masked).exit_reason) == ("mask", "turn_limit")
    assert sum(masked.response_mask) == 0
    assert masked.reward_score == 0.5
    assert sum(trained.response_mask) > 0


async def test_v0_gets_one_row_whatever_becomes_of_a_session(tmp_path: Path) -> None:
    verl = loops(tmp_path, verl={"credit": "turn"})
    sessions = [verl.session(None, content=content) for content in ("ungraded", "compact", "Go.")]
    dropped, compact, plain = await asyncio.gather(*sessions)
    rows = [dropped, compact, plain]
    assert [type(row) for row in rows] == [AgentLoopOutput] * 3
    pad = verl.tokenizer.pad_token_id
    assert (dropped.prompt_ids, dropped.response_ids, dropped.response_mask) == ([pad], [pad], [0])
    assert (dropped.reward_score, dropped.response_logprobs) == (0.0, [0.0])
    assert info(dropped).outcome == "drop"
    # verl reads the keys of a batch off its first row
    assert len({tuple(sorted(row.extra_fields)) for row in rows}) == 1
    assert len({tuple(sorted(row.extra_fields["reward_extra_info"])) for row in rows}) == 1
    for row in (compact, plain):
        assert all(isinstance(value, list) for value in (row.prompt_ids, row.response_ids, row.response_mask))
        assert verl.tokenizer.decode(row.response_ids) == SAID
    assert info(compact).chain == 1


async def test_a_v0_prompt_that_comes_again_is_another_rollout(tmp_path: Path) -> None:
    verl = loops(tmp_path, verl={"journal": str(tmp_path / "journal")})
    first = [await verl.group(None, 2), await verl.group(None, 2)]
    assert [[sum(row.response_mask) > 0 for row in rows] for rows in first] == [[True, True], [True, True]]
    assert len({info(row).task_id for rows in first for row in rows}) == 2


async def test_a_lone_survivor_trains_nothing_but_validates(tmp_path: Path) -> None:
    verl = loops(tmp_path)
    contents = ("Go.", "ungraded")
    assert await asyncio.gather(*(verl.session("u", n, content=said) for n, said in enumerate(contents))) == [[], []]

    async def as_verl(trajectory: dict[str, Any], number: int) -> Any:  # whose frame has a `trajectory`
        return await verl.session("v", number, content=contents[number])

    tasks = [asyncio.create_task(as_verl({"validate": True}, number)) for number in range(2)]
    assert [len(rows) for rows in await asyncio.gather(*tasks)] == [1, 0]


async def test_nothing_is_kept_of_sessions_that_have_ended(tmp_path: Path) -> None:
    from agentkit_verl.loop import _process_of

    verl = loops(tmp_path)
    for number in range(3):
        await verl.group(f"u{number}", 3, content="branch")
    process = _process_of(verl.client)
    (worker,) = [await making for making in process._workers.values()]
    assert not worker.built.model._wires
    assert not worker._params
    assert not process.groups._open
    assert FIELD == "agentkit"
