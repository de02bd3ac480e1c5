"""The inside of a sandbox behind a SWE-ReX server, as a place where programs are started.

The server does one thing at a time, cannot be interrupted and hands out what a command printed only when it has ended.
So no command of ours runs under it. A guest of ours runs beside it (`_guest`), and the server carries short exchanges
with that: what is to be started, read and killed on the way there, what was printed and has ended on the way back.
While a command runs an exchange waits for news, never longer than half a second, so that the next one comes soon.
"""

import asyncio
import base64
import binascii
import json
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from agentkit.errors import SandboxDead, SandboxError
from agentkit.sandbox.spawner import LocalPlace, Program, Spawned, StartFailed, boot_ticks
from agentkit_swerex.clock import Clock
from agentkit_swerex.far import PIECE, Far, Item
from agentkit_swerex.rex import Executed, Rex, ServerTimeout, Unreachable

LOG = logging.getLogger("agentkit.sandbox")
ROOM = 1 << 20
URGENT_ROOM = 1 << 16
GRACE_S = 3.0
SLOWEST = 200_000
"""Bytes per second that a way to a server must carry."""
LONGEST_S = 0.5
HEARTBEAT_S = 60.0
PATIENCE_S = 30.0
FRESH_S = 0.05
SAYING_S = 0.003
PACE_S = 0.02
"""The pause after a full answer: decoding them takes the event loop, which others need as well."""
ENOUGH = 1 << 18
_ASK = """
kill -0 "$3" 2>/dev/null || exit 9
printf '\\n%s\\n' "$2" > "$1/in" || exit 9
[ -p "$1/out.$4" ] || exit 9
exec cat "$1/out.$4"
"""


