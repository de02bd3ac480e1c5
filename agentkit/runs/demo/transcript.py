"""What a policy can see: the decoded prompt, taken apart into its own commands and what they printed."""

import json
import re
from collections.abc import Iterator

from attrs import frozen

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_RESPONSE = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


@frozen
class Step:
    """One earlier turn: the first line of its command as `label` and `note`, and what the command printed."""

    label: str
    note: str
    output: str


@frozen
class Transcript:
    """`asked` is the first user message, `steps` the turns with a command, `slips` counts the turns without one."""

    asked: str
    steps: tuple[Step, ...]
    slips: int


def read_transcript(prompt_text: str) -> Transcript:
    """The transcript in a ChatML prompt; total on any text.

    Commands are told apart by their first line, a comment `# label note`.
    """
    asked = ""
    steps = []
    slips = 0
    messages = list(_messages(prompt_text))
    for number, (role, content) in enumerate(messages):
        if role == "user" and not asked:
            asked = content
        if role != "assistant" or number == len(messages) - 1:
            continue
        command = _command(content)
        if command is None:
            slips += 1
            continue
        answer = messages[number + 1][1]
        found = _RESPONSE.search(answer)
        words = command.partition("\n")[0].removeprefix("#").split(maxsplit=1)
        label, note = (*words, "", "")[:2]
        steps.append(Step(label, note, found.group(1) if found else answer))
    return Transcript(asked, tuple(steps), slips)


def _messages(prompt_text: str) -> Iterator[tuple[str, str]]:
    for part in prompt_text.split("<|im_start|>")[1:]:
        role, _, content = part.partition("\n")
        yield role.strip(), content.partition("<|im_end|>")[0]


def _command(content: str) -> str | None:
    """The shell command of an assistant message, or None where there is no readable call."""
    found = _CALL.search(content)
    if found is None:
        return None
    try:
        command = json.loads(found.group(1))["arguments"]["command"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return command if isinstance(command, str) else None
