"""What a rollout tells those who watch it, and the mailbox it listens to."""

import math
from collections import deque
from typing import TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from attrs import frozen

from agentkit.errors import RolloutEnded
from agentkit.protocols import Action, Message, Observation, Trajectory


@frozen
class Sampled:
    """The policy has answered: turn `turn` has its action."""

    turn: int
    action: Action


@frozen
class Observed:
    """What the action of turn `turn` caused."""

    turn: int
    observations: tuple[Observation, ...]


@frozen
class Answered:
    """The policy ended its say in a chat, without a call: the rollout waits for the next user message."""

    turn: int
    action: Action


@frozen
class Ended:
    """The rollout is sealed."""

    trajectory: Trajectory


Event: TypeAlias = Sampled | Observed | Answered | Ended


class Broadcast:
    """Events to any number of watchers, none of which can hold the rollout back; costs nothing without one."""

    def __init__(self) -> None:
        self._watchers: list[MemoryObjectSendStream[Event]] = []
        self._closed = False

    def watch(self) -> MemoryObjectReceiveStream[Event]:
        """A stream of the events from now on; it ends after `Ended`."""
        send, receive = anyio.create_memory_object_stream[Event](math.inf)
        if self._closed:
            send.close()
        else:
            self._watchers.append(send)
        return receive

    def __bool__(self) -> bool:
        return bool(self._watchers)

    def publish(self, event: Event) -> None:
        """Tell every watcher that still listens."""
        for watcher in list(self._watchers):
            try:
                watcher.send_nowait(event)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                self._watchers.remove(watcher)
                watcher.close()

    def close(self) -> None:
        """End every watcher's stream."""
        self._closed = True
        for watcher in self._watchers:
            watcher.close()
        self._watchers.clear()


class Reply:
    """What an `ask` waits for."""

    def __init__(self) -> None:
        self._done = anyio.Event()
        self._action: Action | None = None

    def resolve(self, action: Action | None) -> None:
        """Give the answer, or None where the rollout ended without one."""
        self._action = action
        self._done.set()

    async def wait(self) -> Action:
        """The answer.

        Raises:
            RolloutEnded: the rollout ended without answering.
        Cancellation: the question stays asked.
        """
        await self._done.wait()
        if self._action is None:
            raise RolloutEnded("the rollout ended before it answered")
        return self._action


@frozen
class Letter:
    """A message in the mailbox, and who waits for the answer."""

    message: Message
    reply: Reply | None = None


class Mailbox:
    """Letters to one rollout, in order. Unbounded: telling never waits."""

    def __init__(self) -> None:
        self._letters: deque[Letter] = deque()
        self._arrived = anyio.Event()
        self._closed = False
        self._asked: deque[Reply] = deque()

    def put(self, letter: Letter) -> None:
        """Add a letter.

        Raises:
            RolloutEnded: the mailbox is closed.
        """
        if self._closed:
            raise RolloutEnded("the rollout takes no more messages: it has ended or its mailbox was closed")
        self._letters.append(letter)
        self._arrived.set()

    def take(self) -> list[Message]:
        """All letters that have arrived, without waiting."""
        messages = []
        while self._letters:
            letter = self._letters.popleft()
            if letter.reply is not None:
                self._asked.append(letter.reply)
            messages.append(letter.message)
        return messages

    async def receive(self) -> list[Message]:
        """All letters, waiting for the first; empty once the mailbox is closed and read.

        Cancellation: no letter is lost.
        """
        while not self._letters and not self._closed:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        return self.take()

    def answer(self, action: Action) -> None:
        """Answer everybody whose question has been taken."""
        while self._asked:
            self._asked.popleft().resolve(action)

    def close(self) -> None:
        """Take no more letters; what has arrived can still be read."""
        self._closed = True
        self._arrived.set()

    def abandon(self) -> None:
        """The rollout has ended: nobody will answer any more."""
        self.close()
        self.take()
        while self._asked:
            self._asked.popleft().resolve(None)
