"""Turns that look like those of a coding agent: code, logs, JSON, prose and diffs, no two alike, the same every run."""

import _pydecimal
import argparse
import difflib
import inspect
import json
import random
import tarfile
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from attrs import frozen

from agentkit import Message, ToolCall, ToolSpec
from agentkit.protocols import system, user

OPENING = (
    system("You repair Python projects. Read before you write, run the tests after each change, and say when done."),
    user("The test-suite fails on the main branch since the last release of its dependencies. Find out why, fix it."),
)
TOOLS = (
    ToolSpec(
        "run",
        "Run a command in the sandbox and return what it printed.",
        {
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The command, as bash reads it."},
                "timeout_s": {"type": "integer", "description": "Seconds until it is killed.", "default": 60},
            },
            "required": ["command"],
        },
    ),
    ToolSpec(
        "edit",
        "Replace one piece of a file with another.",
        {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "old": {"type": "string", "description": "Must occur exactly once."},
                "new": {"type": "string"},
            },
            "required": ["path", "old", "new"],
        },
    ),
    ToolSpec("search", "Search the code.", {"type": "object", "properties": {"query": {"type": "string"}}}),
)


@frozen
class Turn:
    """What the policy says and the tool returns.

    `sampled` are the ids of what the policy says, its stop included; `tail` is the text that the template writes from
    there to the next generation.
    """

    said: Message
    result: Message
    sampled: list[int]
    logprobs: list[float]
    tail: str


def turns(
    hf: Any,
    count: int,
    sampled: int,
    observed: int,
    stop: str,
    kwargs: dict[str, object],
    *,
    tools: Sequence[ToolSpec] = TOOLS,
    talks: bool = True,
) -> list[Turn]:
    """`count` turns of about `sampled` and `observed` tokens each. Any ten in a row hold the same mix of texts.

    `talks` says that the policy speaks beside its calls.
    """
    kinds = [_Cutter(hf, text) for text in (_code(), _log(), _json(), _prose(), _diff())]
    said_kinds, argument_kinds = _Cutter(hf, _prose(1)), _Cutter(hf, _code(1))
    made = []
    for index in range(count):
        thought = said_kinds.cut(sampled // 3).strip() if talks else ""
        written = argument_kinds.cut(sampled // 2 if talks else sampled - sampled // 8)
        call = ToolCall(f"call{index:05d}", "edit", {"path": f"src/module_{index}.py", "old": "pass", "new": written})
        said = Message("assistant", thought, (call,))
        output = kinds[index % len(kinds)].cut(observed)
        result = Message("tool", output, tool_call_id=call.id, name=call.name)
        made.append(_turn(hf, said, result, stop, kwargs, wire_tools(tools)))
    return made


def wire(message: Message, *, arguments_as_text: bool = False) -> dict[str, Any]:
    """A message as chat templates read it."""
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        made["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments, ensure_ascii=False)
                    if arguments_as_text
                    else dict(call.arguments),
                },
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        made |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return made


def wire_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
    """The tools as chat templates read them."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in tools
    ] or None


def _turn(
    hf: Any,
    said: Message,
    result: Message,
    stop: str,
    kwargs: dict[str, object],
    tools: list[dict[str, Any]] | None,
) -> Turn:
    """The turn as the template itself writes it, between the generation prompt and the stop, and behind that."""
    opening = [wire(message) for message in OPENING]
    more = [*opening, wire(said, arguments_as_text="▁" in stop), wire(result)]  # DeepSeek's joins them as text
    before = hf.apply_chat_template(opening, tools=tools, add_generation_prompt=True, tokenize=False, **kwargs)
    whole = hf.apply_chat_template(more, tools=tools, add_generation_prompt=True, tokenize=False, **kwargs)
    start = next((at for at, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), len(before))
    end = whole.index(stop, start) + len(stop)
    ids: list[int] = hf.backend_tokenizer.encode(whole[start:end], add_special_tokens=False).ids
    return Turn(said, result, ids, [-0.5] * len(ids), whole[end:])


class _Cutter:
    """Takes pieces of so many tokens from a text, one after another, each from the start of a line."""

    def __init__(self, hf: Any, text: str) -> None:
        self._hf = hf
        self._text = text
        self._at = 0

    def cut(self, tokens: int) -> str:
        piece = self._text[self._at : self._at + 8 * tokens]
        if len(piece) < 8 * tokens:
            raise SystemExit("the texts are used up: ask for fewer or shorter turns")
        ends = self._hf.backend_tokenizer.encode(piece, add_special_tokens=False).offsets
        piece = piece[: ends[min(tokens, len(ends)) - 1][1]]
        self._at = self._text.index("\n", self._at + len(piece)) + 1
        return piece


def _code(part: int = 0) -> str:
    files = ((argparse, tarfile), (inspect, typing, difflib))[part]
    return "".join(Path(str(module.__file__)).read_text() for module in files)


def _prose(part: int = 0) -> str:
    return "\n".join(text for name, text in sorted(topics.items()) if (len(name) % 2 == 0) is (part == 0))


def _diff() -> str:
    random_ = random.Random(2)
    return "".join(
        _changed(random_, module.__name__, str(module.__file__)) for module in (_pydecimal, tarfile, inspect)
    )


def _changed(random_: random.Random, name: str, file: str) -> str:
    lines = Path(file).read_text().splitlines(keepends=True)
    changed = [line.replace("self", "this", 1) if random_.random() < 0.4 else line for line in lines]
    return "".join(difflib.unified_diff(lines, changed, f"a/{name}.py", f"b/{name}.py"))


def _log() -> str:
    random_ = random.Random(3)
    return "".join(_log_line(random_, second) for second in range(6000))


def _log_line(random_: random.Random, second: int) -> str:
    stamp = (
        f"2026-11-{1 + second // 3600 % 28:02d}T{second // 60 % 24:02d}:{second % 60:02d}.{random_.randrange(999):03d}Z"
    )
    level = random_.choices(("INFO", "DEBUG", "WARNING", "ERROR"), (70, 20, 7, 3))[0]
    request = f"{random_.getrandbits(48):012x}"
    what = random_.choice(
        (
            f"GET /api/v2/items/{random_.randrange(10**6)} 200 {random_.random() * 90:.1f}ms",
            f"worker-{random_.randrange(64)} took job {request} after {random_.randrange(900)} ms",
            f"cache miss key=user:{random_.randrange(10**5)}:profile shard={random_.randrange(16)}",
            f"tests/test_module_{random_.randrange(99)}.py::test_case[{random_.randrange(30)}] PASSED",
            f"retrying in {random_.random() * 8:.2f} s: connection to 10.0.{random_.randrange(255)}.7:5432 refused",
        )
    )
    return f"{stamp} {level:7s} [{request}] {what}\n"


def _json() -> str:
    random_ = random.Random(4)
    words = _prose().split()
    return "\n".join(json.dumps(record, indent=2) for record in _records(random_, words))


def _records(random_: random.Random, words: list[str]) -> Iterator[dict[str, Any]]:
    for number in range(1200):
        start = random_.randrange(len(words) - 40)
        yield {
            "id": number,
            "path": f"src/{random_.choice(words)[:12]}/{random_.randrange(99)}.py",
            "score": round(random_.random(), 4),
            "lines": [random_.randrange(900), random_.randrange(900)],
            "text": " ".join(words[start : start + 30]),
            "tags": {"owner": random_.choice(words), "open": random_.random() < 0.5, "parent": None},
        }
