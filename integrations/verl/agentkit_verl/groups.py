"""The sessions of one prompt, which verl runs side by side in one process: who waits for whom, and what is left.

verl's own rules would harm a group whose siblings failed. A session that is left alone has no baseline: GRPO takes its
raw reward for the advantage. A group whose rows are all masked teaches nothing, and a batch of such groups ends the
trainer. So each session waits for its siblings before it hands over rows, and the group decides once. That costs no
time: verl uses a group only when all of its sessions have ended.
"""

from collections import Counter
from collections.abc import Hashable
from itertools import count
from typing import Literal

import anyio
from attrs import define, field, frozen

from agentkit.errors import AgentkitError
from agentkit.protocols import Outcome

Verdict = Literal["keep", "drop", "fail"]


class GroupLost(AgentkitError):
    """Too few sessions of a group are fit to train on. verl logs it, and fetches another group where it is told to."""


@frozen(kw_only=True)
class GroupRules:
    """When a group is given up, and what verl hears then."""

    min_group: int = 2
    fails: bool = False
    """A lost group is a failed one for verl, which evicts it and fetches another; else it leaves no rows."""


@define(eq=False)
class Group:
    """The sessions of one prompt. All of them join before the first goes on."""

    number: int
    """Of this group among those of the process: a task that comes again, in the next epoch say, is another rollout."""
    joined: int = 0
    deadline: float | None = None
    """When the rollouts of its step end; None until the first of its sessions has asked."""
    outcomes: list[Outcome] = field(factory=list)
    replaced: int = 0
    """How many rollouts were begun in place of others."""
    _settled: anyio.Event = field(factory=anyio.Event)
    _why: list[str] = field(factory=list)
    left: int = 0
    """Sessions that have handed over their rows."""
    _failure_told: bool = False
    _told: bool = False

    @property
    def running(self) -> int:
        """Sessions that have not ended."""
        return self.joined - len(self.outcomes)

    def take_replacement(self, at_most: int) -> bool:
        """Whether one more rollout may be begun in place of a lost one: only so many, and while siblings still run."""
        if self.replaced >= at_most or (self.joined > 1 and self.running <= 1):
            return False
        self.replaced += 1
        return True

    def settle(self, outcome: Outcome, why: str = "") -> None:
        """A session has ended; `why` one that is not trained on did so is for the log."""
        self.outcomes.append(outcome)
        self._why.append(f"{outcome} ({why})" if why and outcome is not Outcome.TRAIN else str(outcome))
        if self.running == 0:
            self._settled.set()

    async def verdict(self, rules: GroupRules, *, validate: bool) -> Verdict:
        """What a session's rows are good for, once all siblings have ended. `fail` is said to one session only.

        Cancellation: the other sessions go on without this one.
        """
        await self._settled.wait()
        if validate or self.joined < 2:
            return "keep"
        kept = sum(outcome in (Outcome.TRAIN, Outcome.MASK) for outcome in self.outcomes)
        trained = sum(outcome is Outcome.TRAIN for outcome in self.outcomes)
        if trained and kept >= min(rules.min_group, self.joined):
            return "keep"
        if rules.fails and not self._failure_told:
            self._failure_told = True
            return "fail"
        return "drop"

    def tell_once(self) -> bool:
        """True for the first that asks: what became of the group is worth one line."""
        first, self._told = not self._told, True
        return first

    def told(self) -> str:
        """How the sessions ended, for a log."""
        return ", ".join(f"{count} {ended}" for ended, count in Counter(self._why).items())


class Groups:
    """The groups under way in a process."""

    def __init__(self) -> None:
        self._open: dict[Hashable, Group] = {}
        self._numbers = count()

    def join(self, key: Hashable) -> Group:
        """One more session of a group."""
        group = self._open.get(key)
        if group is None or group.running == 0:
            group = self._open[key] = Group(next(self._numbers))
        group.joined += 1
        return group

    def leave(self, key: Hashable, group: Group) -> None:
        """A session has handed over its rows; a group that all have left is forgotten."""
        group.left += 1
        if group.left == group.joined and self._open.get(key) is group:
            del self._open[key]
