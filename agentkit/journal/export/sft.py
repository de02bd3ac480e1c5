"""Graded successes as conversations to fine-tune on.

Each line is `{"messages": [...]}`, as TRL, axolotl and LLaMA-Factory read it.

Only whole conversations are written. Left out, and counted: what `Selection` leaves out; a rollout in which the policy
wrote a call that could not be parsed (it has no OpenAI form, and nobody wants to train on it); one of whose messages
the record lacks some (see `agentkit.journal.export.conversation`); one in which the policy said nothing. Sub-agents
have conversations of their own, which are not written.

The record does not hold the schemas of the tools. Give them as `tools`, in OpenAI form, and every line carries them;
a rollout that calls a tool which is not among them is left out then.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkit.errors import ConfigError
from agentkit.journal.export.conversation import Arguments, Reasoning, conversation, shown
from agentkit.journal.export.files import appearing
from agentkit.journal.export.selection import Exported, Selection, Tally
from agentkit.journal.export.text import tagged, to_json
from agentkit.journal.reader import JournalReader
from agentkit.protocols import Trajectory

SUCCESSES = Selection(min_score=1.0)
"""Graded, with a score of at least 1."""


def export_sft(
    run: "str | os.PathLike[str]",
    out: "str | os.PathLike[str]",
    *,
    select: Selection = SUCCESSES,
    tools: Sequence[Mapping[str, Any]] = (),
    reasoning: Reasoning = "field",
    arguments: Arguments = "string",
    force: bool = False,
) -> Exported:
    """The conversations of `run` as JSON lines in `out`; blocks, one trajectory in memory at a time.

    `reasoning` goes into `reasoning_content` (`field`), into the content between `<think>` tags (`inline`), or nowhere
    (`drop`). `arguments` of calls are a JSON text as in the OpenAI API (`string`), or an `object`, for chat templates
    that would encode a text once more.

    Raises:
        ConfigError: `out` exists and `force` is not given, it cannot be written, or a tool has no OpenAI form.
        JournalError: the journal cannot be read or a record is damaged.
    """
    names = _names(tools)
    carried: dict[str, Any] = {"tools": tagged([dict(tool) for tool in tools])} if tools else {}
    tally, written = Tally(), 0
    with JournalReader.open(run) as reader, appearing(out, force=force) as path:
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for trajectory in tally.selected(reader, select):
                talk = conversation(trajectory, reasoning=reasoning, arguments=arguments)
                reason = _unfit(trajectory, talk.gaps, names)
                if reason is not None:
                    tally.left_out[reason] += 1
                    continue
                file.write(to_json({"messages": list(talk.messages), **carried}) + "\n")
                written += 1
        unfinished = len(reader.unfinished_keys())
    return Exported(Path(out), written, dict(tally.left_out), unfinished)


def _unfit(trajectory: Trajectory, gaps: Sequence[str], names: "frozenset[str] | None") -> str | None:
    turns = trajectory.path()
    if not turns:
        return "the policy said nothing"
    if any(turn.action.faults for turn in turns):
        return "a malformed call"
    if shown(trajectory):
        return "media were shown, which these messages do not hold"
    if gaps:
        return f"{gaps[0]}, and the record lacks the messages"
    called = {call.name for turn in turns for call in turn.action.calls}
    return "a call of a tool that is not among the tools given" if names is not None and called - names else None


def _names(tools: Sequence[Mapping[str, Any]]) -> "frozenset[str] | None":
    names = set[str]()
    for number, tool in enumerate(tools):
        form: object = tool  # as the caller gave it, or a file
        function: object = form.get("function") if isinstance(form, Mapping) else None
        name: object = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str):
            raise ConfigError(
                f"tools[{number}] must be a tool in OpenAI form, "
                f'{{"type": "function", "function": {{"name": ..., "parameters": ...}}}}, found {tool!r:.200}'
            )
        names.add(name)
    return frozenset(names) if tools else None
