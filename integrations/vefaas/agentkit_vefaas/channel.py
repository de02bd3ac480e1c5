"""Programs in a veFaaS sandbox: requests to the server inside, through the function's route."""

import contextlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import anyio
from attrs import field, frozen

from agentkit.errors import SandboxDead, SandboxError
from agentkit_vefaas.api import aiohttp_module

WAIT_S = 20.0
"""How long one request waits for output: less than what gateways allow."""
REQUEST_S = 60.0
PIECE_BYTES = 524_288
TROUBLE_S = 20.0
"""How long a request is repeated before the sandbox counts as not to be reached."""


@frozen(eq=False)
class GuestChannel:
    """Runs programs through the server in sandbox `instance`; every request of it can be repeated, and is."""

    session: Any
    route: str
    instance: str
    token: str = field(repr=False)
    state: Callable[[], Awaitable[str | None]]
    """Why the sandbox does not run, or None."""

    async def exec(
        self,
        argv: Sequence[str],
        /,
        *,
        stdin: Iterable[bytes],
        on_output: Callable[[bytes], None],
        timeout_s: float | None,
    ) -> None:
        """As `ExecChannel.exec`; `timeout_s` is left to the program."""
        name = secrets.token_hex(12)
        await self._ask("start", {"id": name}, json.dumps(list(argv)).encode())
        failed: Exception | None = None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._feed, name, stdin)
                failed = await self._read(name, on_output)
                group.cancel_scope.cancel()
            if failed is not None:
                raise failed
        finally:
            with anyio.move_on_after(1.0, shield=True):
                with contextlib.suppress(SandboxError):
                    await self._ask("forget", {"id": name}, trouble_s=1.0)

    async def alive(self) -> bool:
        """Whether the server answers now."""
        try:
            return await self._once("alive", {}, b"") is not None
        except SandboxError:
            return False

    async def _feed(self, name: str, stdin: Iterable[bytes]) -> None:
        offset = 0
        try:
            for piece, last in _gathered(stdin):
                await self._ask("give", {"id": name, "offset": str(offset), "last": "1" if last else "0"}, piece)
                offset += len(piece)
        except SandboxError:
            pass  # the reader hears of it as well

    async def _read(self, name: str, on_output: Callable[[bytes], None]) -> Exception | None:
        """Read to the end; an error is returned, for it to be raised outside of the group."""
        offset = 0
        try:
            while True:
                body, done = await self._ask("take", {"id": name, "offset": str(offset), "wait": str(WAIT_S)})
                offset += len(body)
                if body:
                    on_output(body)
                if done:
                    return None
        except Exception as error:
            return error

    async def _ask(
        self, operation: str, query: Mapping[str, str], body: bytes = b"", *, trouble_s: float = TROUBLE_S
    ) -> tuple[bytes, bool]:
        until, wait_s = time.monotonic() + trouble_s, 0.1
        while True:
            try:
                return await self._once(operation, query, body)
            except SandboxError as error:
                if not error.retryable or time.monotonic() + wait_s > until:
                    raise
                await self._check()
            await anyio.sleep(wait_s)
            wait_s = min(2.0, 2 * wait_s)

    async def _check(self) -> None:
        try:
            why = await self.state()
        except SandboxError:
            return  # not to be reached either: the request is tried again
        if why is not None:
            raise SandboxDead(f"the sandbox {why}")

    async def _once(self, operation: str, query: Mapping[str, str], body: bytes) -> tuple[bytes, bool]:
        if self.session.closed:
            raise SandboxDead("the sandbox is closed")
        aiohttp = aiohttp_module()
        headers = {"X-Faas-Instance-Name": self.instance, "X-Agentkit-Token": self.token}
        limit = aiohttp.ClientTimeout(total=REQUEST_S)
        try:
            async with self.session.post(
                f"{self.route}/{operation}",
                params=query,
                data=body,
                headers=headers,
                timeout=limit,
                allow_redirects=False,
            ) as response:
                status, done = response.status, response.headers.get("X-Agentkit-Done")
                text = await response.content.read(2 * 2**20) if status == 200 else b""
                while status == 200 and (more := await response.content.read(2 * 2**20)):
                    text += more
                    if len(text) > 4 * 2**20:
                        raise SandboxError("the server in the sandbox sent more than it may")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise SandboxError(
                f"{operation}: the sandbox cannot be reached: {type(error).__name__}", retryable=True
            ) from error
        if status == 200 and done is not None:
            return text, done == "1"
        if status in (403, 404, 422) and done is not None:  # the server inside, not the gateway
            if status == 404:
                raise SandboxDead(f"{operation}: the sandbox was started anew and knows nothing of the program")
            raise SandboxError(f"{operation}: the server in the sandbox answered {status}")
        raise SandboxError(f"{operation}: the gateway answered {status}", retryable=True)


def _gathered(stdin: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """The input in pieces of about `PIECE_BYTES`, each with whether it is the last."""
    held = bytearray()
    for piece in stdin:
        held += piece
        while len(held) >= PIECE_BYTES:
            yield bytes(held[:PIECE_BYTES]), False
            del held[:PIECE_BYTES]
    yield bytes(held), True
