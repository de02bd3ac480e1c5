import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentkit.errors import SandboxError
from agentkit.sandbox.framing import ShellState, Status, StatusReader, encode, frame, quote


@settings(max_examples=30)
@given(st.binary(max_size=60).map(lambda data: data.replace(b"\0", b"")))
@example(b"'\\''\n$(date)`x`\"")
def test_quoting_is_exact(data: bytes) -> None:
    done = subprocess.run(["bash", "-c", b"printf %s " + quote(data)], capture_output=True, check=True)
    assert done.stdout == data


def _report(word: bytes, code: int) -> bytes:
    return word + b" %d hxB\0trap -- 'echo T' DEBUG\n\x0042\n\0/some where\0" % code + word + b"\n"


@given(st.binary(max_size=80), st.integers(0, 255), st.lists(st.integers(0, 200), max_size=6))
@example(b"kdead 3 hB\0\0\0/\0kdead\n", 7, [1])
def test_status_is_found_however_it_is_split_and_whatever_came_before(noise: bytes, code: int, cuts: list[int]) -> None:
    before = ShellState("/old")
    stream = noise + _report(b"kbeef", code)
    reader = StatusReader("kbeef", before)
    found: Status | None = None
    start = 0
    for cut in [*sorted(min(cut, len(stream)) for cut in cuts), len(stream)]:
        assert found is None or start == len(stream)
        found = reader.feed(stream[start:cut]) or found
        start = cut
    expected = ShellState("/some where", "hxB", b"trap -- 'echo T' DEBUG\n", has_jobs=True)
    assert found == Status(code, expected)


def test_another_commands_word_is_no_status() -> None:
    assert StatusReader("kbeef", ShellState("/")).feed(_report(b"kdead", 0)) is None


def test_tracing_and_traps_come_back_inside_the_evaluated_text() -> None:
    text = frame(b"echo hi", "k1", ShellState("/", flags="hxB", debug_trap=b"trap -- 'echo T' DEBUG\n"))
    evaluated = text.split(b"</dev/null")[0]
    assert evaluated.index(b"echo T") < evaluated.index(b"set -x") < evaluated.index(b"echo hi")


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_what_no_shell_can_take_is_refused(text: str) -> None:
    with pytest.raises(SandboxError):
        encode(text)
