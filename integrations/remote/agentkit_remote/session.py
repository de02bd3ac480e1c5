"""One client on the server: its requests, what they made, and the end of all of it.

A session lives as long as its client is heard of, and `orphan_s` longer. Whatever ends it, every request is cancelled
and everything that was made is closed.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import anyio
from attrs import define, field

from agentkit.errors import AgentkitError, SandboxDead, SandboxError
from agentkit.protocols.sandbox import SandboxBackend
from agentkit_remote.frames import Frame, Kind, WireError
from agentkit_remote.messages import Fields, error_to_json
from agentkit_remote.operations import FINAL, OPERATIONS, Asked
from agentkit_remote.peer import Peer
from agentkit_remote.policy import ServerPolicy
from agentkit_remote.streams import Inflow, Outflow

LOG = logging.getLogger("agentkit.sandbox.remote")
T = TypeVar("T")
END_S = 30.0


@define(eq=False)
class _Request:
    inflow: Inflow
    outflow: Outflow
    scope: anyio.CancelScope = field(factory=anyio.CancelScope)
    is_final: bool = False
    held_bytes: int = 0


@define(eq=False)
class _Held:
    """Something that is to be closed one day: a sandbox, snapshot or terminal."""

    kind: str
    thing: Any
    deadline: float | None = None
    timer: asyncio.TimerHandle | None = None
    closing: "asyncio.Task[None] | None" = None


class Places:
    """How many more sandboxes a server may have, of all clients together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    def take(self) -> None:
        """Take one.

        Raises:
            SandboxError: there is none; later there may be.
        """
        if self.taken >= self.most:
            raise SandboxError(f"this server has its {self.most} sandboxes already", retryable=True)
        self.taken += 1

    def give_back(self) -> None:
        """One is free again."""
        self.taken -= 1


