"""What `agentkit inspect` shows, and that nothing in a record can drive the terminal."""

import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import anyio
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentkit.cli import main
from agentkit.cli.inspect import render_run, render_trajectory
from agentkit.cli.terminal import columns, escape, fit, wrap
from agentkit.journal import Journal, JournalReader
from agentkit.protocols import (
    Action,
    Attempt,
    Blame,
    CallFault,
    Chain,
    ChainDelta,
    ExitReason,
    FaultStatus,
    Grade,
    GradeStatus,
    Observation,
    ObservationStatus,
    Outcome,
    RolloutKey,
    Score,
    Span,
    SpanKind,
    Timings,
    ToolCall,
    Trajectory,
    Turn,
    user,
)
from agentkit.testing.strategies import texts, trajectories

CHAIN = Chain.of(
    [10, 11, 20, 21, 12],
    [0, 0, 1, 1, 0],
    [0, 0, -1, -2, 0],
    (Span(0, 2, SpanKind.PROMPT), Span(2, 4, SpanKind.SAMPLED, 0, 7), Span(4, 5, SpanKind.OBSERVATION, 0)),
)
TURN = Turn(
    0,
    Action("let me look", attempts=(ToolCall("1", "bash", {"cmd": "ls"}), CallFault(FaultStatus.UNCLOSED, "no end"))),
    (Observation("file.py", call_id="1", name="bash"), Observation("slow", status=ObservationStatus.TIMEOUT)),
    chain=0,
    start=2,
    stop=4,
    generation_s=1.5,
)
SEALED = Trajectory(
    RolloutKey("fix-bug", 0, 1),
    (user("please fix it"),),
    (CHAIN,),
    (TURN,),
    ExitReason.TURN_LIMIT,
    Blame.POLICY,
    Grade(GradeStatus.OK, Score(0.5, metrics={"passed": 3.0})),
    Outcome.MASK,
    Timings(total_s=12.5),
    (Attempt(0, ExitReason.ENV_START_FAILED, "no image", 3.0),),
    stuck=("bad tool",),
    error="Traceback: boom",
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    async def write() -> None:
        async with Journal.open(tmp_path, writer="inline") as journal:
            await journal.seal(SEALED)
            await journal.seal(evolve(SEALED, key=RolloutKey("other", 0), exit_reason=ExitReason.FINISHED, grade=None))
            await journal.seal(evolve(SEALED, key=RolloutKey("other", 1), exit_reason=ExitReason.FINISHED))
            await journal.begin(RolloutKey("going-on", 0))
            await journal.append(RolloutKey("going-on", 0), TURN, [ChainDelta(0, 0, CHAIN)])

    anyio.run(write)
    return tmp_path


def test_rollout_that_is_run_again_counts_once_and_shows_its_newest_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def write() -> None:
        async with Journal.open(tmp_path, writer="inline") as journal:
            await journal.seal(evolve(SEALED, exit_reason=ExitReason.CANCELLED))
            await journal.begin(evolve(SEALED.key, attempt=2))

    anyio.run(write)
    assert main(["inspect", str(tmp_path)]) == 0
    assert "1 rollouts: 1 cancelled, 1 unfinished" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path), "fix-bug#0"]) == 0
    assert "unfinished" in capsys.readouterr().out


def test_run_is_a_table_of_rollouts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "rollout",
        "exit",
        "reason",
        "blame",
        "score",
        "turns",
        "tokens",
        "sampled",
        "seconds",
        "outcome",
    ]
    assert lines[1].split() == ["fix-bug#0", "turn_limit", "policy", "0.5", "1", "5", "2", "12.5", "mask"]
    assert lines[2].split() == ["other#0", "finished", "policy", "-", "1", "5", "2", "12.5", "mask"]
    assert lines[4].split() == ["going-on#0", "(unfinished)", "-", "-", "1", "5", "2", "-", "-"]
    assert lines[6:] == [
        "4 rollouts: 2 finished, 1 turn_limit, 1 unfinished",
        "mean score 0.5 of 2 graded",
        "15 tokens, 6 sampled",
    ]


def test_rollout_shows_everything_that_happened(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(run / "journal.sqlite"), "fix-bug"]) == 0
    out = capsys.readouterr().out
    for said in (
        "rollout fix-bug#0  attempt 1",
        "exit reason| turn_limit, blame policy",
        "grade      | ok, 0.5, passed 3",
        "outcome    | mask",
        "policy versions 7 to 7",
        "seconds    | 12.50:",
        "attempt    | 0 env_start_failed after 3.00 s: no image",
        "stuck      | bad tool",
        "error      | Traceback: boom",
        "user       | please fix it",
        "turn 0  chain 0 tokens 2-4  stop  generation 1.50 s",
        "sampled    | let me look",
        'call       | bash({"cmd": "ls"})',
        "fault      | unclosed: no end",
        "bash       | file.py",
        "[timeout]",
        "prompt     | 2 tokens: 10 11",
        "sampled    | 2 tokens: 20 21  policy version 7",
        "observation| 1 tokens: 12",
    ):
        assert said in out


def test_what_was_said_between_turns_is_shown_where_it_was_said() -> None:
    told = evolve(TURN, index=1, heard=(user("and now?"),))
    again = evolve(TURN, index=2, heard=(user("in short: go on"),), is_rewrite=True)
    lines = render_trajectory(evolve(SEALED, turns=(TURN, told, again))).splitlines()
    marks = [line for line in lines if line.startswith(("turn ", "said", "history")) or "| and now?" in line]
    assert [mark.split("  ")[0] for mark in marks] == ["turn 0", "said", "", "turn 1", "history rewritten", "turn 2"]
    assert any(line.endswith("| in short: go on") for line in lines)


