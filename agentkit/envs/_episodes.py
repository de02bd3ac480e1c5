"""What envs that play episodes have in common: how they open, where they begin, what of their texts is shown."""

import re
from collections.abc import Sequence
from zlib import crc32

from attrs import evolve

from agentkit.errors import ConfigError
from agentkit.protocols.messages import Message, user
from agentkit.protocols.task import Task

OVER = "The episode is over."

_MARKED = re.compile(r"\x1b\[[0-9;]*m(.+?)\x1b\[0?m")  # in colour, where colour is all that tells
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class NoAction(Exception):
    """There is no action in an answer; the message is for the policy."""


def seed_of(task: Task) -> int:
    """The seed of a task's episode: the same for all of its rollouts.

    Raises:
        ConfigError: the task has one that cannot be.
    """
    seed = task.data.get("seed", crc32(task.id.encode("utf-8", "surrogatepass")))
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"task {task.id!r}: data.seed must be a whole number >= 0, found {seed!r:.80}")
    return seed


def opening_with(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """The task's messages and `text`, in the last message of the user: templates want the roles to alternate."""
    last = messages[-1] if messages else None
    if last is None or last.role != "user" or last.parts:
        return (*messages, user(text))
    return (*messages[:-1], evolve(last, content=f"{last.content}\n\n{text}" if last.content else text))


def plain(text: str) -> str:
    """`text` without escapes and control characters: what was in colour stands in brackets."""
    return _CONTROL.sub("", _ESCAPE.sub("", _MARKED.sub(r"[\1]", text))).strip("\n")
