from hypothesis import given
from hypothesis import strategies as st

from agentkit.protocols import OutputCap
from agentkit.sandbox.output import OutputRing


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(0, 50), st.integers(0, 50))
def test_head_and_tail_equal_those_of_the_whole(pieces: list[bytes], head: int, tail: int) -> None:
    ring = OutputRing(OutputCap(head, tail))
    for piece in pieces:
        ring.feed(piece)
    whole = b"".join(pieces)
    kept = ring.text()
    assert ring.total_bytes == len(whole)
    assert ring.truncated == (len(whole) > head + tail)
    if len(whole) <= head + tail:
        assert kept == whole
    else:
        assert kept.startswith(whole[:head])
        assert kept.endswith(whole[len(whole) - tail :])
        assert f"{len(whole) - head - tail} bytes left out".encode() in kept


def test_memory_stays_within_the_cap() -> None:
    ring = OutputRing(OutputCap(1000, 1000))
    for _ in range(1000):
        ring.feed(b"x" * 65536)
    held = len(ring._head) + sum(map(len, ring._tail))
    assert held < 1000 + 1000 + 65536
    assert ring.total_bytes == 65_536_000
