"""The back end whose sandboxes are another machine's."""

import asyncio
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from anyio.lowlevel import RunVar

from agentkit.errors import ConfigError, MissingExtraError, SandboxError
from agentkit.extras import require
from agentkit.protocols.sandbox_spec import Capabilities, SandboxSpec
from agentkit.sandbox.collect import collect
from agentkit.sandbox.leaks import owner
from agentkit.sandbox.registry import Entry, Registry
from agentkit_remote.auth import TOKEN_VARIABLE, is_loopback, token_of
from agentkit_remote.link import LOG, Address, Link
from agentkit_remote.messages import Fields, argv_to_json, spec_to_json
from agentkit_remote.sandbox import RemoteSandbox, RemoteSnapshot, RemoteTerminal

REMOVE_S = 30.0
_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
_HOPED = Capabilities(
    isolated=True,
    image=True,
    rootfs=True,
    read_only=True,
    networks=frozenset({"none", "host", "allow"}),
    limits=frozenset({"cpus", "memory_bytes", "processes", "disk_bytes"}),
    snapshots=True,
    terminal=True,
    lifetime=True,
)


class RemoteBackend:
    """Sandboxes of the server at `url`, which `agentkit sandbox serve` or `SandboxServer` runs.

    One connection serves all of them, from the first start until the last is closed; `async with` keeps it in between.
    The token is `token`, the first one in `token_file`, or that of $AGENTKIT_SANDBOX_TOKEN. `tls_ca` is the PEM file of
    the only authority to trust. A start fails, for now, when the server does not answer within `connect_s`.
    A broken connection is made again for up to `reconnect_s`, and commands go on meanwhile.

    Raises:
        ConfigError: an argument cannot work; the message names it, and shows no token.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        token_file: Path | str | None = None,
        tls_ca: Path | str | None = None,
        connect_s: float = 10.0,
        reconnect_s: float = 60.0,
    ) -> None:
        self._token_file = None if token_file is None else Path(token_file)
        authority = None if tls_ca is None else Path(tls_ca)
        self._address = Address(url=_checked(url), token=token_of(token, token_file), tls_ca=authority)
        for name, value in (("connect_s", connect_s), ("reconnect_s", reconnect_s)):
            if not value > 0:
                raise ConfigError(f"{name} must be greater than 0, found {value!r}")
        self._connect_s = connect_s
        self._reconnect_s = reconnect_s
        self._links: RunVar[Link | None] = RunVar(f"sandbox links {id(self)}", None)
        self._entries: dict[str, Entry] = {}
        self._kept: list[Link] = []
        self._capabilities: Capabilities | None = None
        self._has_collected = False
        parts = urlsplit(self._address.url)
        if self._address.token and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            LOG.warning("the token goes to %s unencrypted: use https, or a tunnel", self._address.url)

    def __repr__(self) -> str:
        return f"RemoteBackend({self._address.url!r})"

    @property
    def capabilities(self) -> Capabilities:
        """What the server's sandboxes can do; before the first start everything, which the server then checks."""
        return self._capabilities or _HOPED

    def available(self) -> str | None:
        """Why no sandbox can be started, or None. Blocks: it connects. Whether the token is right shows at a start."""
        try:
            require("aiohttp", extra="remote", purpose="using the sandboxes of another machine")
        except MissingExtraError as error:
            return str(error)
        parts = urlsplit(self._address.url)
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
            with socket.create_connection((parts.hostname or "", port), timeout=self._connect_s):
                return None
        except OSError as error:
            return f"{self._address.url} cannot be reached: {error}"

    async def __aenter__(self) -> Self:
        self._kept.append(self._hold())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        link = self._kept.pop()
        await link.surely(self._release(link))

    async def start(self, spec: SandboxSpec, /) -> RemoteSandbox:
        """A started sandbox.

        Raises:
            ConfigError: the server cannot give what `spec` asks for, or does not know the token.
            SandboxError: it could not be started; `retryable` where the server is not reachable or full for now.
        Cancellation: nothing is left behind.
        """
        self.capabilities.check(spec, "remote")
        if not self._has_collected:
            self._has_collected = True
            await collect(types=("remote",))
        link = self._hold()
        try:
            await self._meet(link)
            self.capabilities.check(spec, "remote")
            asked = {"spec": spec_to_json(spec), "snapshot": _snapshot_of(spec, link)}
            return await self._make(link, "start", spec, asked)
        except BaseException:
            await link.surely(self._release(link))
            raise

    async def _meet(self, link: Link) -> None:
        await link.connected()
        self._capabilities = link.capabilities
        entry = self._entries.get(link.session)
        if entry is not None and "orphan_s" not in entry.data:
            self._entries[link.session] = Registry().update(entry, orphan_s=f"{link.orphan_s:.0f}")

    async def _make(self, link: Link, operation: str, spec: SandboxSpec, arguments: Mapping[str, Any]) -> RemoteSandbox:
        async with link.call(operation, **arguments) as call:
            about = await link.result(call)
            kind = _KINDS[about.flag("snapshots"), about.flag("terminal")]
            return kind(self, link, call.number, about, spec)

    def _hold(self) -> Link:
        """The connection of this event loop, with one more user."""
        link = self._links.get()
        if link is not None and link.fault is not None:
            link = None
        if link is None:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                raise ConfigError(
                    "agentkit_remote works on aiohttp, which runs on asyncio: anyio.run(main, backend='asyncio')"
                ) from None
            link = Link(self._address, connect_s=self._connect_s, reconnect_s=self._reconnect_s)
            self._links.set(link)
            self._entries[link.session] = Registry().add("remote", f"{owner()}-{link.session}", data=self._data(link))
        link.users += 1
        return link

    def _data(self, link: Link) -> Mapping[str, str]:
        data = {"url": self._address.url, "session": link.session}
        files = {"token_file": self._token_file, "tls_ca": self._address.tls_ca}
        return data | {name: str(path.absolute()) for name, path in files.items() if path is not None}

    async def _release(self, link: Link) -> None:
        link.users -= 1
        if link.users:
            return
        if self._links.get() is link:
            self._links.set(None)
        gone = link.fault is not None or await link.close()
        entry = self._entries.pop(link.session, None)
        if entry is not None and gone:
            Registry().forget(entry)

    @classmethod
    async def remove(cls, entry: Entry) -> None:
        """Have the server close what a client that has ended left there.

        Raises:
            SandboxError: the server cannot be reached, or does not know the token.
        Cancellation: it may be closed or not.
        """
        aiohttp = require("aiohttp", extra="remote", purpose="removing the sandboxes of another machine")
        files = {name: Path(entry.data[name]) for name in ("token_file", "tls_ca") if name in entry.data}
        try:
            address = Address(
                url=_checked(entry.data["url"]),
                token=token_of(None, files.get("token_file")),
                tls_ca=files.get("tls_ca"),
            )
            place = f"{address.url}/v1/sessions/{entry.data['session']}"
            async with (
                aiohttp.ClientSession(
                    headers=address.headers,
                    timeout=aiohttp.ClientTimeout(total=REMOVE_S, connect=5.0),
                    connector=aiohttp.TCPConnector(ssl=address.tls()),
                ) as http,
                http.delete(place, allow_redirects=False) as answer,
            ):
                status: int = answer.status
        except KeyError as error:
            raise SandboxError(f"the entry {entry.name} has no {error}") from error
        except ConfigError as error:
            raise SandboxError(str(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if _is_over(entry):
                return
            raise SandboxError(
                f"{entry.data['url']} cannot be reached ({type(error).__name__}); it closes them by itself",
                retryable=True,
            ) from error
        if status in (401, 403):
            raise SandboxError(f"{entry.data['url']} does not know the token: set {TOKEN_VARIABLE}")
        if status not in (204, 404):
            raise SandboxError(f"{entry.data['url']} answered with status {status}", retryable=True)


class _Plain(RemoteSandbox):
    def __init__(self, backend: RemoteBackend, link: Link, number: int, about: Fields, spec: SandboxSpec) -> None:
        super().__init__(link, number, about, spec, lambda: backend._release(link))
        self._backend = backend


class _Keeping:
    """`Snapshots`, for sandboxes that have them."""

    async def snapshot(self: Any) -> RemoteSnapshot:
        """As `Snapshots.snapshot`."""
        self._check()
        backend, link = self._backend, self._link
        async with link.call("snapshot", sandbox=self._number) as call:
            about = await link.result(call)
            link.users += 1
            return RemoteSnapshot(link, call.number, about, lambda: backend._release(link))

    async def fork(self: Any) -> RemoteSandbox:
        """As `Snapshots.fork`."""
        self._check()
        made: RemoteSandbox = await self._backend._make(self._link, "fork", self.spec, {"sandbox": self._number})
        self._link.users += 1
        return made


class _Typing:
    """`Interactive`, for sandboxes that are."""

    async def terminal(
        self: Any,
        argv: Sequence[str],
        /,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        rows: int = 24,
        columns: int = 80,
    ) -> RemoteTerminal:
        """As `Interactive.terminal`."""
        self._check()
        arguments = {"argv": argv_to_json(argv), "cwd": cwd, "env": dict(env or {}), "rows": rows, "columns": columns}
        link = self._link
        async with link.call("terminal", sandbox=self._number, **arguments) as call:
            await link.result(call)
            return RemoteTerminal(link, call.number)


class _KeepingSandbox(_Keeping, _Plain):
    pass


class _TypingSandbox(_Typing, _Plain):
    pass


class _FullSandbox(_Keeping, _Typing, _Plain):
    pass


_KINDS: Mapping[tuple[bool, bool], type[_Plain]] = {
    (False, False): _Plain,
    (True, False): _KeepingSandbox,
    (False, True): _TypingSandbox,
    (True, True): _FullSandbox,
}


def _is_over(entry: Entry) -> bool:
    """Whether a server that cannot be reached has closed by now, by its own rule, what the dead owner left there."""
    now = time.time()
    try:
        orphan_s, since = float(entry.data.get("orphan_s", "3600")), float(entry.data["unreachable_since"])
    except (KeyError, ValueError):
        Registry().update(entry, unreachable_since=f"{now:.0f}")
        return False
    return now - since > max(orphan_s, 60.0)


def _snapshot_of(spec: SandboxSpec, link: Link) -> int | None:
    if spec.snapshot is None:
        return None
    if not isinstance(spec.snapshot, RemoteSnapshot):
        raise ConfigError(f"snapshot must be one of this server's sandboxes, found {type(spec.snapshot).__name__}")
    if spec.snapshot.link is not link:
        raise SandboxError("the snapshot is gone: the connection on which it was made has ended")
    return spec.snapshot.number


def _checked(url: str) -> str:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None or not parts.hostname or port == -1 or parts.path.strip("/") or parts.query or parts.fragment:
        raise ConfigError(f"url must be http://host:port or https://host:port, found {url.rpartition('@')[2]!r}")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("url holds a user or password: give token_file instead")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{scheme}://{host}" + (f":{port}" if port is not None else "")
