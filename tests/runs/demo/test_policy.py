"""The scripted policy: total, pure, and driven by what it reads."""

import ast
import json
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

import agentkit.runs.demo
from agentkit.parsing import HermesParser, parse
from agentkit.protocols import CallFault, ToolCall, ToolSpec
from agentkit.runs.demo import ScriptedBugFixer, demo_tasks
from agentkit.runs.demo.program import Program
from agentkit.runs.demo.programs import PROGRAMS
from agentkit.runs.demo.repair import Edit, propose
from agentkit.runs.demo.transcript import read_transcript

TOOLS = (ToolSpec("execute_bash", "", {"type": "object"}), ToolSpec("submit", "", {"type": "object"}))
PIECES = st.sampled_from(
    [
        "<|im_start|>", "<|im_end|>", "system\n", "user\n", "assistant\n", "<tool_call>\n", "\n</tool_call>",
        "<tool_response>\n", "\n</tool_response>", '{"name": "execute_bash", "arguments": {"command": "# try 8\\nx"}}',
        '{"name": "execute_bash", "arguments": {"command": "# read\\nx"}}', "[[[", "==> a.py <==\n", "def f(x):\n",
        '{"name": "execute_bash", "arguments": {"command": "# test\\nx"}}', "    return x[0] / y\n", "IndexError",
        '  File "/w/a.py", line 2, in f\n', "KeyError: 'x'\n", "name 'z' is not defined", "edit 1 kept: , 2 of 2 now",
    ]
)  # fmt: skip


def conversation(*turns: tuple[str, str]) -> str:
    """A ChatML prompt: what was asked, then (command, output) of each turn."""
    text = "<|im_start|>system\nbe good<|im_end|>\n<|im_start|>user\nFix repository 7.<|im_end|>\n"
    for command, output in turns:
        call = json.dumps({"name": "execute_bash", "arguments": {"command": command}})
        text += f"<|im_start|>assistant\nhm\n<tool_call>\n{call}\n</tool_call><|im_end|>\n"
        text += f"<|im_start|>user\n<tool_response>\n{output}\n</tool_response><|im_end|>\n"
    return text + "<|im_start|>assistant\n"


def call_in(text: str) -> ToolCall:
    (attempt,) = parse(HermesParser(), text, TOOLS).attempts
    assert isinstance(attempt, ToolCall)
    return attempt


def command_in(text: str) -> str:
    command = call_in(text).arguments["command"]
    assert isinstance(command, str)
    return command


@given(st.text() | st.lists(PIECES | st.text(max_size=8), max_size=40).map("".join))
@example("<|im_start|>assistant\n<tool_call>" + "[" * 100_000 + "</tool_call><|im_start|>")
@example(conversation(("# try " + "9" * 5000 + "\nx", "none kept")))
def test_any_text_is_answered_with_one_attempt(prompt: str) -> None:
    answer = ScriptedBugFixer()(prompt)
    assert answer == ScriptedBugFixer()(prompt)
    assert len(parse(HermesParser(), answer, TOOLS).attempts) == 1


@given(st.dictionaries(st.sampled_from(["a.py", "p/b.py"]), st.lists(PIECES | st.text()).map("".join)), st.text())
def test_any_source_is_searched(sources: dict[str, str], report: str) -> None:
    edits = propose(sources, report)
    assert len(set(edits)) == len(edits)


def test_it_looks_tests_reads_and_tries() -> None:
    policy = ScriptedBugFixer()
    source = "==> box/lid.py <==\ndef weight(box):\n    return box.full + box.empty\n[exit code 0]"
    report = (
        'Traceback:\n  File "/w/tests/test_box.py", line 3, in test_weight\n    self.assertEqual(weight(b), 1)\n'
        "AssertionError: 3 != 1\n\nFAILED (failures=1)"
    )
    turns: list[tuple[str, str]] = []
    for output in ("README.md box tests", report, source, "The command printed nothing."):
        turns.append((command_in(policy(conversation(*turns))), output))
    assert [command.split("\n")[0] for command, _ in turns] == ["# look", "# test", "# read", "# script"]
    command = command_in(policy(conversation(*turns)))
    assert "box.full - box.empty" in command
    won = conversation(*turns, (command, "edit 1 kept: 0 passed before, 1 of 1 now"))
    assert command_in(policy(won)).startswith("# check")
    lost = conversation(*turns, (command, "none kept: still 0 pass"))
    assert call_in(policy(lost)).name == "submit"  # the file is too short for more ideas


def test_it_hands_in_after_a_check() -> None:
    assert call_in(ScriptedBugFixer()(conversation(("# check\nx", "Ran 1 test\n\nOK")))).name == "submit"


def test_it_interrupts_hanging_tests() -> None:
    answer = ScriptedBugFixer()(conversation(("# look\nls", "x"), ("# test\nx", "[timed out after 5 s]")))
    assert "timeout -s INT" in command_in(answer)


def test_some_first_turns_are_malformed() -> None:
    policy = ScriptedBugFixer()
    answers = [policy(_prompt(task_messages)) for task_messages in _openings()]
    faults = sum(isinstance(parse(HermesParser(), text, TOOLS).attempts[0], CallFault) for text in answers)
    assert 5 <= faults <= len(answers) // 4


def test_the_likely_edit_comes_early() -> None:
    sources = {"a.py": "def share(part, whole):\n    if not whole:\n        return 0\n    return part / wole\n"}
    edits = propose(sources, "NameError: name 'wole' is not defined. Did you mean: 'whole'?")
    assert edits[0] == Edit("a.py", 4, 1, ("    return part / whole",))


def test_the_policy_knows_nothing_of_the_tasks() -> None:
    folder = Path(agentkit.runs.demo.__file__).parent
    for name in ("policy", "repair", "suspicion", "transcript"):
        text = (folder / f"{name}.py").read_text()
        imported = {
            node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module
        }
        assert not any(word in module for module in imported for word in ("tasks", "program", "reward", "env"))
        assert not [p.name for p in PROGRAMS if _mentions(p, text)]


def _mentions(program: Program, text: str) -> bool:
    return any(plant.find.strip() in text for plant in program.plants if len(plant.find) > 12)


def test_transcripts_keep_the_order_of_turns() -> None:
    transcript = read_transcript(conversation(("# look\nls", "a"), ("# try 8\nx", "b")))
    assert [(step.label, step.note, step.output) for step in transcript.steps] == [("look", "", "a"), ("try", "8", "b")]
    assert (transcript.asked, transcript.slips) == ("Fix repository 7.", 0)


def _openings() -> list[tuple[str, str]]:
    return [(t.messages[0].content, t.messages[1].content) for seed in range(3) for t in demo_tasks(36, seed=seed)]


def _prompt(opening: tuple[str, str]) -> str:
    system, user = opening
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
