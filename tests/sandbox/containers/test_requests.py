"""What is said between host and guest: requests survive bash, reports survive any split and any lie."""

import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit.errors import SandboxError
from agentkit.sandbox.containers.requests import GUEST, Redirection, Reports, found, request
from agentkit.sandbox.place import Program

# What the guest defines for requests, without the guest: they are sourced and show what they would become.
_FUNCTIONS = """
dir=$1 keep=$2
inside() { printf 'in %s\\0' "$@"; }
failed() { printf 'failed\\0'; exit 1; }
begun() { :; }
become() { printf 'arg %s\\0' "$@"; exec /usr/bin/env -0; }
. "$3"
"""
words = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12)
surrogates = st.binary(max_size=8).map(lambda data: data.replace(b"\0", b"").decode("utf-8", "surrogateescape"))
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True) | words.filter(lambda w: bool(w) and "=" not in w)


def _played(text: bytes, directory: Path) -> list[bytes]:
    path = directory / "request"
    path.write_bytes(text)
    output = directory / "output"
    command = [
        "bash",
        "--noprofile",
        "--norc",
        "-p",
        "-c",
        _FUNCTIONS,
        "guest",
        str(directory),
        str(directory),
        str(path),
    ]
    done = subprocess.run(command, env={}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=20)
    assert done.returncode == 0
    return output.read_bytes().split(b"\0")[:-1]


@pytest.mark.slow
@given(
    st.lists(words | surrogates, min_size=1, max_size=5),
    st.dictionaries(names, words | surrogates, max_size=4),
    st.lists((words | surrogates).filter(bool), min_size=1, max_size=2),
)
@example(["-n", "$(id)", "`id`", "a\nb", "'"], {"A": "'\n$(id)"}, ["/work"])
@example(["true"], {"UID": "7", "a b": "c", "LC_ALL": "no-such"}, ["-"])
def test_a_request_becomes_exactly_the_program(
    tmp_path_factory: pytest.TempPathFactory, argv: list[str], env: dict[str, str], cwd: list[str]
) -> None:
    directory = tmp_path_factory.mktemp("request")
    (directory / "output").touch()
    program = Program(tuple(argv), env, tuple(cwd))
    text = request(program, {1: Redirection("output"), 2: Redirection("output")})
    # `inside` prints before the redirection is made: it goes to nowhere here, so it is looked at in the text's effect.
    said = _played(text.replace(b"\ninside ", b"\n", 1), directory)
    arguments = [os.fsdecode(word.removeprefix(b"arg ")) for word in said if word.startswith(b"arg ")]
    odd = [
        f"{name}={value}"
        for name, value in env.items()
        if not name.isidentifier() or not name.isascii() or name == "UID"
    ]
    assert arguments == (["env", "--", *odd, *argv] if odd else argv)
    seen = dict(os.fsdecode(word).split("=", 1) for word in said if b"=" in word and not word.startswith(b"arg "))
    for name, value in env.items():
        if f"{name}={value}" not in odd and name not in ("SHLVL", "_"):
            assert seen[name] == value
    assert set(seen) <= {*env, "PWD", "SHLVL", "_", "OLDPWD", "PATH"}, "nothing else is in it"


def test_what_no_shell_can_take_is_refused() -> None:
    for program in (Program(("a\0b",), {}), Program(("a",), {"A": "\0"}), Program(("a",), {}, ("/\0",))):
        with pytest.raises(SandboxError, match="NUL"):
            request(program, {})


def test_descriptors_are_opened_in_their_direction_and_the_rest_is_closed() -> None:
    text = request(
        Program(("true",), {}),
        {0: Redirection("f-1", reads=True), 61: Redirection("f-2"), 62: Redirection("kept", kept=True)},
    ).decode()
    assert 'exec 0<"$dir/f-1" 61>"$dir/f-2" 1<>/dev/null 2<>/dev/null || failed open\n' in text
    assert 'exec 62>"$keep/kept" || exec 62>/dev/null\n' in text


lines = st.lists(
    st.one_of(
        st.builds("pid {}".format, st.integers(1, 99999)),
        st.builds("exit {}".format, st.integers(0, 999)),
        st.builds("signalled {}".format, st.integers(0, 99)),
        st.builds("error cwd {}".format, st.text("abc /", max_size=5)),
        st.text("pidextsgnal 0123-\x1b", max_size=12),
    ),
    max_size=8,
)


@given(lines, st.lists(st.integers(0, 200), max_size=6))
@example(["exit 1234567890123"], [])
@example(["exit 300"], [])
@example(["exit -1", "pid 0x10", "exit 1 2"], [])
def test_reports_are_the_same_however_they_are_split(said: list[str], cuts: list[int]) -> None:
    data = "".join(f"{line}\n" for line in said).encode()
    whole, pieces = Reports(), Reports()
    whole.feed(data)
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for start, end in pairwise(edges):
        pieces.feed(data[start:end])
    assert whole == pieces
    exits = [line.split()[1] for line in said if line.startswith("exit ") and line[5:].isdecimal() and len(line) < 15]
    assert whole.exit_code == (int(exits[0]) & 0xFF if exits else None), "the first of its kind counts"


@given(st.binary(max_size=200))
def test_whatever_is_reported_nothing_breaks(data: bytes) -> None:
    reports = Reports()
    reports.feed(data * 100)
    assert reports.exit_code is None or 0 <= reports.exit_code <= 255
    assert len(reports._buffer) <= 8192


def test_a_flood_without_lines_is_no_report() -> None:
    reports = Reports()
    for _ in range(100):
        reports.feed(b"x" * 1000)
    assert reports.is_broken
    assert len(reports._buffer) <= 8192


@given(st.dictionaries(names, words, max_size=5), words.filter(lambda w: "\n" not in w))
def test_what_the_guest_found_is_read_as_it_said_it(env: dict[str, str], keep: str) -> None:
    said = "".join(f"{name}={value}\0" for name, value in env.items()).encode() + f"\0keep {keep}\0ready\n".encode()
    answer = found(said)
    assert answer is not None
    assert (dict(answer.env), answer.keep, answer.failure) == (env, keep, None)
    assert found(said[:-1]) is None
    failed = found(b"A=b\0\0fail no\0ready\n")
    assert failed is not None
    assert failed.failure == "no"


@pytest.mark.slow
def test_the_guest_is_one_that_bash_can_read() -> None:
    assert subprocess.run(["bash", "-n", str(GUEST)], timeout=10).returncode == 0
