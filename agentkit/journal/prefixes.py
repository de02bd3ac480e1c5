"""The prefix that a fork shares with its parent is written once, in the parent.

A chain of a trajectory whose first tokens are those of an earlier one, with mask and log-probability 0, is written from
there on; `shared` in its record says how many tokens are missing. Where a chain says that it is a fork but does not
hold what its parent holds, all of it is written.
"""

from collections.abc import Sequence
from typing import TypeAlias

from agentkit.journal.errors import JournalError
from agentkit.protocols import Chain

Tokens: TypeAlias = tuple[bytes, bytes, bytes]
"""id_bytes, mask_bytes, logprob_bytes."""


def shared_prefix(chains: Sequence[Chain], number: int) -> int:
    """How many tokens of chain `number` need not be written, for its parent has them."""
    chain = chains[number]
    if chain.parent is None or not 0 <= chain.parent[0] < number:
        return 0
    parent, length = chains[chain.parent[0]], chain.parent[1]
    if not 0 < length <= min(len(parent), len(chain)):
        return 0
    is_shared = (
        chain.mask_bytes.count(0, 0, length) == length
        and chain.logprob_bytes.startswith(bytes(4 * length))
        and chain.id_bytes.startswith(parent.id_bytes[: 4 * length])
    )
    return length if is_shared else 0


def without_prefix(chain: Chain, length: int) -> Tokens:
    """The tokens of `chain` from `length` on."""
    return chain.id_bytes[4 * length :], chain.mask_bytes[length:], chain.logprob_bytes[4 * length :]


def with_prefix(earlier: Sequence[Tokens], parent: Sequence[int], length: int, own: Tokens) -> Tokens:
    """`own` after the first `length` tokens of the chain it was forked from, one of those before it.

    Raises:
        JournalError: there is no such chain, or it is too short.
    """
    number = parent[0]
    if not 0 <= number < len(earlier) or not 0 <= length <= len(earlier[number][1]):
        raise JournalError(f"chain {len(earlier)} shares {length} tokens with chain {number}, which lacks them")
    ids, mask, logprobs = own
    return earlier[number][0][: 4 * length] + ids, bytes(length) + mask, bytes(4 * length) + logprobs
