"""The demo's policy, scripted: it mends bugs by trying small edits until the tests pass.

It stands where a language model stands. All it gets is the text of the prompt; from that it works out what it did and
saw, and it answers with text. It never sees the bugs that were planted, the correct programs or the hidden tests. It
fails where its edits do not reach, or where the visible tests pass for the wrong reason.
"""

import json
import re
import zlib

from attrs import frozen

from agentkit.runs.demo.repair import Edit, propose
from agentkit.runs.demo.transcript import Step, Transcript, read_transcript

_LOOK = "git log --oneline 2>/dev/null | head -n 5; ls; cat README.md"
_TEST = "python3 -m unittest 2>&1 | tail -n 60"
_TEST_BRIEFLY = "timeout -s INT -k 1 1 python3 -m unittest -f 2>&1 | tail -n 60"
_READ = "tail -v -n +1 $(find * -name '*.py' ! -path 'tests/*' | sort)"
_WATCH = "tail -f README.md"
_CHECK = "python3 -m unittest 2>&1 | tail -n 4; git diff"

_TRY_PATH = ".try_edits.py"
_TRY_SCRIPT = """import asyncio, io, json, os, pathlib, signal, sys, unittest
def passing():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.4)  # an endless loop ends here
        silence = os.open(os.devnull, os.O_RDWR)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        try:
            suite = unittest.defaultTestLoader.discover("tests", top_level_dir=".")
            result = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
            bad = len(result.failures) + len(result.errors)
            os.write(write, b"%d %d" % (result.testsRun - bad, result.testsRun))
        finally:
            os._exit(0)
    os.close(write)
    counts = os.read(read, 20).split()
    os.close(read)
    os.waitpid(child, 0)
    return [int(count) for count in counts] or [-1, 0]
sys.path.insert(0, ".")
sys.dont_write_bytecode = True
best, _ = passing()
for number, (path, line, drop, new) in enumerate(json.load(sys.stdin)):
    file = pathlib.Path(path)
    before = file.read_text()
    lines = before.split("\\n")
    lines[line - 1 : line - 1 + drop] = new
    file.write_text("\\n".join(lines))
    now, run = passing()
    if now > best:
        print(f"edit {number} kept: {best} passed before, {now} of {run} now")
        break
    file.write_text(before)
else:
    print(f"none kept: still {best} pass")
"""

_KEPT = re.compile(r"kept: .*, (\d+) of (\d+) now")


@frozen
class _Habits:
    """What this policy does wrong on some tasks, as sampled policies do; chosen by the ticket number it was given."""

    slips: int
    watches: int
    gives_up_after: int

    @classmethod
    def of(cls, asked: str) -> "_Habits":
        ticket = re.search(r"\(ticket (\d{1,6})\)", asked, re.ASCII)
        number = (int(ticket.group(1)) if ticket else zlib.crc32(asked.encode("utf-8", "replace"))) % 36
        return cls(
            slips=99 if number == 11 else 1 if number in (5, 14, 22, 32) else 0,
            watches=99 if number == 29 else 1 if number in (9, 27) else 0,
            gives_up_after=1000 if number % 3 == 2 else 98,
        )


class ScriptedBugFixer:
    """Prompt text in, text of the next turn out: a pure function, a few milliseconds, total on any text.

    It writes Hermes tool calls of `execute_bash` and `submit`. A turn tries `batch` edits.
    """

    def __init__(self, *, batch: int = 14) -> None:
        self._batch = batch

    def __call__(self, prompt_text: str, /) -> str:
        """The next turn."""
        transcript = read_transcript(prompt_text)
        habits = _Habits.of(transcript.asked)
        if transcript.slips < habits.slips and not transcript.steps:
            # the closing quotes and braces are missing: no call can be read from this
            return (
                'Let me look around.\n<tool_call>\n{"name": "execute_bash", "arguments": {"command": "ls\n</tool_call>'
            )
        if not transcript.steps:
            return _bash("Let me look around.", "look", _LOOK)
        return self._next(transcript, habits)

    def _next(self, transcript: Transcript, habits: _Habits) -> str:
        last = transcript.steps[-1]
        watched = sum(step.label == "watch" for step in transcript.steps)
        if last.label in ("look", "watch") and watched < habits.watches:
            return _bash("I will watch the readme for changes.", "watch", _WATCH)
        if last.label in ("look", "watch"):
            return _bash("Now the tests.", "test", _TEST)
        if last.label == "test" and "timed out" in last.output:
            return _bash("The tests hang: I will interrupt them and see where.", "test", _TEST_BRIEFLY)
        if last.label == "test" and "\nOK" in last.output:
            return _bash("Everything passes.", "check", _CHECK)
        if last.label == "test":
            return _bash("Next, the code.", "read", _READ)
        if last.label == "read" and not any(step.label == "script" for step in transcript.steps):
            command = f"cat > {_TRY_PATH} <<'EOF'\n{_TRY_SCRIPT}EOF"
            return _bash("I will write a script that tries edits and keeps what helps.", "script", command)
        if last.label == "try" and (kept := _KEPT.search(last.output)):
            if kept.group(1) == kept.group(2):
                return _bash("That was it. A last look.", "check", _CHECK)
            hung = any("timed out" in step.output for step in transcript.steps if step.label == "test")
            return _bash("Better. What is still wrong?", "test", _TEST_BRIEFLY if hung else _TEST)
        if last.label in ("read", "script", "try"):
            return self._try(transcript, habits)
        if last.label == "check" and "\nOK" not in last.output and last.output[:2] != "OK":
            return _submit("This is as far as I get.")
        return _submit("All tests pass.")

    def _try(self, transcript: Transcript, habits: _Habits) -> str:
        since = max((number for number, step in enumerate(transcript.steps) if step.label == "read"), default=0)
        tried = sum(_size(step) for step in transcript.steps[since:] if step.label == "try")
        report = next((step.output for step in reversed(transcript.steps) if step.label == "test"), "")
        edits = propose(_listing(transcript.steps[since].output), report)[tried : tried + self._batch]
        if not edits or tried >= habits.gives_up_after:
            return _submit("None of my ideas helped; I hand in what I have.")
        return _bash(_reason(edits[0]), f"try {len(edits)}", _try_command(edits))


def _size(step: Step) -> int:
    return int(step.note) if step.note.isascii() and step.note.isdecimal() and len(step.note) < 4 else 1


def _reason(edit: Edit) -> str:
    return f"Line {edit.line} of {edit.file} looks wrong; I will try changes there and nearby."


def _try_command(edits: tuple[Edit, ...]) -> str:
    batch = json.dumps([[edit.file, edit.line, edit.drop, edit.new] for edit in edits])
    return f"python3 -B {_TRY_PATH} <<'EOF'\n{batch}\nEOF"


def _listing(output: str) -> dict[str, str]:
    """The files in what `tail -v` printed."""
    files: dict[str, list[str]] = {}
    current: list[str] = []
    for line in output.split("\n"):
        if line.startswith("==> ") and line.endswith(" <=="):
            current = files.setdefault(line[4:-4], [])
        elif not line.startswith("[exit code "):
            current.append(line)
    return {path: "\n".join(lines) for path, lines in files.items()}


def _bash(thought: str, label: str, command: str) -> str:
    return _call(thought, "execute_bash", {"command": f"# {label}\n{command}"})


def _submit(thought: str) -> str:
    return _call(thought, "submit", {})


def _call(thought: str, name: str, arguments: dict[str, str]) -> str:
    return f"{thought}\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
