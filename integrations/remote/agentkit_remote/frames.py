"""The messages between a client and a server of sandboxes, version 1. Sans-IO.

One WebSocket serves all sandboxes of a client process: with one for each, a thousand sandboxes would cost a thousand
descriptors and heartbeats on either side. Every message is binary: one byte of kind, four of request number
(big-endian), and a payload.

| kind   | from   | payload                                                                                    |
|--------|--------|--------------------------------------------------------------------------------------------|
| HELLO  | both   | JSON; the first message of a connection, see below                                         |
| OPEN   | client | JSON: `op` and its arguments; begins request n, numbers only rise                          |
| DATA   | both   | 1 to 65,536 bytes: standard input, a command, a file or a tar; or output                   |
| END    | both   | empty: no more DATA of this part                                                           |
| CREDIT | both   | how many more bytes of DATA the other side may send in this request (a u32)                |
| CANCEL | client | empty: kill what the request does; undo what it made                                       |
| RESULT | server | JSON, `{"ok": ...}` or `{"error": {"type", "message", "retryable"}}`; ends the request     |
| ACK    | both   | how many frames of the session have been received (a u64)                                  |
| PING   | both   | empty: still here                                                                          |

A session is named by 32 hexadecimal digits that the client drew. It outlives its connection: OPEN, DATA, END, CREDIT,
CANCEL and RESULT are kept by the sender until acknowledged. A client that was cut off connects again and says in its
HELLO `{"session", "received", "resume"}`; the server answers with `{"received", ...}`, and both send again from there.
So each of these frames arrives once and in order however often the connection breaks, and no request is done twice.

DATA of a request starts with a credit of `WINDOW_BYTES`; whoever uses it up waits. What a sender keeps unacknowledged
of all requests together is bounded by `OUTBOX_BYTES`, in which requests take turns.
"""

import json
import struct
from enum import IntEnum
from typing import Any

from attrs import frozen

from agentkit.errors import SandboxError

VERSION = 1
SUBPROTOCOL = f"agentkit-sandbox.{VERSION}"
CHUNK_BYTES = 65_536
WINDOW_BYTES = 262_144
OUTBOX_BYTES = 4 << 20
JSON_BYTES = 4 << 20
LAST_REQUEST = (1 << 32) - 1
_HEAD = struct.Struct("!BI")
_U32 = struct.Struct("!I")
_U64 = struct.Struct("!Q")
MESSAGE_BYTES = _HEAD.size + JSON_BYTES


class WireError(SandboxError):
    """The other side does not keep to the protocol; the connection with it is ended."""


class Kind(IntEnum):
    """What a message is."""

    HELLO = 0
    OPEN = 1
    DATA = 2
    END = 3
    CREDIT = 4
    CANCEL = 5
    RESULT = 6
    ACK = 7
    PING = 8


KEPT = frozenset({Kind.OPEN, Kind.DATA, Kind.END, Kind.CREDIT, Kind.CANCEL, Kind.RESULT})
"""The kinds that are sent again after a broken connection, and counted."""
_WITH_JSON = frozenset({Kind.HELLO, Kind.OPEN, Kind.RESULT})


@frozen
class Frame:
    """One message. `body` is that of HELLO, OPEN and RESULT, `number` that of CREDIT and ACK."""

    kind: Kind
    request: int = 0
    data: bytes = b""
    body: dict[str, Any] | None = None
    number: int = 0


def encode(frame: Frame) -> bytes:
    """The message of `frame`.

    Raises:
        SandboxError: its JSON is larger than `JSON_BYTES`.
    """
    payload = frame.data
    if frame.kind in _WITH_JSON:
        payload = json.dumps(frame.body, separators=(",", ":")).encode()
        if len(payload) > JSON_BYTES:
            raise SandboxError(
                f"arguments of {len(payload)} bytes are more than the {JSON_BYTES} that a request may have"
            )
    elif frame.kind is Kind.CREDIT:
        payload = _U32.pack(frame.number)
    elif frame.kind is Kind.ACK:
        payload = _U64.pack(frame.number)
    return _HEAD.pack(frame.kind, frame.request) + payload


def decode(message: bytes) -> Frame:
    """The frame that `message` is.

    Raises:
        WireError: it is none.
    """
    if not _HEAD.size <= len(message) <= MESSAGE_BYTES:
        raise WireError(f"message of {len(message)} bytes: expected {_HEAD.size} to {MESSAGE_BYTES}")
    number, request = _HEAD.unpack_from(message)
    try:
        kind = Kind(number)
    except ValueError:
        raise WireError(f"message of unknown kind {number}") from None
    payload = message[_HEAD.size :]
    if (request > 0) is not (kind in KEPT):
        raise WireError(f"{kind.name} of request {request}")
    if kind is Kind.DATA:
        if not 1 <= len(payload) <= CHUNK_BYTES:
            raise WireError(f"DATA of {len(payload)} bytes: expected 1 to {CHUNK_BYTES}")
        return Frame(kind, request, data=payload)
    if kind in _WITH_JSON:
        return Frame(kind, request, body=_object(payload, kind))
    packed = {Kind.CREDIT: _U32, Kind.ACK: _U64}.get(kind)
    if len(payload) != (packed.size if packed else 0):
        raise WireError(f"{kind.name} with {len(payload)} bytes")
    value: int = packed.unpack(payload)[0] if packed else 0
    if kind is Kind.CREDIT and value == 0:
        raise WireError("CREDIT of 0 bytes")
    return Frame(kind, request, number=value)


def _object(payload: bytes, kind: Kind) -> dict[str, Any]:
    try:
        body = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{kind.name} that is no JSON: {type(error).__name__}") from None
    if not isinstance(body, dict):
        raise WireError(f"{kind.name} that is no object but {type(body).__name__}")
    return body
