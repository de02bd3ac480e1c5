"""What is said to a SWE-ReX server, without SWE-ReX's own client.

That client has no time limit of its own choosing, and it raises whatever the server names: a server that a sandboxed
command has replaced could make it import and call anything (`os.system`, say) in this process. Here an answer is data:
of limited size, read within a limited time, never followed elsewhere.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

from attrs import frozen

from agentkit.errors import SandboxError
from agentkit.extras import require

EXTRA_S = 2.0
"""How much later than the server's own time limit ours is."""
ANSWER_LIMIT = 64 << 20


class Unreachable(SandboxError):
    """The server could not be reached, or broke off: the same request may be answered later."""


class ServerTimeout(SandboxError):
    """The server gave a command up at its time limit."""


@frozen
class Executed:
    """How a command of the server ended. `output` is text: the server has replaced bytes that are no UTF-8."""

    exit_code: int
    output: str


class Rex:
    """One server. Owns a connection pool; close it."""

    def __init__(self, url: str, token: str, *, headers: Mapping[str, str] | None = None) -> None:
        self.url = url.rstrip("/") if "://" in url else f"http://{url.rstrip('/')}"
        self._token = token
        self._aiohttp = require("aiohttp", extra="swerex", purpose="a SWE-ReX server")
        sent = {"X-API-Key": token, "Accept-Encoding": "identity", **(headers or {})}
        self._session = self._aiohttp.ClientSession(
            connector=self._aiohttp.TCPConnector(limit=4),
            headers={name: value for name, value in sent.items() if value},
            auto_decompress=False,
            trust_env=False,
        )

    async def is_alive(self, *, timeout_s: float) -> bool:
        """Whether the server answers, within `timeout_s` seconds. One that a command blocks does not.

        Raises:
            SandboxError: it answers, and refuses our token.
        Cancellation: the request is dropped.
        """
        try:
            answer = await self._ask("GET", "is_alive", None, timeout_s)
        except Unreachable:
            return False
        return answer.get("is_alive") is True

    async def execute(self, argv: Sequence[str], *, timeout_s: float) -> Executed:
        """Run `argv`, stdout and stderr in one, at most `timeout_s` seconds; the server does nothing else meanwhile.

        Raises:
            ServerTimeout: it took longer.
            Unreachable: there was no answer.
            SandboxError: the server refused.
        Cancellation: the request is dropped, what it started goes on to its time limit.
        """
        body = {"command": list(argv), "timeout": timeout_s, "shell": False, "check": False}
        body |= {"merge_output_streams": True}
        answer = await self._ask("POST", "execute", body, timeout_s + EXTRA_S)
        code, output = answer.get("exit_code"), answer.get("stdout")
        if not isinstance(code, int) or not isinstance(output, str):
            raise SandboxError(f"the SWE-ReX server at {self.url} gave no exit code")
        return Executed(code, output)

    async def write_file(self, path: str, content: str, *, timeout_s: float) -> None:
        """Write a text file, with the directories above it. Raises and cancels as `execute`."""
        await self._ask("POST", "write_file", {"path": path, "content": content}, timeout_s)

    async def close(self) -> None:
        """Close the connections. Cancellation: they are closed."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, method: str, endpoint: str, body: object, timeout_s: float) -> dict[str, Any]:
        aiohttp = self._aiohttp
        try:
            async with self._session.request(
                method,
                f"{self.url}/{endpoint}",
                json=body,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as response:
                status: int = response.status
                data = bytearray()
                async for piece in response.content.iter_chunked(1 << 18):
                    data += piece
                    if len(data) > ANSWER_LIMIT:
                        raise SandboxError(
                            f"the SWE-ReX server at {self.url} answers with more than {ANSWER_LIMIT} bytes"
                        )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"no answer from the SWE-ReX server at {self.url}: {self.plain(error)}") from None
        return self._read(endpoint, status, bytes(data))

    def _read(self, endpoint: str, status: int, data: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        if status == 200 and isinstance(answer, dict):
            return answer
        if status == 511 and isinstance(answer, dict) and isinstance(answer.get("swerexception"), dict):
            told = answer["swerexception"]
            kind = str(told.get("class_path", "")).rpartition(".")[2]
            if kind == "CommandTimeoutError":
                raise ServerTimeout(f"{endpoint} took longer than its time limit")
            raise SandboxError(f"the SWE-ReX server refused {endpoint}: {kind}: {self.plain(told.get('message'))}")
        if status in (401, 403):
            raise SandboxError(f"the SWE-ReX server at {self.url} does not take our token")
        if status in (502, 503, 504):  # whatever stands between
            raise Unreachable(f"no answer from the SWE-ReX server at {self.url}: status {status}")
        raise SandboxError(f"the SWE-ReX server at {self.url} answered {endpoint} with status {status}, and no result")

    def plain(self, text: object) -> str:
        """`text` fit for a message: short, printable, without the token."""
        shown = str(text) or type(text).__name__
        if self._token:
            shown = shown.replace(self._token, "***")
        return "".join(letter if letter.isprintable() else " " for letter in shown[:500]).strip()
