"""The files of a bubblewrap sandbox, kept: layers in directories that their last user removes."""

import logging
import os
import socket
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import anyio
from anyio import to_thread
from attrs import define, field

from agentkit.errors import SandboxError
from agentkit.sandbox.embedded import end
from agentkit.sandbox.leaks import remove_tree
from agentkit.sandbox.pump import Pump, pipe_for
from agentkit.sandbox.spawner import Program, request

LOG = logging.getLogger("agentkit.sandbox")


@define(eq=False, weakref_slot=True)
class Layer:
    """What one sandbox wrote: `directory`/<n> is what it wrote at `insides[n]`, owned by `count` ids from `owner` on.

    Snapshots and sandboxes hold it; the last to let go removes it. Its directory carries our name, so what a killed
    process leaves is removed by the next one's reaper; an interpreter that ends removes it too.
    """

    directory: Path
    insides: tuple[str, ...]
    owner: int
    count: int
    _holders: int = 0
    _finalizer: "weakref.finalize[[Path, int], Layer] | None" = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._finalizer = weakref.finalize(self, _remove, self.directory, os.getpid())

    def hold(self) -> None:
        """Count one more holder."""
        self._holders += 1

    async def release(self) -> None:
        """Count one holder less. Cancellation: shielded."""
        self._holders -= 1
        if self._holders == 0 and self._finalizer is not None:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(self._finalizer)


def _remove(directory: Path, home: int) -> None:
    if os.getpid() != home:  # a fork of who made it, which ends: it is not the fork's
        return
    if directory.exists():
        remove_tree(directory)
    if directory.exists():
        LOG.error("directory %s could not be removed", directory)


@define(eq=False)
class BwrapSnapshot:
    """The files of a sandbox at one moment. `layers` are topmost first; `kind` says what they fit."""

    name: str
    kind: str
    rootfs: str | None
    layers: tuple[Layer, ...]
    _closed: bool = False

    def __attrs_post_init__(self) -> None:
        hold_all(self.layers)

    @property
    def closed(self) -> bool:
        """Whether it was let go of."""
        return self._closed

    async def close(self) -> None:
        """As `Snapshot.close`. Cancellation: shielded."""
        if not self._closed:
            self._closed = True
            await release_all(self.layers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()


def hold_all(layers: Sequence[Layer]) -> None:
    """Hold each of `layers`."""
    for layer in layers:
        layer.hold()


async def release_all(layers: Sequence[Layer]) -> None:
    """Release each of `layers`. Cancellation: shielded."""
    for layer in layers:
        await layer.release()


async def keep_files(main: socket.socket, holder: int, names: Sequence[str], layer: Layer) -> None:
    """Copy the directories `names` of the tmpfs of the sandbox that `holder` holds to the directory of `layer`.

    The caller holds `layer`, and no longer does where this fails.

    Raises:
        SandboxError: they could not be copied.
        SandboxDead: the spawner is gone.
    Cancellation: nothing is kept.
    """
    options = {"keep": {"holder": holder, "names": names, "target": str(layer.directory)}}
    far: dict[int, int] = {}
    output = pipe_for(far, 1)
    said = bytearray()
    try:
        layer.directory.mkdir(mode=0o700)
        program = Program(("keep",), {}, options=options)
        process = await request(main, "spawn", program, far)
        os.close(far.pop(1))
        pump = Pump(process, output=output)
        try:
            while not process.ended:
                await pump.step(said.extend, None)
            pump.drain(said.extend)
        finally:
            if not process.ended:
                await end(process, layer.directory.name)
            pump.close()
            process.close()
        if process.exit_code != 0:
            raise SandboxError(f"the files of a sandbox could not be kept: {said.decode('utf-8', 'replace')[:500]}")
    except BaseException as error:
        await layer.release()
        if isinstance(error, OSError):
            raise SandboxError(f"the files of a sandbox could not be kept: {error}") from error
        raise
    finally:
        for fd in set(far.values()):
            os.close(fd)
