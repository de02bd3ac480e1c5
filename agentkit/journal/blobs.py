"""The tokens of a chain as one compressed blob, and back.

The four bytes of each id and log-probability are written as four planes: the high bytes of ids are nearly all zero and
those of log-probabilities repeat, so that zlib finds what it would miss in the interleaved form. Little-endian on disk.
"""

import sys
import zlib
from array import array

from agentkit.journal.errors import JournalError

_LEVEL = 1  # higher levels gain a few percent on tokens and cost several times the CPU


def pack_tokens(id_bytes: bytes, mask_bytes: bytes, logprob_bytes: bytes) -> bytes:
    """One compressed blob; 9 bytes a token go in."""
    planes = b"".join([*_planes(_little(id_bytes)), mask_bytes, *_planes(_little(logprob_bytes))])
    return zlib.compress(planes, _LEVEL)


def unpack_tokens(blob: bytes) -> tuple[bytes, bytes, bytes]:
    """(id_bytes, mask_bytes, logprob_bytes) as given to `pack_tokens`.

    Raises:
        JournalError: the blob is damaged.
    """
    try:
        planes = zlib.decompress(blob)
    except zlib.error as error:
        raise JournalError(f"a blob of tokens is damaged: {error}") from error
    n, rest = divmod(len(planes), 9)
    if rest:
        raise JournalError(f"a blob of tokens has {len(planes)} bytes, which is no multiple of 9")
    ids, logprobs = _interleave(planes[: 4 * n], n), _interleave(planes[5 * n :], n)
    return _little(ids), planes[4 * n : 5 * n], _little(logprobs)


def _planes(data: bytes) -> tuple[bytes, ...]:
    return tuple(data[k::4] for k in range(4))


def _interleave(planes: bytes, n: int) -> bytes:
    data = bytearray(4 * n)
    for k in range(4):
        data[k::4] = planes[k * n : (k + 1) * n]
    return bytes(data)


def _little(data: bytes) -> bytes:
    """`data` with its 4-byte items turned between native and little-endian order (its own inverse)."""
    if sys.byteorder == "little":
        return data
    items = array("i", data)
    items.byteswap()
    return items.tobytes()
