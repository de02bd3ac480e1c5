"""A handle on a running rollout."""

from collections.abc import AsyncIterator

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from agentkit.actors._record import Record
from agentkit.actors._services import Services
from agentkit.actors._supervisor import Supervisor
from agentkit.actors.agent import Agent
from agentkit.actors.events import Broadcast, Event, Letter, Mailbox, Reply
from agentkit.errors import AgentkitError, InvariantError
from agentkit.protocols import Action, Message, RolloutKey, Task, Trajectory, as_message


class Actor:
    """One rollout as an actor: a mailbox, a stream of events, and a result.

    Made by `Pool.start`. It runs in the pool's task group, so nothing about the handle has to be awaited or closed.
    """

    def __init__(
        self,
        services: Services,
        agent: Agent,
        task: Task,
        index: int,
        *,
        parent: Record | None = None,
        first_attempt: int = 0,
        replaces: int | None = None,
    ) -> None:
        self.key = RolloutKey(task.id, index, first_attempt)
        self._mailbox = Mailbox()
        self._broadcast = Broadcast()
        self._supervisor = Supervisor(
            services,
            agent,
            task,
            index,
            mailbox=self._mailbox,
            broadcast=self._broadcast,
            parent=parent,
            first_attempt=first_attempt,
            replaces=replaces,
        )
        self._scope = anyio.CancelScope()
        self._done = anyio.Event()
        self._trajectory: Trajectory | None = None
        self._error: BaseException | None = None

    async def run(self) -> Trajectory:
        """Run to the end; called once, by whoever owns the task group.

        Cancellation: see `Supervisor.run`.
        """
        try:
            with self._scope:
                self._trajectory = await self._supervisor.run()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._mailbox.abandon()
            self._broadcast.close()
            self._done.set()
        if self._trajectory is None:
            raise InvariantError(f"rollout {self.key} ended without a trajectory")
        return self._trajectory

    def tell(self, message: Message | str) -> None:
        """Say something to the policy before its next turn, without waiting.

        Raises:
            RolloutEnded: the rollout takes no more messages.
        """
        self._mailbox.put(Letter(as_message(message)))

    async def ask(self, message: Message | str) -> Action:
        """Say something and wait for the policy's answer: its next action without a call.

        Raises:
            RolloutEnded: the rollout ended before it answered.
        Cancellation: the message stays told.
        """
        reply = Reply()
        self._mailbox.put(Letter(as_message(message), reply))
        return await reply.wait()

    def hang_up(self) -> None:
        """Close the mailbox: a chat ends as `finished` once it has read what was told."""
        self._mailbox.close()

    def interrupt(self) -> None:
        """Cut short the generation or the call under way; what was sampled stays. The loop then reads the mailbox."""
        if self._supervisor.rollout is not None:
            self._supervisor.rollout.interrupt()

    def cancel(self) -> None:
        """End the rollout as `cancelled`: it is sealed and its env closed."""
        self._scope.cancel()

    def events(self) -> AsyncIterator[Event]:
        """The events from now on, the last one being `Ended`; iterate it to the end, or `aclose` it."""
        return _listen(self._broadcast.watch())

    @property
    def done(self) -> bool:
        """Whether the trajectory is sealed."""
        return self._done.is_set()

    async def settled(self) -> None:
        """Wait for the end, however it comes."""
        await self._done.wait()

    async def result(self) -> Trajectory:
        """The sealed trajectory.

        Raises:
            AgentkitError: no trajectory could be sealed, because the sink failed.
        Cancellation: only the waiting ends; the rollout goes on.
        """
        await self._done.wait()
        if self._trajectory is None:
            raise AgentkitError(f"rollout {self.key} could not be sealed") from self._error
        return self._trajectory


async def _listen(stream: MemoryObjectReceiveStream[Event]) -> AsyncIterator[Event]:
    with stream:
        async for event in stream:
            yield event
