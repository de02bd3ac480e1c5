"""What has been said in a rollout, and the way back: to an earlier place, or to another branch.

The conversation is a path through a tree of turns. Going back shortens the path, never the record: every turn that was
sampled stays, and the policy forks its chains where the paths part. A place costs O(1), wherever it is.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from attrs import frozen

from agentkit.actors._policy import Policy
from agentkit.actors._record import OpenTurn, Record
from agentkit.errors import ConfigError
from agentkit.protocols import Action, Message, Turn


@frozen(repr=False, eq=False)
class Bookmark:
    """A place in a rollout's conversation, to come back to with `rollout.back_to`."""

    record: Record
    history: Sequence[Message]
    """As it was then, in its first `length` messages."""
    length: int
    pending: tuple[Message, ...]
    heard: tuple[Message, ...]
    rewritten: bool
    tip: int
    observed: int
    """How many observations of the turn `tip` belong to it."""
    place: object
    """The policy's own."""


class Conversation:
    """The history of one rollout, what of it the policy has not answered, and its branches."""

    def __init__(self, record: Record, policy: Policy) -> None:
        self._record = record
        self._policy = policy
        self._pending: list[Message] = []
        self._starts: dict[int, Bookmark] = {}
        """Before each turn was sampled."""
        self._ends: dict[int, Bookmark] = {}
        """After each of several candidates was."""
        self._unwritten: deque[Turn] = deque()

    def say(self, message: Message) -> None:
        """The policy is to answer this, among others: an observation."""
        self._record.history.append(message)
        self._pending.append(message)

    def tell(self, message: Message) -> None:
        """As `say`, for what is no observation."""
        self.say(message)
        self._record.heard.append(message)

    def to_answer(self) -> list[Message]:
        """What the next turn is to answer, emptied by who has put it before the policy."""
        self._starts[self._record.begun] = self.here()
        return self._pending

    def rewrite(self, said: list[Message]) -> None:
        """Go on from `said` instead of the history."""
        self._settle()
        kept = self._policy.rewrite(said)
        self._pending = said[kept:]
        self._record.history, self._record.heard, self._record.rewritten = said, list(said), True

    def here(self) -> Bookmark:
        """The place of now."""
        record, tip = self._record, self._record.tip
        observed = len(record.turns[tip].observations) if 0 <= tip < len(record.turns) else 0
        return Bookmark(
            record,
            record.history,
            len(record.history),
            tuple(self._pending),
            tuple(record.heard),
            record.rewritten,
            tip,
            observed,
            self._policy.place,
        )

    def back_to(self, bookmark: Bookmark) -> None:
        """Go on from another place.

        Raises:
            ConfigError: it is another rollout's.
        """
        record, tip = self._record, bookmark.tip
        if bookmark.record is not record:
            raise ConfigError(f"rollout.back_to takes a bookmark of the same attempt, {record.key}")
        self._settle()
        self._go(bookmark)
        if tip >= 0 and len(record.turns[tip].observations) != bookmark.observed:
            record.heard, record.rewritten = list(record.history), True  # from before the turn was acted on

    def rollback(self, turns: int) -> None:
        """Go on from before the last `turns` turns.

        Raises:
            ConfigError: there are not so many.
        """
        at = self._record.tip
        start: Bookmark | None = None
        for _ in range(turns):
            start = self._starts.get(at)
            if start is None:
                break
            at = start.tip
        if start is None:
            raise ConfigError(f"rollout.rollback({turns!r}) takes at least 1 and no more than the conversation has")
        self.back_to(start)

    def start_over(self) -> None:
        """Go on from before the turn just sampled, which stays a candidate."""
        tip = self._record.tip
        self._ends[tip] = self.here()
        self._go(self._starts[tip])

    def take(self, action: Action) -> OpenTurn | None:
        """The turn of an action not acted on yet, and go on from it; None where there is none."""
        turn = next((turn for turn in self._record.open_turns if turn.action is action), None)
        if turn is not None and turn.index != self._record.tip:
            self._ends[self._record.tip] = self.here()
            self._go(self._ends[turn.index])
        return turn

    def settled(self) -> Iterator[Turn]:
        """The turns that nothing is added to any more, each given once, in order."""
        self._settle()
        while self._unwritten:
            yield self._unwritten.popleft()

    def _settle(self) -> None:
        record = self._record
        for turn in record.open_turns:
            record.turns.append(turn.seal())
            self._unwritten.append(record.turns[-1])
        record.open_turns.clear()
        self._ends.clear()

    def _go(self, bookmark: Bookmark) -> None:
        record = self._record
        record.history = list(bookmark.history[: bookmark.length])  # another list: who has a view of the old keeps it
        record.heard, record.rewritten, record.tip = list(bookmark.heard), bookmark.rewritten, bookmark.tip
        self._pending = list(bookmark.pending)
        self._policy.go(bookmark.place)
