"""What the model computed for earlier turns, kept so that the next turn computes only what is new.

An entry is the ids that were run through the model, and the model's own cache for them. It is used again only as far
as those ids are the start of the new prompt, id for id, and only under the weights it was computed with; so a cache
that is ahead (a generation cut short), behind, or of another conversation is cut or dropped, never believed.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from attrs import define

from agentkit.errors import ConfigError

C = TypeVar("C")


@define(eq=False)
class Kept(Generic[C]):
    """The model's cache for `ids`, computed under the weights that `weights` names."""

    ids: "array[int]"
    cache: C
    weights: Hashable = None


class KeptCaches(Generic[C]):
    """At most `limit` caches by request id, the one used longest ago dropped first. For one thread.

    `cut(cache, n)` takes the last `n` ids out of a cache and says whether it could.
    """

    def __init__(self, limit: int, cut: Callable[[C, int], bool]) -> None:
        if limit < 0:
            raise ConfigError(f"kept_caches must be >= 0, found {limit!r}")
        self._limit = limit
        self._cut = cut
        self._kept: OrderedDict[str, Kept[C]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, request_id: str, prompt: "array[int]", weights: Hashable) -> Kept[C] | None:
        """What can be used of the cache of `request_id`: all of it is for ids that start `prompt`, the last one not.

        It is taken out: who takes it puts it back. One that cannot be used is dropped.
        """
        kept = self._kept.pop(request_id, None)
        if kept is None or kept.weights != weights:
            return None
        # The model must run the prompt's last id to say what follows it.
        shared = min(shared_start(kept.ids, prompt), len(prompt) - 1)
        surplus = len(kept.ids) - shared
        if shared <= 0 or (surplus and not self._cut(kept.cache, surplus)):
            return None
        del kept.ids[shared:]
        return kept

    def put(self, request_id: str, kept: Kept[C]) -> None:
        """Keep a cache, instead of the one this request id has."""
        self._kept[request_id] = kept
        self._kept.move_to_end(request_id)
        while len(self._kept) > self._limit:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        """Drop all."""
        self._kept.clear()


def shared_start(one: "array[int]", other: "array[int]") -> int:
    """How many ids the two have in common from their start; as quick as comparing memory where one starts the other."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high - 1:  # the starts of length `low` are equal, those of length `high` are not
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
