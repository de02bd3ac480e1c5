"""What is said and answered, byte for byte: against a real bash, and however it is split."""

import shutil
import subprocess
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit.errors import SandboxError
from agentkit.sandbox.over_exec.wire import Answer, AnswerReader, environment, request

MARK = "0123456789abcdef0123456789abcdef"
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)


def _oracle(said: bytes) -> tuple[bytes, Answer | None]:
    """The slow and obvious way: look at all of it at once."""
    mark = MARK.encode()
    if not said.endswith(mark + b".\n"):
        return said, None
    for at in range(len(said) - len(mark), -1, -1):
        if not said.startswith(mark + b" ", at):
            continue
        line, _, rest = said[at:].partition(b"\n")
        words = line.split(b" ")
        plain = len(words) == 5 and words[1].isalpha() and words[1].islower() and words[1].isascii()
        if plain and words[2].isdigit() and words[3] in (b"0", b"1") and (words[4] == b"-1" or words[4].isdigit()):
            status = rest[: len(rest) - len(mark) - 2]
            kind = words[1].decode()
            return said[:at], Answer(kind, int(words[2]), words[3] == b"1", int(words[4]), status)
    return said, None


PIECES = st.sampled_from(
    [
        MARK.encode(),
        MARK.encode() + b" ok 0 0 5\n",
        MARK.encode() + b" died 137 1 -1\n",
        MARK.encode() + b".\n",
        MARK.encode()[:7],
        b" ok 0 0 5\n",
        b"\n",
        b"\0\xff",
        b"text",
    ]
)


@given(pieces=st.lists(PIECES, max_size=12), cuts=st.lists(st.integers(0, 400), max_size=8))
@example(pieces=[b"text", MARK.encode() + b" ok 0 0 5\n", b"s", MARK.encode() + b".\n"], cuts=[3, 20, 37, 50])
@example(
    pieces=[MARK.encode() + b" ok 0 0 5\n", b"text", MARK.encode() + b" died 137 1 -1\n", MARK.encode() + b".\n"],
    cuts=[],
)
def test_the_answer_is_found_however_it_arrives(pieces: list[bytes], cuts: list[int]) -> None:
    said = b"".join(pieces)
    output = bytearray()
    reader = AnswerReader(MARK, output.extend)
    edges = [0, *sorted(min(cut, len(said)) for cut in cuts), len(said)]
    for begin, end in pairwise(edges):
        reader.feed(said[begin:end])
    answer = reader.finish()
    assert (bytes(output), answer) == _oracle(said)


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=10))
def test_output_is_not_held_back(pieces: list[bytes]) -> None:
    output = bytearray()
    reader = AnswerReader(MARK, output.extend)
    for number, piece in enumerate(pieces):
        reader.feed(piece)
        held = len(b"".join(pieces[: number + 1])) - len(output)
        assert held < len(MARK)
        assert MARK.encode().startswith(b"".join(pieces[: number + 1])[len(output) :])


def test_a_command_that_prints_marks_for_ever_costs_no_memory() -> None:
    total = 0

    def count(data: bytes) -> None:
        nonlocal total
        total += len(data)

    reader = AnswerReader(MARK, count)
    piece = (MARK.encode() + b" ok 0 0 0\n") * 1000
    for _ in range(200):
        reader.feed(piece)
    assert total > 200 * len(piece) - 400_000
    assert reader.finish() is None
    assert total == 200 * len(piece)


@pytest.mark.slow
@given(st.lists(WORDS, min_size=1, max_size=4), WORDS)
def test_bash_reads_what_was_meant(words: list[str], text: str) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    script = 'IFS= read -r n; eval "$(head -c "$n")"; printf "%s\\0" "${_ak_argv[@]}" "$_ak_dir" "$_ak_op"; cat'
    said = request(MARK, "exec", {"argv": words, "dir": text}) + b"payload\n"
    done = subprocess.run([bash, "-c", script], input=said, capture_output=True, check=True, env={"LC_ALL": "C"})
    wanted = "\0".join([*words, text, "exec"]).encode() + b"\0payload\n"
    assert done.stdout == wanted


def test_what_bash_cannot_hold_is_refused() -> None:
    with pytest.raises(SandboxError, match="NUL"):
        request(MARK, "exec", {"dir": "a\0b"})
    with pytest.raises(SandboxError, match="field"):
        request(MARK, "exec", {"dir;rm": "x"})


def test_an_environment_is_pairs() -> None:
    assert environment({}) == []
    assert environment({"A": "b c=d"}) == ["A=b c=d"]
