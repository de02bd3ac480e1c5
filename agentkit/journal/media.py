"""Media of a record, apart from its JSON: named there by their SHA-256, so that each is kept once.

A screenshot is as large as all the text of a turn a hundred times over, the rollouts of a group open with the same
image, and a trajectory holds its task's messages and its prompt.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, TypeAlias

from agentkit.journal.errors import JournalError
from agentkit.protocols import Medium, Message, Observation, Part, Trajectory, Turn

Fetch: TypeAlias = "Callable[[bytes], bytes | None]"
"""The bytes of a medium by its SHA-256, None where they are not there."""

_NAME = "sha256"


def media_of_turn(turn: Turn) -> tuple[Medium, ...]:
    """What the record of a turn names, each once."""
    return _once(_shown(turn))


def media_of_trajectory(trajectory: Trajectory) -> tuple[Medium, ...]:
    """What the record of a trajectory names, each once; with what its sub-agents saw."""
    return _once(
        said
        for each in trajectory.walk()
        for said in (*each.task.messages, *each.prompt, *(said for turn in each.turns for said in _shown(turn)))
    )


def parts_tree(parts: "Iterable[Part]") -> list[Any]:
    """Parts as the JSON has them: texts as they are, media by name."""
    return [part if isinstance(part, str) else _name(part) for part in parts]


def attach_media(tree: Any, record: "str | bytes", fetch: "Fetch | None") -> Any:
    """`tree`, a task, a turn or a trajectory read from `record`, with media where it names them.

    Each is fetched once, and is one object then. Only messages and observations are looked at: what is free-form may
    look like one of ours and is none.

    Raises:
        JournalError: a medium is missing or damaged.
    """
    mark: Any = '"parts":' if isinstance(record, str) else b'"parts":'
    if mark in record:
        found: dict[tuple[str, str, str], Medium] = {}
        try:
            for said in _said(tree):
                if "parts" in said:
                    said["parts"] = tuple(
                        part if isinstance(part, str) else _medium(part, fetch, found) for part in said["parts"]
                    )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise JournalError(f"a record does not hold its media as expected: {error!r}") from error
    return tree


def _said(tree: Any) -> Iterator[Any]:
    """The messages and observations of a task, a turn or a trajectory."""
    yield from tree.get("messages", ())
    yield from tree.get("heard", ())
    yield from tree.get("observations", ())
    yield from tree.get("prompt", ())
    for below in (*([tree["task"]] if "task" in tree else ()), *tree.get("turns", ()), *tree.get("children", ())):
        yield from _said(below)


def _name(medium: Medium) -> dict[str, str]:
    return {"kind": medium.kind, "mime": medium.mime, _NAME: medium.digest.hex()}


def _medium(part: Mapping[str, str], fetch: "Fetch | None", found: dict[tuple[str, str, str], Medium]) -> Medium:
    key = (part["kind"], part["mime"], part[_NAME])
    if key not in found:
        data = None if fetch is None else fetch(bytes.fromhex(part[_NAME]))
        if data is None or sha256(data).hexdigest() != part[_NAME]:
            raise JournalError(f"medium {part[_NAME][:12]} is {'missing' if data is None else 'damaged'}")
        found[key] = Medium(part["kind"], data, part["mime"])  # type: ignore[arg-type]  # it checks its kind
    return found[key]


def _shown(turn: Turn) -> "Iterator[Message | Observation]":
    yield from turn.heard
    yield from turn.observations


def _once(said: "Iterable[Message | Observation]") -> tuple[Medium, ...]:
    found = {part.digest: part for each in said if each.parts for part in each.parts if isinstance(part, Medium)}
    return tuple(found.values())
