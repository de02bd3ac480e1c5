"""Where a block of openers and closers ends, when values inside it may hold openers and closers too.

Neither format can escape its own tags in the place where this matters, so the end of a block is decided by balance.
Let the depth rise at an opener and fall at a closer. The *extent* of the opener at i ends at the closer after it where
the depth is lowest, the first of these. For blocks side by side, `( ) ( )`, that is the closer next to it; for a block
quoted in another, `( ( ) )`, the outer one; for a quoted lone closer, `( ) )`, the last one.
"""

from collections.abc import Sequence

from attrs import frozen


@frozen
class Tag:
    """One opener or closer at `text[start:stop]`."""

    start: int
    stop: int
    is_open: bool


@frozen
class Extent:
    """`closer` ends the block; `first` is the closer that balances the opener, None where too few closers follow.

    `is_clear` is false where another block may start inside what the extent holds: `( ) ( ) )` reads equally well as
    one block that quotes three tags, or as two blocks of which the second quotes one.
    """

    closer: Tag
    first: Tag | None
    is_clear: bool


class Balance:
    """Extents over a sequence of tags: O(tags) to build, O(1) to ask."""

    def __init__(self, tags: Sequence[Tag]) -> None:
        self.tags = tags
        self._depths: list[int] = []
        self._partners = [-1] * len(tags)
        open_tags: list[int] = []
        depth = 0
        for n, tag in enumerate(tags):
            depth += 1 if tag.is_open else -1
            self._depths.append(depth)
            if tag.is_open:
                open_tags.append(n)
            elif open_tags:
                self._partners[open_tags.pop()] = n
        self._lowest = [-1] * (len(tags) + 1)
        lowest = -1
        for n in range(len(tags) - 1, -1, -1):
            if not tags[n].is_open and (lowest < 0 or self._depths[n] <= self._depths[lowest]):
                lowest = n
            self._lowest[n] = lowest

    def closer_from(self, index: int) -> Tag | None:
        """The closer that ends what is open just before tag `index`, or None where no closer follows."""
        lowest = self._lowest[index]
        return None if lowest < 0 else self.tags[lowest]

    def extent(self, index: int) -> Extent | None:
        """What the opener `index` holds, or None where no closer follows it."""
        lowest, partner = self._lowest[index + 1], self._partners[index]
        if lowest < 0:
            return None
        if partner < 0:
            return Extent(self.tags[lowest], None, is_clear=True)
        # Past the partner there are only closers, if each of them lowers the depth by one.
        is_clear = self._depths[partner] - self._depths[lowest] == lowest - partner
        return Extent(self.tags[lowest], self.tags[partner], is_clear)
