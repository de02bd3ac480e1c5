"""What the rollouts of a pool share."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from attrs import define, field

from agentkit.actors.permits import FairPermits
from agentkit.protocols import Sink, Task, Trajectory

if TYPE_CHECKING:
    from agentkit.actors._record import Record
    from agentkit.actors.agent import Agent


class RunChild(Protocol):
    """Runs a sub-agent beneath a rollout."""

    def __call__(self, agent: "Agent", task: Task, index: int, *, parent: "Record") -> Awaitable[Trajectory]:
        """The child's trajectory, also noted on the parent."""
        ...


@define
class Services:
    """Permits, the sink, and where to report what outlived its rollout."""

    run_child: RunChild
    report: Callable[[str], None]
    sink: Sink | None = None
    starts: FairPermits = field(factory=FairPermits)
    generations: FairPermits = field(factory=FairPermits)
