"""What the rollouts of a pool share."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from attrs import define, field

from agentkit.actors.permits import FairPermits
from agentkit.protocols import Sink, Task

if TYPE_CHECKING:
    from agentkit.actors._record import Record
    from agentkit.actors.actor import Actor
    from agentkit.actors.agent import Agent


class StartChild(Protocol):
    """Starts a sub-agent beneath a rollout."""

    def __call__(self, agent: "Agent", task: Task, index: int, *, parent: "Record") -> "Actor":
        """A handle on the child; its trajectory is noted on the parent."""
        ...


@define
class Services:
    """Permits, the sink, and where to report what outlived its rollout."""

    new_id: Callable[[], str]
    """A new name each time: tells the requests of one attempt from those of every other, in any pool."""
    start_child: StartChild
    report: Callable[[str], None]
    sink: Sink | None = None
    starts: FairPermits = field(factory=FairPermits)
    generations: FairPermits = field(factory=FairPermits)
