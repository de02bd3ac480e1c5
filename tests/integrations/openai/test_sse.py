"""However a stream of events is cut, the same events come out."""

import itertools

import pytest
from agentkit_openai.sse import SSEDecoder
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit.errors import ModelError

LINES = st.sampled_from(
    [
        b"data: a",
        b"data:b",
        b"data:  c",
        b"data",
        b"data:",
        b"",
        b"",
        b"",
        b": ping",
        b"event: x",
        b"id: 1",
        b"retry: 2",
        b"datax: no",
        b" data: no",
        b'data: {"k": "v: w"}',
        "data: é😀".encode(),
        b"\xef\xbb\xbf",
        b"data: [DONE]",
    ]
)
ENDS = st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"])
STREAMS = st.lists(st.tuples(LINES, ENDS)).map(lambda parts: b"".join(line + end for line, end in parts))


def oracle(stream: bytes) -> list[bytes]:
    """The standard, line by line, on the whole stream."""
    events: list[bytes] = []
    lines: list[bytes] = []
    stream = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    *whole, _ = stream.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for line in whole:
        if not line:
            if lines:
                events.append(b"\n".join(lines))
            lines = []
        elif line == b"data" or line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
    return events


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(stream) + 1) for cut in cuts} | {0, len(stream)})
    return [stream[start:stop] for start, stop in itertools.pairwise(places)] or [stream]


def decode(decoder: SSEDecoder, parts: list[bytes]) -> list[bytes]:
    return [event for part in parts for event in decoder.feed(part)]


@given(STREAMS, st.lists(st.integers(0, 10_000)))
@example(b"data: a\r\n\r\ndata: b\r\n\r\n", list(range(30)))
@example(b"\xef\xbb\xbfdata: a\n\n", [1, 2])
@example(b"\xef\xbb\xbf\ndata: a\n\n", [])
@example(b"data: a\r\rdata: b\n\r\n", [8, 9])
@example(b"\n\n\ndata: a\n\n\n\n", [1, 2, 3])
def test_any_split_gives_the_events_of_the_standard(stream: bytes, cuts: list[int]) -> None:
    assert decode(SSEDecoder(), pieces(stream, cuts)) == oracle(stream)
    assert decode(SSEDecoder(), [bytes([byte]) for byte in stream]) == oracle(stream)


def test_an_event_that_the_stream_cuts_off_is_not_given() -> None:
    assert decode(SSEDecoder(), [b"data: whole\n\ndata: half\n"]) == [b"whole"]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
def test_a_line_that_goes_on_is_refused_before_it_is_held(size: int, end: bytes) -> None:
    parts = [b"x" * size + end * (size == 1000)] * (2000 // size)
    with pytest.raises(ModelError, match="more than 100 bytes"):
        decode(SSEDecoder(limit_bytes=100), parts)


def test_comments_without_an_end_are_refused_too() -> None:
    with pytest.raises(ModelError, match="more than 100 bytes"):
        decode(SSEDecoder(limit_bytes=100), [b": ping\n"] * 100)


@given(st.integers(90, 110), st.lists(st.integers(0, 130)))
def test_the_limit_is_the_same_however_the_event_is_cut(size: int, cuts: list[int]) -> None:
    stream = b"data: " + b"x" * (size - 6) + b"\n\n"
    decoder = SSEDecoder(limit_bytes=100)
    if size <= 100:
        assert decode(decoder, pieces(stream, cuts)) == [b"x" * (size - 6)]
    else:
        with pytest.raises(ModelError):
            decode(decoder, pieces(stream, cuts))


def test_many_keepalives_cost_nothing() -> None:
    decoder = SSEDecoder(limit_bytes=100)
    assert decode(decoder, [b": ping\n\n"] * 1000 + [b"data: a\n\n"]) == [b"a"]
