"""Calls to verl's rollout servers that end when they are told to, and keep what was sampled until then.

verl's client has no way to end a request: cancelling `generate` leaves the server working on it. But every request
goes through the client's `_acquire_server`, which gives the server's actor handle. A copy of the client whose
`_acquire_server` wraps that handle sees each request with the id that the server knows it by, and the part of the
answer that each attempt brought: a request that a weight sync interrupts is sent again by verl's asynchronous client,
with what was sampled before it. So

- each part is recorded as it arrives, with the weights that sampled it;
- a request is ended by the server's own `abort_request`, which has `generate` return what was sampled (verl's vLLM
  server), or else by cancelling the actor's task, which every asynchronous Ray actor understands.

This is all of verl that is used beyond `generate`: `_acquire_server` and the keyword `request_id` of the server's
`generate`. A client without `_acquire_server` works as well, but its server goes on until `max_tokens` are sampled.
"""
# pyright: reportMissingImports=false
# Ray is not installed where pyright runs.

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from copy import copy
from typing import Any, Protocol

import anyio

from agentkit.errors import ModelError
from agentkit.extras import require

logger = logging.getLogger(__name__)

ABORTED = ("aborted", "abort")
_ANSWER_S = 2.0
"""For as long a server may take to hand over what it sampled of a request that it was told to abort."""


class Output(Protocol):
    """What is read of verl's `TokenOutput`."""

    token_ids: Any
    log_probs: Any
    stop_reason: str | None
    routed_experts: Any
    num_preempted: int | None
    extra_fields: dict[str, Any]


class Client(Protocol):
    """What is used of verl's `LLMServerClient`."""

    async def generate(self, request_id: str, **arguments: Any) -> Output:
        """Token ids in, token ids and log-probabilities out."""
        ...


class Stopped(Exception):
    """The call was told to end: no further attempt is made."""


class Call:
    """One generation: attempts, one after another, of which each brings a part."""

    def __init__(self, on_part: Callable[[Output], None], on_attempt: Callable[[int], None]) -> None:
        self._on_part = on_part
        self._on_attempt = on_attempt
        self._server: Any = None
        self._request_id: object = None
        self._reference: Any = None
        self._attempts = 0
        self.stopped = False
        self.settled = asyncio.Event()
        """No attempt is under way."""
        self.settled.set()

    def begin(self, server: Any, args: tuple[Any, ...], arguments: dict[str, Any]) -> Awaitable[Output]:
        """An attempt: what `server.generate.remote` is asked for."""
        if self.stopped:
            raise Stopped
        self._on_attempt(self._attempts)
        self._attempts += 1
        self._server, self._request_id = server, arguments.get("request_id")
        self._reference = server.generate.remote(*args, **arguments)
        self.settled.clear()
        return self._answer(self._reference)

    async def _answer(self, reference: Any) -> Output:
        try:
            output: Output = await reference
        finally:
            self._reference = None
            self.settled.set()
        self._on_part(output)
        return output

    def stop(self) -> None:
        """Have the server end the attempt under way, and begin no other. What was sampled comes as a last part."""
        self.stopped = True
        if self._reference is None:
            return
        abort = getattr(self._server, "abort_request", None)
        if abort is None or self._request_id is None:
            self.kill()
            return
        try:
            try:
                abort.remote(self._request_id, reset_prefix_cache=False)
            except TypeError:  # servers that know nothing of a cache to reset
                abort.remote(self._request_id)
        except Exception as error:  # its actor is gone, or Ray is: whoever stops this must get on
            logger.debug("aborting a request failed: %r", error)
            self.kill()

    def kill(self) -> None:
        """Cancel the server's task; nothing more comes of it."""
        self.stopped = True
        if self._reference is not None:
            cancel(self._reference)


def cancel(reference: Any) -> None:
    """Cancel the task behind an object reference of Ray."""
    ray = require("ray", extra="verl", purpose="ending a request")

    try:
        ray.cancel(reference)
    except Exception as error:  # it has ended, or its actor is gone
        logger.debug("cancelling a request failed: %r", error)


_current: ContextVar[Call | None] = ContextVar("agentkit_verl_call", default=None)


class _Watched:
    """A server's handle whose `generate` belongs to a call."""

    def __init__(self, server: Any, call: Call) -> None:
        self._server = server
        self._call = call

    @property
    def generate(self) -> "_Remote":
        return _Remote(self._server, self._call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)


class _Remote:
    def __init__(self, server: Any, call: Call) -> None:
        self._server = server
        self._call = call

    def remote(self, *args: Any, **arguments: Any) -> Awaitable[Output]:
        """As the handle's own."""
        return self._call.begin(self._server, args, arguments)


class Caller:
    """A client of verl whose calls can be stopped."""

    def __init__(self, client: Any) -> None:
        self._client: Client = self._watched(client)
        self._tasks: set[asyncio.Task[Output]] = set()

    def _watched(self, client: Any) -> Client:
        acquire = getattr(type(client), "_acquire_server", None)
        if acquire is None:
            logger.warning(
                "%s has no _acquire_server: a generation that is cut short goes on at its server until it has sampled "
                "max_tokens",
                type(client).__name__,
            )
            return client  # type: ignore[no-any-return]
        twin = copy(client)

        async def acquire_server(*args: Any, **arguments: Any) -> Any:
            server_id, server = await acquire(twin, *args, **arguments)
            call = _current.get()
            return server_id, server if call is None else _Watched(server, call)

        twin._acquire_server = acquire_server
        return twin  # type: ignore[no-any-return]

    async def run(self, call: Call, arguments: dict[str, Any], *, answer_s: float = _ANSWER_S) -> Output:
        """`generate(**arguments)` in a task of its own, its attempts told to `call`.

        Raises:
            ModelError: somebody else cancelled the request at the server.
        Cancellation: the server is told to abort, what it has sampled comes as a last part within `answer_s`, and then
            the cancellation goes on; a second native cancel does not wait for that.
        """

        async def generate() -> Output:
            _current.set(call)
            return await self._client.generate(**arguments)

        task = asyncio.create_task(generate(), name=f"generation {arguments.get('request_id')}")
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        try:
            await asyncio.wait((task,))
        except BaseException as error:
            call.stop()
            try:
                if isinstance(error, asyncio.CancelledError):
                    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + answer_s):
                        await call.settled.wait()
            finally:  # a second native cancel reaches the wait, too
                if not call.settled.is_set():
                    call.kill()
                    task.cancel()
                # Else it is between attempts, where a cancel would leave the load balancer with a request that nobody
                # releases: the next attempt is refused, and the task ends.
            raise
        if task.cancelled():
            raise ModelError("the request was cancelled at the server", retryable=True)
        return task.result()

    def _forget(self, task: "asyncio.Task[Output]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # now it counts as seen, also where whoever asked has left
