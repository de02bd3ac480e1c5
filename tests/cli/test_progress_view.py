"""Progress on a terminal and without one: what fits, nothing hostile, and no line drawn over another."""

import contextlib
import io
import itertools
import os
import select
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.cli.progress_view import ProgressView, duration, render_progress
from agentkit.cli.terminal import columns
from agentkit.protocols import ExitReason, RolloutKey
from agentkit.runs import Progress, StopLevel


def progress(**changes: object) -> Progress:
    values: dict[str, object] = {
        "expected": 800,
        "done": 200,
        "done_before": 0,
        "live": 64,
        "reasons": {ExitReason.FINISHED: 190, ExitReason.MODEL_ERROR: 2, ExitReason.TURN_LIMIT: 8},
        "graded": 190,
        "score_sum": 95.0,
        "turns": 1000,
        "sampled": 90_000,
        "elapsed_s": 60.0,
        "turns_per_s": 12.34,
        "tokens_per_s": 12_345.0,
        "oldest": (RolloutKey("task-7", 3), 245.0),
    }
    return Progress(**{**values, **changes})  # type: ignore[arg-type]


class Terminal(io.StringIO):
    """A terminal of one line height: what stands on the last line, and what has scrolled above it."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        shown = [""]
        for piece in self.getvalue().split("\n"):
            shown[-1] = piece.rpartition("\r\x1b[K")[2] if "\r\x1b[K" in piece else shown[-1] + piece
            shown.append("")
        return shown[:-1]


def test_a_line_says_what_matters_most_first() -> None:
    assert render_progress(progress()) == (
        "200/800 25% · 64 live · eta ~3m00s · score 0.500 · 8 turn_limit · 2 model_error · 12.3k tok/s · 12 turns/s · "
        "1m00s · oldest task-7#3 4m05s"
    )
    assert render_progress(progress(expected=None, done=0, reasons={}, graded=0, oldest=None, tokens_per_s=0.0)) == (
        "0/? · 64 live · eta ? · 12 turns/s · 1m00s"
    )
    assert "draining" in render_progress(progress(stopping=StopLevel.DRAIN))


@given(st.integers(8, 200), st.text(max_size=30), st.integers(0, 10**9))
def test_a_line_fits_and_carries_nothing_hostile(width: int, task: str, done: int) -> None:
    line = render_progress(progress(oldest=(RolloutKey(task, 0), 1.0), done=done), width)
    assert columns(line) <= width
    assert line.isprintable()


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0s"), (59.9, "59s"), (60, "1m00s"), (3661, "1h01m"), (90_000, "1d01h")]
)
def test_a_duration_is_what_a_person_reads(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_on_a_terminal_the_line_is_redrawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    terminal, now = Terminal(), [0.0]
    view = ProgressView(terminal, clock=lambda: now[0])
    for done in range(5):
        now[0] += 1
        view.show(progress(done=done))
    stream = view.stream
    stream.write("a warning\nand anoth")
    stream.write("er\n")
    view.show(progress(done=6))
    now[0] += 1
    view.show(progress(done=7))
    view.close()
    view.close()
    first, second, last, after = terminal.lines()
    assert (first, second, after) == ("a warning", "and another", "")
    assert last.startswith("7/800")
    assert max(map(columns, terminal.lines())) < 60, "a full last column makes some terminals wrap"


@pytest.mark.parametrize("terminal", [True, False])
def test_without_a_terminal_or_on_a_dumb_one_there_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream, now = Terminal() if terminal else io.StringIO(), [0.0]
    view = ProgressView(stream, clock=lambda: now[0])
    for second in range(100):
        now[0] = float(second)
        view.show(progress(done=second))
    view.close()
    assert [line.split("/")[0] for line in stream.getvalue().splitlines()] == ["30", "60", "90"]
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_a_stop_is_told_once_and_at_once_with_what_to_type_next() -> None:
    stream = io.StringIO()
    view = ProgressView(stream, clock=lambda: 0.0, quiet=True)
    view.resume_line = "agentkit resume runs/x-1"
    view.show(progress())
    view.show(progress(stopping=StopLevel.DRAIN, live=3))
    view.show(progress(stopping=StopLevel.DRAIN, live=2))
    view.show(progress(stopping=StopLevel.CANCEL, live=1))
    first, second = stream.getvalue().splitlines()
    assert "3 rollouts" in first
    assert "again cancels" in first
    assert "1 rollout:" in second
    assert "agentkit resume runs/x-1" in second


def test_a_terminal_of_few_characters_is_no_error() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    view = ProgressView(stream)
    view.say(render_progress(progress()))
    stream.seek(0)
    assert "200/800" in stream.read()


def test_lines_of_many_threads_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal, now = Terminal(), [0.0]
    view = ProgressView(terminal, clock=lambda: now[0])

    def log(name: str) -> None:
        stream = view.stream
        for number in range(50):
            stream.write(f"{name} {number}\n")

    threads = [threading.Thread(target=log, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for done in range(200):
        now[0] += 1
        view.show(progress(done=done))
    for thread in threads:
        thread.join()
    view.close()
    *said, _last, _after = terminal.lines()
    assert sorted(said) == sorted(f"{name} {number}" for name in "abcd" for number in range(50))


@pytest.mark.parametrize(
    "error", [BrokenPipeError(), OSError(28, "No space left on device"), ValueError("closed file")]
)
def test_where_nothing_more_can_be_shown_nothing_fails(error: Exception) -> None:
    tries = []

    class Broken(io.StringIO):
        def write(self, text: str, /) -> int:
            tries.append(text)
            raise error

    view = ProgressView(Broken())
    view.say("hello")
    view.show(progress(stopping=StopLevel.CANCEL))
    print("a line of a log", file=view.stream)
    view.close()
    assert len(tries) == 1, "it is left alone"


@pytest.mark.slow
def test_a_reader_who_does_not_read_holds_up_nobody_but_the_logs() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "w") as stream:
        now = itertools.count(step=100)
        view = ProgressView(stream, clock=lambda: next(now))
        log = threading.Thread(target=lambda: print("x" * 200_000, file=view.stream), daemon=True)
        log.start()
        while select.select([], [writing], [], 0)[1]:  # until the pipe is full, and the log waits inside
            time.sleep(0.01)

        def go_on() -> None:
            for _ in range(20):
                view.show(progress())
            view.say("hello")
            view.close()

        loop = threading.Thread(target=go_on, daemon=True)
        loop.start()
        loop.join(5)
        went_on, waits = not loop.is_alive(), log.is_alive()
        got = b""
        while b"\n" not in got:
            got += os.read(reading, 65536)
        log.join(10)
        assert went_on
        assert waits
        assert got == b"x" * 200_000 + b"\n", "what could not be shown was left out"
        view.say("after")
        assert os.read(reading, 100) == b"after\n"


@pytest.mark.slow
def test_a_full_pipe_is_not_waited_for() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    with os.fdopen(reading, "rb"), os.fdopen(writing, "w") as stream:
        view = ProgressView(stream)
        caller = threading.Thread(target=view.say, args=("hello",), daemon=True)
        caller.start()
        caller.join(10)
        alive = caller.is_alive()
        os.read(reading, 65536)
        assert not alive