def test_unfinished_rollout_shows_how_far_it_got(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(run), "going-on#0"]) == 0
    out = capsys.readouterr().out
    assert "(unfinished)" in out
    assert "let me look" in out
    assert "sampled    | 2 tokens: 20 21" in out


def test_tokens_are_decoded_and_coloured_by_the_mask() -> None:
    mixed = evolve(CHAIN, spans=(Span(0, 5, SpanKind.OBSERVATION),))  # the mask is the fact, not the span
    text = render_trajectory(
        evolve(SEALED, chains=(mixed,)), color=True, decode=lambda ids: "".join(f"<{token}>" for token in ids)
    )
    assert "sampled    | \x1b[32m<20><21>\x1b[0m" in text
    assert "observation| \x1b[2m<10><11>\x1b[0m" in text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fix-bag#0", "no rollout 'fix-bag#0' in .*the nearest are 'fix-bug#0'"),
        ("other", "2 rollouts are named 'other' .*'other#0', 'other#1'"),
        ("zzz", "no rollout 'zzz' .*nearest are 'fix-bug#0'"),
    ],
)
def test_unknown_rollout_names_the_nearest(run: Path, capsys: pytest.CaptureFixture[str], name: str, said: str) -> None:
    assert main(["inspect", str(run), name]) == 1
    assert re.search(said, capsys.readouterr().err)


def test_missing_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"agentkit: no journal at '{tmp_path}/journal.sqlite'\n"


def test_wrong_usage_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["inspekt"])
    assert caught.value.code == 2
    assert "inspect" in capsys.readouterr().err


def is_harmless(text: str) -> bool:
    return all(c == "\n" or unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} for c in text)


@given(texts(60))
def test_escaped_text_is_harmless(text: str) -> None:
    assert is_harmless(escape(text, lines=True))
    assert "\n" not in escape(text)


@pytest.mark.parametrize(
    "hostile", ["\x1b]52;c;aGk=\x07", "\x9b2J", "a\rb", "\u202egpj.exe", "\x08", "\u2028", "\U000e0041"]
)
def test_control_sequences_become_visible(hostile: str) -> None:
    assert is_harmless(escape(hostile))
    assert escape(hostile).startswith(("\\", "a\\r", "a\\x0d"))


def test_plain_text_is_left_alone() -> None:
    text = "naïve 中文 🎉 𝔘 x = {'a': \"b\\n\"}"
    assert escape(text) == text


@given(trajectories(), st.sampled_from([None, 1, 20, 80]))
def test_no_record_can_drive_the_terminal(trajectory: Trajectory, width: int | None) -> None:
    assert is_harmless(render_trajectory(trajectory, width=width))
    colored = render_trajectory(trajectory, width=width, color=True, decode=lambda ids: "\x1b[31m\u202e")
    assert is_harmless(re.sub("\x1b\\[(32|31|2|1|0)m", "", colored))


@given(trajectories(), st.sampled_from([40, 80]))
def test_rollout_keeps_to_the_width(trajectory: Trajectory, width: int) -> None:
    assert all(columns(line) <= width for line in render_trajectory(trajectory, width=width).split("\n"))


@given(texts(40), st.integers(8, 30))
def test_wrapping_keeps_all_text_within_the_width(text: str, width: int) -> None:
    safe = escape(text)
    assert "".join(wrap(safe, width)) == safe
    assert all(columns(line) <= width for line in wrap(safe, width))
    assert columns(fit(safe, width)) <= width


def test_hostile_task_ids_stay_in_their_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "\x1b[2J\n中\u202e\ud800" + "x" * 100

    async def write() -> None:
        async with Journal.open(tmp_path, writer="inline") as journal:
            await journal.seal(evolve(SEALED, key=RolloutKey(name, 0), children=(SEALED,)))

    anyio.run(write)
    with JournalReader.open(tmp_path) as reader:
        text = render_run(reader, width=100)
    assert is_harmless(text)
    assert len(text.splitlines()) == 6
    assert all(columns(line) <= 100 for line in text.splitlines())
    assert main(["inspect", str(tmp_path), escape(name)]) == 0
    out = capsys.readouterr().out
    assert is_harmless(out)
    assert "sub-agent fix-bug#0" in out


@pytest.mark.slow
def test_output_survives_a_closed_pipe_and_a_narrow_encoding(run: Path) -> None:
    command = f"{sys.executable} -m agentkit inspect {run}"
    piped = subprocess.run(["sh", "-c", f"{command} fix-bug | true"], capture_output=True, text=True, check=False)
    assert piped.stderr == ""
    env = {"PYTHONIOENCODING": "ascii", "PATH": ""}
    narrow = subprocess.run(command.split(), capture_output=True, env=env, check=False)
    assert narrow.returncode == 0
    assert narrow.stdout.isascii()


def test_a_turn_that_goes_on_from_an_earlier_one_says_so() -> None:
    turns = (TURN, evolve(TURN, index=1), evolve(TURN, index=2, follows=0), evolve(TURN, index=3, follows=-1))
    lines = render_trajectory(evolve(SEALED, turns=turns)).splitlines()
    marks = [line.split("  ")[0] for line in lines if line.startswith("turn ")]
    assert marks == ["turn 0", "turn 1", "turn 2 after turn 0", "turn 3 from the start"]