class Session:
    """What one client process has on this server. `on_end` is called once, when nothing is left of it."""

    def __init__(
        self,
        name: str,
        backend: SandboxBackend,
        policy: ServerPolicy,
        places: Places,
        on_end: Callable[["Session"], None],
    ) -> None:
        self.name = name
        self.backend = backend
        self.policy = policy
        self.peer = Peer(self._on_frame)
        self.transfers = asyncio.Semaphore(policy.max_transfers)
        self._places = places
        self._on_end = on_end
        self._requests: dict[int, _Request] = {}
        self._held: dict[int, _Held] = {}
        self._last = 0
        self._held_bytes = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._orphaning: asyncio.TimerHandle | None = None
        self._attaching = asyncio.Lock()
        self._talking: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.is_ended = False

    # Connections

    async def attach(self, talk: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Take `talk` as the connection of this session, in place of the one there was, until it ends.

        Raises:
            WireError: the client does not keep to the protocol; its session has ended.
        Cancellation: the connection ends, the session waits for another.
        """
        async with self._attaching:
            if self._talking is not None:
                self._talking.cancel()
                await asyncio.gather(self._talking, return_exceptions=True)
            if self._orphaning is not None:
                self._orphaning.cancel()
            talking = self._talking = asyncio.ensure_future(talk())
        try:
            await asyncio.shield(talking)
        except asyncio.CancelledError:
            if not talking.cancelled():  # it is this task that was cancelled, by the end of the server say
                talking.cancel()
                await asyncio.gather(talking, return_exceptions=True)
                raise
        except WireError as error:
            LOG.warning("session %s broke the protocol and was ended: %s", self.name[:8], error)
            await self.close()
            raise
        finally:
            if self._talking is talking:
                self._talking = None
                self._wait_for_another()

    def _wait_for_another(self) -> None:
        if self._ending is not None:
            self._spawn(self.close())
            return
        left_s = self.policy.orphan_s - (time.monotonic() - self.peer.last_heard)
        self._orphaning = asyncio.get_running_loop().call_later(max(0.0, left_s), self._orphan)

    def _orphan(self) -> None:
        if self._held or self._requests:
            LOG.warning(
                "session %s was not heard of for %s s: %d closed", self.name[:8], self.policy.orphan_s, len(self._held)
            )
        self._spawn(self.close())

    # Requests

    def _on_frame(self, frame: Frame) -> None:
        number = frame.request
        if frame.kind is Kind.OPEN:
            self._open(number, Fields(frame.body or {}))
            return
        if frame.kind is Kind.RESULT or number > self._last:
            raise WireError(f"{frame.kind.name} of request {number}, which is not under way")
        request = self._requests.get(number)
        if request is None:
            if frame.kind is Kind.CANCEL and number in self._held:  # made, but nobody wants it any more
                self._spawn(self.let_go(number))
        elif frame.kind is Kind.CREDIT:
            request.outflow.credit(frame.number)
        elif frame.kind is Kind.CANCEL:
            if not request.is_final:
                request.outflow.close()
                request.scope.cancel()
        else:
            request.inflow.feed(frame.data or None)

    def _open(self, number: int, fields: Fields) -> None:
        if number <= self._last:
            raise WireError(f"request {number} after request {self._last}")
        self._last = number
        send = self.peer.send
        inflow = Inflow(lambda count: send(Frame(Kind.CREDIT, number, number=count)))
        request = _Request(inflow, Outflow(lambda data: self.peer.send_data(number, data)))
        if len(self._requests) >= self.policy.max_requests:
            error = SandboxError(f"more than {self.policy.max_requests} requests at a time", retryable=True)
            send(Frame(Kind.RESULT, number, body={"error": error_to_json(error)}))
            return
        self._requests[number] = request
        self._spawn(self._serve(number, request, fields))

    async def _serve(self, number: int, request: _Request, fields: Fields) -> None:
        answer: dict[str, Any] = {}
        try:
            operation = fields.text("op")
            if operation not in OPERATIONS:
                raise WireError(f"op must be one of {', '.join(OPERATIONS)}, found {operation!r:.80}")
            if self._ending is not None and operation not in FINAL:
                raise SandboxDead("the session has ended")
            request.is_final = operation in FINAL

            def finish() -> None:
                self.peer.send(Frame(Kind.END, number))

            def reserve(count: int) -> None:
                request.held_bytes += count
                self._held_bytes += count
                if self._held_bytes > self.policy.memory_limit_bytes:
                    most = self.policy.memory_limit_bytes
                    raise SandboxError(f"commands and outputs of more than {most} bytes at a time", retryable=True)

            asked = Asked(number, fields, self, request.inflow, request.outflow, finish, reserve)
            with request.scope:
                answer = {"ok": await OPERATIONS[operation](asked)}
            if request.scope.cancelled_caught:
                raise (
                    SandboxError("cancelled") if self._ending is None else SandboxDead("the server closed this sandbox")
                )
        except AgentkitError as error:
            answer = {"error": error_to_json(error)}
        except Exception as error:  # a back end's bug is one request's failure, not the server's
            LOG.exception("session %s: a request failed", self.name[:8])
            answer = {"error": error_to_json(SandboxError(f"the server failed: {type(error).__name__}"))}
        finally:
            del self._requests[number]
            self._held_bytes -= request.held_bytes
            request.inflow.close()
            request.outflow.close()
            self.peer.send(Frame(Kind.RESULT, number, body=answer))
        if request.scope.cancel_called and number in self._held:
            await self.let_go(number)

    # What was made

    async def make(self, request: int, kind: str, making: Awaitable[T], *, lifetime_s: float | None = None) -> T:
        """What `making` gives, held from now on.

        Raises:
            SandboxError: there is no place for another sandbox.
        Cancellation: as that of `making`.
        """
        if kind == "sandbox":
            try:
                self._places.take()
            except SandboxError:
                if isinstance(making, Coroutine):
                    making.close()
                raise
        began = time.monotonic()
        try:
            thing = await making
        except BaseException:
            if kind == "sandbox":
                self._places.give_back()
            raise
        held = self._held[request] = _Held(kind, thing)
        if lifetime_s is not None:
            held.deadline = began + lifetime_s
            left_s = max(0.0, held.deadline - time.monotonic())
            held.timer = asyncio.get_running_loop().call_later(
                min(left_s, 1e6), lambda: self._spawn(self.let_go(request))
            )
        return thing

    def held(self, number: int, kind: str) -> Any:
        """The `sandbox`, `snapshot` or `terminal` that request `number` made.

        Raises:
            SandboxDead: there is none, or no more.
        """
        held = self._held.get(number)
        if held is None or held.kind != kind or held.closing is not None:
            raise SandboxDead(f"{kind} {number} is gone")
        return held.thing

    def lifetime_of(self, number: int) -> float | None:
        """Seconds that are left to what request `number` made, or None."""
        deadline = self._held[number].deadline
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    async def let_go(self, number: int) -> None:
        """Close what request `number` made; safe to call twice.

        Cancellation: it is closed all the same.
        """
        held = self._held.get(number)
        if held is None:
            return
        if held.closing is None:
            held.closing = asyncio.ensure_future(self._let_go(number, held))
        await asyncio.shield(held.closing)

    async def _let_go(self, number: int, held: _Held) -> None:
        if held.timer is not None:
            held.timer.cancel()
        try:
            await held.thing.close()
        except Exception:
            LOG.exception("session %s: %s %d could not be closed", self.name[:8], held.kind, number)
        finally:
            del self._held[number]
            if held.kind == "sandbox":
                self._places.give_back()

    # The end

    @property
    def is_ending(self) -> bool:
        """Whether it is too late to come back to it."""
        return self.is_ended or self._ending is not None

    async def end(self) -> None:
        """Close everything but the connection.

        Cancellation: it is closed all the same.
        """
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end())
        await asyncio.shield(self._ending)

    async def close(self) -> None:
        """Close everything and the connection; safe to call twice.

        Cancellation: it is closed all the same.
        """
        await self.end()
        if self._talking is not None:
            self._talking.cancel()
        self._finish()

    async def _end(self) -> None:
        for request in self._requests.values():
            if not request.is_final:
                request.outflow.close()
                request.scope.cancel()
        deadline = time.monotonic() + END_S
        while self._held or not all(request.is_final for request in self._requests.values()):
            if self._held:
                await asyncio.wait([asyncio.ensure_future(self.let_go(number)) for number in self._held], timeout=1.0)
            await asyncio.sleep(0.002)
            if time.monotonic() > deadline:
                LOG.error("session %s: %d not closed within %s s", self.name[:8], len(self._held), END_S)
                return

    def _finish(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            if self._orphaning is not None:
                self._orphaning.cancel()
            self._on_end(self)

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