class Bridge(LocalPlace):
    """One guest. Runs a task of its own from `open` to `close`."""

    def __init__(
        self, rex: Rex, name: str, directory: str, pid: int, ended: Callable[[], Awaitable[str | None]]
    ) -> None:
        self.name = name
        self._rex = rex
        self._directory = directory
        self._pid = pid
        self._ended = ended
        self._clock = Clock()
        self._seq = 0
        self._number = 0
        self._fars: dict[int, Far] = {}
        self._items: list[Item] = []
        self._owed: dict[int, int] = {}
        self._held = 0
        self._flood = 0
        self._active: dict[int, float] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._wake = asyncio.Event()
        self._heard = 0.0
        self._news = time.monotonic()
        self._fresh = False
        self._leaving = False
        self._failure: str | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def failure(self) -> str | None:
        """Why nothing can be started any more, or None."""
        return self._failure

    def open(self) -> None:
        """Start exchanging."""
        self._task = asyncio.get_running_loop().create_task(self._serve(), name=f"swerex {self.name}")

    async def leave(self) -> None:
        """Ask the guest to end, with all it started. Cancellation: it may not have heard."""
        self._leaving = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Stop exchanging; programs are lost, the guest is not asked to end. Cancellation: stopped all the same."""
        self._fail("it is closed")
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @contextmanager
    def active(self, deadline: float) -> Iterator[None]:
        """While this is open news are waited for. At `deadline`, a time of the event loop, who waits wants to act."""
        key = max(self._active, default=0) + 1
        self._active[key] = deadline
        self._fresh = True
        self._wake.set()
        try:
            yield
        finally:
            del self._active[key]

    async def refresh(self) -> None:
        """Hear from the guest, unless one just has.

        Raises:
            SandboxDead: there is no guest any more.
        Cancellation: nothing happens.
        """
        if self._failure is None and time.monotonic() - self._heard > FRESH_S:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            self._wake.set()
            await waiting
        self.check()

    def check(self) -> None:
        """Raise `SandboxDead` where the guest is gone."""
        if self._failure is not None:
            raise SandboxDead(f"sandbox {self.name} is gone: {self._failure}")

    async def spawn(self, program: Program, fds: Mapping[int, int]) -> Spawned:
        """As `Place.spawn`."""
        self.check()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        theirs.setblocking(False)
        self._number += 1
        far = Far(
            self._number,
            theirs,
            fds,
            tell=self._tell,
            held=self._hold,
            wake=self._wake.set,
        )
        self._fars[far.number] = far
        body = {"op": "spawn", "targets": list(fds), "argv": program.argv, "env": dict(program.env), "cwd": program.cwd}
        self._tell(["spawn", far.number, body | dict(program.options), far.kinds])
        try:
            await asyncio.wait([far.started])
            if far.started.cancelled():
                raise SandboxDead(f"sandbox {self.name} is gone: {self._failure or 'a program was lost'}")
            said = far.started.result()
            if "error" in said:
                raise StartFailed(str(said["error"])[:500], str(said.get("stage", "exec")), _number(said.get("errno")))
        except BaseException:
            ours.close()
            raise
        return Spawned(_number(said.get("pid")), ours)

    def _tell(self, item: Item) -> None:
        self._items.append(item)
        if item[0] != "forget":  # that goes along with the next
            self._wake.set()

    def _hold(self, more: int) -> None:
        before, self._held = self._held, self._held + more
        if before >= ROOM > self._held:
            self._wake.set()

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        for far in list(self._fars.values()):
            far.close()
        self._fars.clear()
        _settle(self._waiting)

    async def _serve(self) -> None:
        try:
            while self._failure is None:
                if not (self._urgent() or self._active or self._waiting or self._leaving):
                    await self._woken(HEARTBEAT_S)
                elif self._fresh and not (self._urgent() or self._waiting or self._has_input()):
                    self._fresh = False  # whoever heard the news, or just came, is about to say what is to be done
                    await self._woken(SAYING_S)
                    continue
                await self._exchange()
                if self._flood >= ROOM // 2 and not self._urgent():
                    await asyncio.sleep(PACE_S)
                if self._leaving:
                    self._fail("it has ended")
        except asyncio.CancelledError:
            raise
        except SandboxError as error:
            self._fail(str(error))
        except Exception as error:  # ours: nobody must wait for what cannot come any more
            LOG.exception("sandbox %s: its bridge broke", self.name)
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._fail("it is closed")

    async def _woken(self, within_s: float) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(within_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _urgent(self) -> bool:
        return any(item[0] != "forget" for item in self._items)

    def _has_input(self) -> bool:
        return any(far.has_input and self._owed.get(far.number, 0) < ENOUGH for far in self._fars.values())

    async def _exchange(self) -> None:
        asked, self._waiting = self._waiting, []
        for number in [number for number, far in self._fars.items() if far.closed]:
            del self._fars[number]
        items, self._items = [self._dated(item) for item in self._items], []
        more = False
        for far in self._fars.values():
            if far.has_input and self._owed.get(far.number, 0) < ENOUGH:
                items += far.take_input(PIECE)
                more = more or far.has_input
        if self._leaving:
            items.append(["bye", 0])
        wait_s = 0.0 if more or asked or self._leaving else self._patience()
        self._seq += 1
        left = boot_ticks()
        room = min(ROOM, URGENT_ROOM) if any(one[0] == "say" for one in items) else ROOM  # a kill waits for no flood
        request = {"seq": self._seq, "wait": wait_s, "room": max(0, room - self._held), "items": items}
        try:
            reply = await self._ask(
                json.dumps(request, separators=(",", ":")),
                wait_s,
                secret=any(one[0] in ("spawn", "in") for one in items),
            )
            self._take(reply, left)
        except BaseException:
            self._waiting += asked
            raise
        self._heard = time.monotonic()
        _settle(asked)

    def _dated(self, item: Item) -> Item:
        verb, number, *rest = item
        if verb != "since":
            return item
        return ["say", number, {**rest[0], "since": self._clock.there(rest[0]["since"])}]

    def _patience(self) -> float:
        """How long the guest may wait for news: long enough to ask seldom, short enough to be told something soon."""
        if not self._active:
            return 0.0
        if self._held > ROOM // 2:
            return 0.01
        quiet = time.monotonic() - self._news
        due = min(self._active.values()) - asyncio.get_running_loop().time()
        return min(LONGEST_S, max(0.05, quiet / 4), due if due > 0 else 0.02)

    async def _ask(self, request: str, wait_s: float, *, secret: bool) -> Mapping[str, Any]:
        """The guest's answer, asked for again while the way there is broken.

        A `secret` request is on no command line, where any user of the far machine could read it.

        Raises:
            SandboxDead: the guest is gone, or the server for too long.
            SandboxError: what came is no answer.
        """
        line = request
        gave_up = time.monotonic() + PATIENCE_S
        pause_s = 0.05
        while True:
            try:
                if secret:
                    line = f"@p.{self._seq}"
                    path, room_s = f"{self._directory}/p.{self._seq}", GRACE_S + len(request) / SLOWEST
                    await self._rex.write_file(path, request, timeout_s=room_s)
                argv = ("sh", "-c", _ASK, "sh", self._directory, line, str(self._pid), str(self._seq))
                return self._read(await self._rex.execute(argv, timeout_s=wait_s + GRACE_S))
            except (Unreachable, ServerTimeout) as error:
                why = await self._ended()
                if why is not None:
                    raise SandboxDead(why) from None
                if time.monotonic() > gave_up:
                    raise SandboxDead(str(error)) from None
            await asyncio.sleep(pause_s)
            pause_s = min(1.0, pause_s * 2)

    def _read(self, executed: Executed) -> Mapping[str, Any]:
        if executed.exit_code == 9:
            raise SandboxDead("what we started in it was killed")
        try:
            reply = json.loads(executed.output)
        except (ValueError, RecursionError):
            reply = None
        if executed.exit_code or not isinstance(reply, dict) or reply.get("seq") != self._seq:
            if executed.exit_code < 0 or executed.exit_code in (137, 143):
                raise Unreachable("the exchange was killed")
            raise SandboxDead(f"exit code {executed.exit_code} and no answer, but {executed.output[:200]!r}")
        return reply

    def _take(self, reply: Mapping[str, Any], left: int) -> None:
        """Deal with an answer. It comes from where commands can do as they please: nothing in it is trusted."""
        self._clock.note(left, _number(reply.get("at")))
        owed = reply.get("owed")
        self._owed = {}
        if isinstance(owed, dict):
            self._owed = {int(key): _number(value) for key, value in owed.items() if str(key).isdecimal()}
        events = reply.get("events")
        self._flood = 0
        for event in events if isinstance(events, list) else []:
            self._news = time.monotonic()
            self._fresh = True
            far, verb, target, value = self._event(event)
            if far is not None:
                self._flood += len(value) if verb == "out" else 0
                far.add(verb, target, value)

    def _event(self, event: object) -> tuple[Far | None, str, int, Any]:
        nothing = (None, "", 0, None)
        if not isinstance(event, list) or len(event) < 2 or not isinstance(event[0], str):
            return nothing
        far = self._fars.get(_number(event[1]))
        verb, rest = event[0], event[2:]
        if far is None:
            return nothing
        if verb == "said" and rest and isinstance(rest[0], dict):
            said = {key: rest[0][key] for key in ("pid", "exit", "signalled") if isinstance(rest[0].get(key), int)}
            if "error" in rest[0]:
                said = {key: rest[0].get(key) for key in ("error", "stage", "errno")}
            return (far, verb, 0, said) if said else nothing
        if verb in ("out", "file") and len(rest) == 2 and isinstance(rest[1], str):
            try:
                return far, verb, _number(rest[0]), base64.b64decode(rest[1], validate=True)
            except (binascii.Error, ValueError):
                return nothing
        if verb in ("eof", "lost"):
            return far, verb, _number(rest[0]) if rest else 0, None
        return nothing


def _settle(waiting: list[asyncio.Future[None]]) -> None:
    for one in waiting:
        if not one.done():
            one.set_result(None)
    waiting.clear()


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
