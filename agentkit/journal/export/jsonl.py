"""One trajectory a line, with everything that the journal knows of it.

version        1; a later version may add fields, and changes none without a new number
rollout        "TASK#INDEX", as `agentkit inspect` takes it
key            task_id, index, attempt
task           id, messages, data, budget, metadata; what JSON lacks is tagged (see `agentkit.journal.export.text`)
messages       the conversation as OpenAI messages; arguments of calls are JSON text, reasoning is `reasoning_content`
path           the turns that `messages` are made of: all, but for those rolled back and candidates not taken
gaps           what the record lacks of the conversation, empty where it is whole
prompt         the messages that opened it, as OpenAI messages
turns          index, heard (messages said before it, observations apart), is_rewrite (they replaced the history),
               previous (the turn that the conversation went on from, -1 for the prompt),
               text (as sampled), content, reasoning, attempts (calls, or faults with a status), finish,
               observations (content, done, status, call_id, name, metadata), chain, start, stop (the tokens
               start <= t < stop of that chain; -1 and an empty range at message level), queued_s, generation_s, tool_s
exit_reason, blame, error, stuck, outcome, replaces
score          the scalar, null where there is none
grade          status, score, turns, tokens, metrics, blame, error; null where there is no reward
timings        queued_s, setup_s, generation_s, tool_s, reward_s, total_s: seconds
attempts       those given up before: number, exit_reason, error, seconds
policy_versions  [lowest, highest], null where none is known
chains         token_ids, response_mask, logprobs (float32, exact), spans (start, stop, kind, turn, policy_version),
               parent [chain, prefix length] of a fork, else null
children       sub-agents, each of this form

Tokens come back bit for bit: a float32 is written as the shortest text of the float64 of the same value. In text, a
lone surrogate is U+FFFD, and invisible or control characters are escapes.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentkit.journal.export.conversation import conversation, openai_message
from agentkit.journal.export.files import appearing
from agentkit.journal.export.selection import Exported, Selection, Tally
from agentkit.journal.export.text import numbers, tagged, to_json
from agentkit.journal.reader import JournalReader
from agentkit.protocols import CallFault, Chain, Grade, Observation, ToolCall, Trajectory, Turn

JSONL_VERSION = 1


def export_jsonl(
    run: "str | os.PathLike[str]",
    out: "str | os.PathLike[str]",
    *,
    select: Selection | None = None,
    force: bool = False,
) -> Exported:
    """The trajectories of `run` as JSON lines in `out`, in the order sealed; blocks, one of them in memory at a time.

    Raises:
        ConfigError: `out` exists and `force` is not given, or it cannot be written.
        JournalError: the journal cannot be read or a record is damaged.
    """
    tally, written = Tally(), 0
    with JournalReader.open(run) as reader, appearing(out, force=force) as path:
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for trajectory in tally.selected(reader, select or Selection()):
                file.write(to_json(trajectory_tree(trajectory)) + "\n")
                written += 1
        unfinished = len(reader.unfinished_keys())
    return Exported(Path(out), written, dict(tally.left_out), unfinished)


def trajectory_tree(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as the JSON object of one line."""
    talk, task, timings = conversation(trajectory), trajectory.task, trajectory.timings
    return {
        "version": JSONL_VERSION,
        "rollout": str(trajectory.key),
        "key": {"task_id": trajectory.key.task_id, "index": trajectory.key.index, "attempt": trajectory.key.attempt},
        "task": {
            "id": task.id,
            "messages": [openai_message(message) for message in task.messages],
            "data": tagged(task.data),
            "budget": tagged(task.budget),
            "metadata": tagged(task.metadata),
        },
        "messages": list(talk.messages),
        "path": [turn.index for turn in trajectory.path()],
        "gaps": list(talk.gaps),
        "prompt": [openai_message(message) for message in trajectory.prompt],
        "turns": [_turn(turn) for turn in trajectory.turns],
        "exit_reason": trajectory.exit_reason.value,
        "blame": _value(trajectory.blame),
        "error": trajectory.error,
        "stuck": list(trajectory.stuck),
        "outcome": trajectory.outcome.value,
        "replaces": trajectory.replaces,
        "score": tagged(trajectory.score),
        "grade": None if trajectory.grade is None else _grade(trajectory.grade),
        "timings": {
            "queued_s": timings.queued_s,
            "setup_s": timings.setup_s,
            "generation_s": timings.generation_s,
            "tool_s": timings.tool_s,
            "reward_s": timings.reward_s,
            "total_s": timings.total_s,
        },
        "attempts": [
            {"number": each.number, "exit_reason": each.exit_reason.value, "error": each.error, "seconds": each.seconds}
            for each in trajectory.attempts
        ],
        "policy_versions": None if (versions := trajectory.policy_versions()) is None else list(versions),
        "chains": [_chain(chain) for chain in trajectory.chains],
        "children": [trajectory_tree(child) for child in trajectory.children],
    }


def _turn(turn: Turn) -> dict[str, Any]:
    action = turn.action
    return {
        "index": turn.index,
        "text": action.text,
        "content": action.content,
        "reasoning": action.reasoning,
        "attempts": [_attempt(attempt) for attempt in action.attempts],
        "finish": action.finish.value,
        "observations": [_observation(observation) for observation in turn.observations],
        "chain": turn.chain,
        "start": turn.start,
        "stop": turn.stop,
        "heard": [openai_message(message) for message in turn.heard],
        "is_rewrite": turn.is_rewrite,
        "previous": turn.previous,
        "queued_s": turn.queued_s,
        "generation_s": turn.generation_s,
        "tool_s": turn.tool_s,
    }


def _attempt(attempt: ToolCall | CallFault) -> dict[str, Any]:
    if isinstance(attempt, ToolCall):
        return {"id": attempt.id, "name": attempt.name, "arguments": tagged(attempt.arguments)}
    return {
        "id": attempt.id,
        "name": attempt.name,
        "status": attempt.status.value,
        "reason": attempt.reason,
        "raw": attempt.raw,
    }


def _observation(observation: Observation) -> dict[str, Any]:
    return {
        "content": observation.content,
        "done": observation.done,
        "status": observation.status.value,
        "call_id": observation.call_id,
        "name": observation.name,
        "metadata": tagged(observation.metadata),
    }


def _grade(grade: Grade) -> dict[str, Any]:
    score = grade.score
    tokens: Mapping[int, tuple[float, ...]] = {} if score is None else score.tokens or {}
    return {
        "status": grade.status.value,
        "score": tagged(grade.value),
        "turns": None if score is None or score.turns is None else numbers(score.turns),
        "tokens": {str(chain): numbers(values) for chain, values in tokens.items()},
        "metrics": {} if score is None else {name: tagged(value) for name, value in score.metrics.items()},
        "blame": _value(grade.blame),
        "error": grade.error,
    }


def _chain(chain: Chain) -> dict[str, Any]:
    return {
        "token_ids": chain.token_ids.tolist(),
        "response_mask": chain.response_mask.tolist(),
        "logprobs": numbers(chain.logprobs.tolist()),
        "spans": [
            {
                "start": span.start,
                "stop": span.stop,
                "kind": span.kind.value,
                "turn": span.turn,
                "policy_version": span.policy_version,
            }
            for span in chain.spans
        ],
        "parent": None if chain.parent is None else list(chain.parent),
    }


def _value(member: Any) -> str | None:
    return None if member is None else member.value
