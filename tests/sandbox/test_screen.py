"""What a terminal shows: the text a person would see, whatever was written, in bounded memory."""

import tracemalloc
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit.sandbox.screen import LONGEST_STRING, Emulator

ROWS, COLUMNS = 6, 20


def shown(*pieces: bytes, rows: int = ROWS, columns: int = COLUMNS) -> tuple[str, ...]:
    emulator = Emulator(rows, columns)
    for piece in pieces:
        emulator.feed(piece)
    return emulator.lines


def first(*pieces: bytes) -> str:
    return shown(*pieces)[0]


@pytest.mark.parametrize(
    ("written", "line"),
    [
        (b"hello", "hello"),
        (b"abc\rX", "Xbc"),
        (b"abc\b\bX", "aXc"),
        (b"\x1b[31mred\x1b[0m \x1b[1;7mmore\x1b[m", "red more"),
        (b"abc\x1b[2DX", "aXc"),
        (b"abc\x1b[1K\x1b[1;1HX", "X"),
        (b"\x1b]0;a title\x07text", "text"),
        (b"\x1b]0;a title\x1b\\text", "text"),
        (b"\x1bPq#0;2;0;0;0\x1b\\text", "text"),
        (b"\x1b_hidden\x1b\\\x1b^hidden\x1b\\\x1bXhidden\x1b\\text", "text"),
        (b"\x1b]52;c;c2VjcmV0\x07\x1b[6n\x1b[c\x1b[>c\x1b[0x\x1b[?1;2;3ctext", "text"),
        (b"\x1b]0;open\x1b[1mtext", "text"),  # the next sequence ends it
        (b"a\x00\x01\x7f\x1a\x0eb\x0f\x07c", "abc"),
        ("a\u009b31mb\u0085c".encode(), "a31mbc"),
        ("e\u0301t\u00e9".encode(), "\u00e9t\u00e9"),
        ("x\u0335\u0336\u0337y".encode(), "xy"),
        ("\u202eabc\u200b\ufeffd".encode(), "abcd"),
        ("\u65e5\u672c".encode(), "\u65e5\u672c"),
        ("\u65e5\u672c\x1b[1;2HX".encode(), "\u65e5X\u672c"),  # half of a wide letter is overwritten: nothing breaks
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"\x1b[" + b"1" * 5000 + b"mtext", "1" * 20),
        (b"\x1b[1;2;3;4;5Atext", "text"),
        (b"\x1b[?25l\x1b[?3h\x1b[?1000htext", "text"),
        (b"\x1b$Btext\x1b(0\x1b)B\x1b%G", "text"),
        (b"tab\tstop", "tab     stop"),
    ],
)
def test_a_line(written: bytes, line: str) -> None:
    emulator = Emulator(ROWS, COLUMNS)
    emulator.feed(written)
    assert emulator.lines[0] == line


def test_wrapping_scrolling_and_the_cursor() -> None:
    emulator = Emulator(3, 5)
    emulator.feed(b"1\r\n2\r\n3\r\n4567890")
    assert emulator.lines == ("3", "45678", "90")
    assert emulator.cursor == (2, 2)
    emulator.feed(b"\x1b[9999;9999H")
    assert emulator.cursor == (2, 4)


def test_the_main_screen_comes_back() -> None:
    emulator = Emulator(3, 10)
    emulator.feed(b"$ vim\x1b[?1049h\x1b[2J\x1b[1;1Hedited")
    assert emulator.lines[0] == "edited"
    emulator.feed(b"\x1b[?1049l")
    assert emulator.lines[0] == "$ vim"
    assert emulator.cursor == (0, 5)


def test_a_string_without_an_end_hides_nothing_for_ever() -> None:
    emulator = Emulator(ROWS, COLUMNS)
    emulator.feed(b"\x1b]0;" + b"x" * (LONGEST_STRING - 2))
    assert emulator.lines[0] == ""
    emulator.feed(b"\r\nseen")
    emulator.feed(b" it")
    assert "seen it" in emulator.lines


def test_memory_is_bounded_whatever_is_written() -> None:
    emulator = Emulator(ROWS, COLUMNS)
    floods = [
        b"\x1b]0;" + b"t" * 70_000,
        b"\x1b7" * 2_000,  # cursors kept
        ("\x1b[1;2H" + "\u0301" * 50).encode() * 40,  # all on one letter
        b"\x1b[" + b"1;" * 2_000,
        b"\x1bP" * 2_000,
        b"".join(b"\x1b[%dh" % number for number in range(200)),
        b"y\n" * 500,
    ]
    for data in floods:  # once, so that what is made once is there
        emulator.feed(data)
    tracemalloc.start()
    try:
        for data in floods:
            emulator.feed(data)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 60_000, held


NUMBERS = (b"", b"0", b"3", b"2;5", b"?25", b"999999", b"1;2;3;4")
FINALS = b"@ABCDEFGHJKLMPXcdfghlmnrsu"
SEQUENCES = st.sampled_from(
    [
        *(b"\x1b[%s%c" % (number, final) for number in NUMBERS for final in FINALS),
        *(b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?47h", b"\x1b[4h", b"\x1b[?5h", b"\x1b[?6h", b"\x1b[?7l"),
        *(b"\x1bc", b"\x1b7", b"\x1b8", b"\x1bD", b"\x1bE", b"\x1bH", b"\x1bM", b"\x1b#8", b"\x1b(0", b"\x0e", b"\x0f"),
        *(b"\x1b]0;t\x07", b"\x1bPq\x1b\\", b"\x1b]", b"\x1b", b"\x1b[", b"\r", b"\n", b"\b", b"\t", b"\xc3", b"\xa9"),
        *("\u65e5".encode(), "\u0301".encode(), "\U0001f469\u200d\U0001f467".encode(), b"a", b"text"),
    ]
)  # fmt: skip
OUTPUT = st.lists(SEQUENCES | st.binary(max_size=8), max_size=60).map(b"".join)


@given(OUTPUT, st.lists(st.integers(0, 400), max_size=6))
@example(b"\x1b[?3hx", [])
@example(b"soft\xc2\xadhyphen", [])
@example("\u65e5".encode() * 30, [1, 4])
@example(b"\x1b[\xc2\xb2A", [])
@example("ae\u0301\u65e5\u0301".encode(), [2, 7])
def test_any_output_is_a_screen_and_however_it_was_split_the_same(written: bytes, cuts: list[int]) -> None:
    whole = Emulator(ROWS, COLUMNS)
    whole.feed(written)
    at = sorted({min(cut, len(written)) for cut in cuts})
    pieces = [written[start:stop] for start, stop in zip([0, *at], [*at, len(written)], strict=True)]
    split = Emulator(ROWS, COLUMNS)
    for piece in pieces:
        split.feed(piece)
    assert split.lines == whole.lines
    assert split.cursor == whole.cursor
    assert len(whole.lines) == ROWS
    assert all(len(line) <= COLUMNS for line in whole.lines)
    assert not {unicodedata.category(letter) for line in whole.lines for letter in line} & {"Cc", "Cf", "Zl", "Zp"}
    row, column = whole.cursor
    assert 0 <= row < ROWS
    assert 0 <= column < COLUMNS


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=300))
def test_plain_text_is_wrapped_as_the_oracle_wraps_it(text: str) -> None:
    rows = [text[start : start + COLUMNS] for start in range(0, len(text), COLUMNS)] or [""]
    expected = [row.rstrip() for row in rows[-ROWS:]]
    expected += [""] * (ROWS - len(expected))
    assert list(shown(text.encode())) == expected
