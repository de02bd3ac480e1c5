"""Conversations to fine-tune on: whole, verbatim, and of successes only."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given

import agentkit as ak
from agentkit.errors import ConfigError
from agentkit.journal import Journal, JournalReader
from agentkit.journal.export import Selection, conversation, export_jsonl, export_sft
from agentkit.models import ScriptedModel
from agentkit.protocols import (
    Action,
    CallFault,
    ExitReason,
    FaultStatus,
    Grade,
    GradeStatus,
    Message,
    Observation,
    Outcome,
    RolloutKey,
    Score,
    ToolCall,
    Trajectory,
    Turn,
    user,
)
from agentkit.testing.strategies import trajectories

Written = Callable[[Iterable[Trajectory]], Path]
LOOK = Action(
    "<think>hm</think>ok", "ok", "hm", (ToolCall("c1", "bash", {"cmd": "ls", "n": 1}), ToolCall("c2", "bash", {}))
)
GOOD = Trajectory(
    RolloutKey("good", 0),
    (Message("system", "be brief"), user("fix it")),
    (),
    (
        Turn(0, LOOK, (Observation("a.py", call_id="c1", name="bash"), Observation("no", call_id="c2", name="bash"))),
        Turn(1, Action("done", "done")),
    ),
    ExitReason.FINISHED,
    grade=Grade(GradeStatus.OK, Score(1.0)),
)
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}


def exported(folder: Path, **options: Any) -> tuple[list[Any], dict[str, int]]:
    done = export_sft(folder, folder / "out.jsonl", force=True, **options)
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert len(lines) == done.written
    return lines, dict(done.left_out)


def test_a_success_is_the_conversation_it_was(written: Written) -> None:
    (line,), left_out = exported(written([GOOD]))
    assert left_out == {}
    assert line == {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "fix it"},
            {
                "role": "assistant",
                "content": "ok",
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"cmd":"ls","n":1}'}},
                    {"id": "c2", "type": "function", "function": {"name": "bash", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "content": "a.py", "tool_call_id": "c1", "name": "bash"},
            {"role": "tool", "content": "no", "tool_call_id": "c2", "name": "bash"},
            {"role": "assistant", "content": "done"},
        ]
    }


def test_reasoning_and_arguments_as_asked(written: Written) -> None:
    folder = written([GOOD])
    (line,), _ = exported(folder, reasoning="inline", arguments="object")
    said = line["messages"][2]
    assert said["content"] == "<think>\nhm\n</think>\n\nok"
    assert said["tool_calls"][0]["function"]["arguments"] == {"cmd": "ls", "n": 1}
    assert "reasoning_content" not in said
    (line,), _ = exported(folder, reasoning="drop")
    assert line["messages"][2]["content"] == "ok"
    assert "reasoning_content" not in line["messages"][2]


def variants() -> list[tuple[str | None, Trajectory]]:
    """Why each is left out."""
    fault = CallFault(FaultStatus.UNCLOSED, "no end", "<tool_call>{", "bash", "c1")
    parts: list[tuple[str | None, Trajectory]] = [
        (None, GOOD),
        ("score below 1", evolve(GOOD, grade=Grade(GradeStatus.OK, Score(0.99)))),
        ("no score", evolve(GOOD, grade=Grade(GradeStatus.TIMEOUT))),
        ("no score", evolve(GOOD, grade=None)),
        ("the policy said nothing", evolve(GOOD, turns=())),
        ("a malformed call", evolve(GOOD, turns=(Turn(0, Action("x", attempts=(fault,))), *GOOD.turns[1:]))),
        (
            "something was said between two turns, and the record lacks the messages",
            evolve(GOOD, turns=(Turn(0, Action("hi")), *GOOD.turns[1:])),
        ),
    ]
    return [(why, evolve(each, key=RolloutKey(f"t{n}", 0))) for n, (why, each) in enumerate(parts)]


def test_what_is_no_whole_success_is_left_out_and_counted(written: Written) -> None:
    lines, left_out = exported(written(each for _, each in variants()))
    assert len(lines) == 1
    expected = [why for why, _ in variants() if why is not None]
    assert left_out == {why: expected.count(why) for why in expected}


def test_selection_by_exit_reason_outcome_and_score(written: Written) -> None:
    others = [
        evolve(GOOD, key=RolloutKey("cut", 0), exit_reason=ExitReason.TURN_LIMIT),
        evolve(GOOD, key=RolloutKey("masked", 0), outcome=Outcome.MASK),
        evolve(GOOD, key=RolloutKey("half", 0), grade=Grade(GradeStatus.OK, Score(0.5))),
    ]
    folder = written([GOOD, *others])
    select = Selection(exit_reasons={ExitReason.FINISHED}, outcomes={Outcome.TRAIN}, min_score=0.75)
    done = export_jsonl(folder, folder / "out", select=select)
    assert [json.loads(line)["rollout"] for line in (folder / "out").read_text().splitlines()] == ["good#0"]
    assert done.left_out == {"exit reason turn_limit": 1, "outcome mask": 1, "score below 0.75": 1}
    done = export_jsonl(folder, folder / "out", select=Selection(min_score=0.5), force=True)
    assert (done.written, dict(done.left_out)) == (4, {})


def test_tools_are_carried_and_must_cover_what_was_called(written: Written) -> None:
    folder = written([GOOD])
    (line,), _ = exported(folder, tools=[TOOL])
    assert line["tools"] == [TOOL]
    other = {"type": "function", "function": {"name": "other"}}
    lines, left_out = exported(folder, tools=[other])
    assert (lines, left_out) == ([], {"a call of a tool that is not among the tools given": 1})
    with pytest.raises(ConfigError, match=r"tools\[1\] must be a tool in OpenAI form"):
        exported(folder, tools=[TOOL, {"name": "bash"}])


@given(trajectories(children=0))
def test_every_line_is_a_conversation_openai_takes(written: Written, drawn: Trajectory) -> None:
    run = [drawn]
    folder = written(run)
    lines, left_out = exported(folder, select=Selection())
    assert len(lines) + sum(left_out.values()) == len(run)
    for line in lines:
        for message in line["messages"]:
            assert set(message) <= {"role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name"}
            assert isinstance(message["content"], str)
            for call in message.get("tool_calls", ()):
                assert isinstance(json.loads(call["function"]["arguments"]), dict)


async def test_every_answer_of_a_real_rollout_has_its_call(tmp_path: Path) -> None:
    @ak.tool
    async def echo(text: str) -> str:
        """Say it again."""
        return text

    script = [
        'a<tool_call>\n{"name": "echo", "arguments": {"text": "x"}}\n</tool_call>'
        '<tool_call>\n{"name": "echo", "arg</tool_call>',
        "done",
    ]
    agent = ak.Agent(ScriptedModel(script), tools=[echo], reward=lambda trajectory, env: 1.0)
    async with Journal.open(tmp_path, writer="inline") as journal, ak.Pool(agent, sink=journal) as pool:
        await pool.run([ak.Task("t", "go")])
    with JournalReader.open(tmp_path) as reader:
        (trajectory,) = reader.trajectories()
    talk = conversation(trajectory)
    assert talk.gaps == ()
    user_, first, answer, refusal, last = talk.messages
    assert [user_["role"], first["role"], last["role"]] == ["user", "assistant", "assistant"]
    assert [call["id"] for call in first["tool_calls"]] == [answer["tool_call_id"], refusal["tool_call_id"]]
    assert answer["content"] == "x"


async def test_what_a_loop_says_and_rewrites_is_there(tmp_path: Path) -> None:
    @ak.tool
    async def echo(text: str) -> str:
        """Say it again."""
        return text

    async def compacting(rollout: ak.Rollout) -> None:
        await rollout.act(await rollout.sample())
        rollout.observe("and now?")
        await rollout.sample()
        if rollout.task.id == "rewritten":
            rollout.rewrite([ak.user("in short: go on")])
            await rollout.sample()

    script = ['<tool_call>\n{"name": "echo", "arguments": {"text": "x"}}\n</tool_call>', "two", "three"]
    agent = ak.Agent(ScriptedModel(script), tools=[echo], loop=compacting, reward=lambda trajectory, env: 1.0)
    async with Journal.open(tmp_path, writer="inline") as journal, ak.Pool(agent, max_rollouts=1, sink=journal) as pool:
        await pool.run([ak.Task("told", "go"), ak.Task("rewritten", "go")])
    lines, left_out = exported(tmp_path)
    assert left_out == {}
    told, rewritten = ([(m["role"], m["content"]) for m in line["messages"]] for line in lines)
    assert told == [("user", "go"), ("assistant", ""), ("tool", "x"), ("user", "and now?"), ("assistant", "two")]
    assert rewritten == [("user", "in short: go on"), ("assistant", "three")]


async def test_what_a_user_says_to_a_chat_is_there(tmp_path: Path) -> None:
    agent = ak.Agent(ScriptedModel(["one", "two"]), loop=ak.chat, reward=lambda trajectory, env: 1.0)
    async with Journal.open(tmp_path, writer="inline") as journal, ak.Pool(agent, sink=journal) as pool:
        actor = pool.start(ak.Task("t", "go"))
        await actor.ask("more")
        actor.hang_up()
        await actor.result()
    (line,), _ = exported(tmp_path)
    said = [(m["role"], m["content"]) for m in line["messages"]]
    assert said in (
        [("user", "go"), ("user", "more"), ("assistant", "one")],
        [("user", "go"), ("assistant", "one"), ("user", "more"), ("assistant", "two")],
    )
