import json
from typing import Any

import pytest
from agentkit_remote.frames import CHUNK_BYTES, JSON_BYTES, KEPT, MESSAGE_BYTES, Frame, Kind, WireError, decode, encode
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit.errors import SandboxError

BODIES = st.dictionaries(
    st.text(max_size=8), st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))
)


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    kind = draw(st.sampled_from(Kind))
    request = draw(st.integers(1, 2**32 - 1)) if kind in KEPT else 0
    if kind is Kind.DATA:
        return Frame(kind, request, data=draw(st.binary(min_size=1, max_size=300)))
    if kind in (Kind.HELLO, Kind.OPEN, Kind.RESULT):
        return Frame(kind, request, body=draw(BODIES))
    if kind is Kind.CREDIT:
        return Frame(kind, request, number=draw(st.integers(1, 2**32 - 1)))
    if kind is Kind.ACK:
        return Frame(kind, request, number=draw(st.integers(0, 2**64 - 1)))
    return Frame(kind, request)


@given(frames())
def test_a_frame_comes_back_as_it_was(frame: Frame) -> None:
    assert decode(encode(frame)) == frame


def _is_frame(message: bytes) -> bool:
    """The table of the module, slowly."""
    if len(message) < 5 or message[0] > 8:
        return False
    kind, request, payload = Kind(message[0]), int.from_bytes(message[1:5], "big"), message[5:]
    if kind in (Kind.HELLO, Kind.ACK, Kind.PING):
        if request:
            return False
    elif not request:
        return False
    if kind in (Kind.HELLO, Kind.OPEN, Kind.RESULT):
        try:
            return isinstance(json.loads(payload), dict)
        except (ValueError, RecursionError):
            return False
    if kind is Kind.DATA:
        return 1 <= len(payload) <= 65_536
    if kind is Kind.CREDIT:
        return len(payload) == 4 and any(payload)
    return len(payload) == (8 if kind is Kind.ACK else 0)


@given(
    st.binary(max_size=40)
    | st.builds(
        lambda kind, request, rest: bytes([kind]) + request.to_bytes(4, "big") + rest,
        st.integers(0, 10),
        st.integers(0, 3),
        st.binary(max_size=9) | st.sampled_from([b"{}", b"[]", b'{"op":1}', b"1", b"{", b"\xff", b"[" * 100_000]),
    )
)
@example(b"\x01\0\0\0\x01" + b'{"a":' * 100_000)
@example(b"\x04\0\0\0\x01\0\0\0\0")
def test_whatever_comes_is_a_frame_or_is_refused(message: bytes) -> None:
    try:
        frame = decode(message)
    except WireError:
        assert not _is_frame(message)
    else:
        assert _is_frame(message)
        assert decode(encode(frame)) == frame


def test_no_message_is_larger_than_it_may_be() -> None:
    assert decode(encode(Frame(Kind.DATA, 1, data=b"x" * CHUNK_BYTES))).data == b"x" * CHUNK_BYTES
    with pytest.raises(WireError, match="65537"):
        decode(b"\x02\0\0\0\x01" + b"x" * (CHUNK_BYTES + 1))
    with pytest.raises(WireError, match="expected"):
        decode(b"\x01\0\0\0\x01" + b" " * MESSAGE_BYTES)
    large: dict[str, Any] = {"env": {"A": "x" * JSON_BYTES}}
    with pytest.raises(SandboxError, match="arguments"):
        encode(Frame(Kind.OPEN, 1, body=large))
