"""veFaaS's control plane: signed calls, and its errors as ours."""

import contextlib
import json
from collections.abc import Mapping
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from attrs import frozen

from agentkit.errors import ConfigError, SandboxDead, SandboxError
from agentkit.extras import require
from agentkit_vefaas.signing import Credentials, signed

VERSION = "2024-06-06"
CALL_S = 60.0
ANSWER_BYTES = 4 * 2**20
_REFUSED = ("accesskey", "signature", "accessdenied", "unauthorized", "forbidden", "securitytoken", "notauthorized")
_LATER = (
    "throttl",
    "flowlimit",
    "ratelimit",
    "toomany",
    "exceed",
    "quota",
    "internal",
    "unavailable",
    "timeout",
    "busy",
)


def aiohttp_module() -> ModuleType:
    """The `aiohttp` package.

    Raises:
        MissingExtraError: it is not installed.
    """
    return require("aiohttp", extra="vefaas", purpose="a veFaaS sandbox")


class UnknownSandbox(SandboxError):
    """There is no such sandbox (any more)."""


@frozen
class Control:
    """The calls that sandboxes need, of one function, over an `aiohttp.ClientSession`."""

    session: Any
    function_id: str
    endpoint: str
    region: str
    credentials: Credentials

    async def create(self, request: Mapping[str, Any]) -> str:
        """Create a sandbox; its id."""
        result = await self._call("CreateSandbox", request)
        sandbox_id = result.get("SandboxId")
        if not isinstance(sandbox_id, str) or not sandbox_id:
            raise SandboxError(f"veFaaS created a sandbox without an id: {sorted(result)}", retryable=True)
        return sandbox_id

    async def describe(self, sandbox_id: str) -> Mapping[str, Any]:
        """What veFaaS says of a sandbox.

        Raises:
            UnknownSandbox: it says nothing of it.
        """
        return await self._call("DescribeSandbox", {"SandboxId": sandbox_id})

    async def find(self, metadata: Mapping[str, str]) -> list[str]:
        """The ids of the sandboxes that carry `metadata`."""
        result = await self._call("ListSandboxes", {"Metadata": dict(metadata), "PageNumber": 1, "PageSize": 100})
        found = result.get("Sandboxes") or []
        return [
            str(one["Id"])
            for one in found
            if one.get("Id") and metadata.items() <= dict(one.get("Metadata") or {}).items()  # should it not filter
        ]

    async def kill(self, sandbox_id: str) -> None:
        """End a sandbox; nothing to do where there is none."""
        with contextlib.suppress(UnknownSandbox):
            await self._call("KillSandbox", {"SandboxId": sandbox_id})

    async def _call(self, action: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.session.closed:
            raise SandboxDead("the sandbox is closed")
        body = json.dumps({"FunctionId": self.function_id, **request}).encode()
        query = {"Action": action, "Version": VERSION}
        host = urlsplit(self.endpoint).netloc
        headers = signed(body, host=host, query=query, region=self.region, credentials=self.credentials)
        aiohttp = aiohttp_module()
        limit = aiohttp.ClientTimeout(total=CALL_S)
        try:
            async with self.session.post(
                f"{self.endpoint}/", params=query, data=body, headers=headers, timeout=limit, allow_redirects=False
            ) as response:
                status, text = response.status, await response.content.read(ANSWER_BYTES)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise SandboxError(f"{action}: veFaaS cannot be reached: {type(error).__name__}", retryable=True) from error
        return _result(action, status, text)


def _result(action: str, status: int, text: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(text)
        error = (answer.get("ResponseMetadata") or {}).get("Error") or {}
        result = answer.get("Result") or {}
        code, message = str(error.get("Code") or ""), str(error.get("Message") or "")
    except (ValueError, AttributeError):
        raise SandboxError(f"{action}: veFaaS answered {status} without JSON", retryable=status >= 500) from None
    if status < 400 and not code:
        if not isinstance(result, dict):
            raise SandboxError(f"{action}: expected a mapping as the result, found {type(result).__name__}")
        return result
    said = f"{action}: veFaaS answered {status} {code}: {message[:500]}"
    plain = code.lower().replace("_", "").replace(".", "")
    if "notfound" in plain or "notexist" in plain or status == 404:
        raise UnknownSandbox(said)
    if status in (401, 403) or any(word in plain for word in _REFUSED):
        raise ConfigError(f"{said}; check VOLCENGINE_ACCESS_KEY and VOLCENGINE_SECRET_KEY")
    raise SandboxError(said, retryable=status == 429 or status >= 500 or any(word in plain for word in _LATER))
