"""A back end of one's own, in one file: plain directories on this machine, told apart by who asked for them.

Nothing is isolated here: it stands on `HostBackend`, which runs commands as you. What yours does instead, in another
place, goes where this one hands on.
"""

import tempfile
from pathlib import Path
from typing import Self

import anyio

from agentkit.protocols import Capabilities, Sandbox, SandboxSpec
from agentkit.sandbox import Entry, HostBackend, Registry


# --8<-- [start:backend]
class LabelledBackend:
    """Sandboxes below `directory`, one folder for each team that the label `team` of a spec names."""

    def __init__(self, *, directory: Path, default_team: str = "nobody") -> None:
        self._directory = directory
        self._default_team = default_team
        self._hosts: dict[str, HostBackend] = {}

    @property
    def capabilities(self) -> Capabilities:
        """What is asked for beyond this is refused: `check` raises a ConfigError that names the field."""
        return Capabilities(isolated=False, read_only=True, networks=frozenset({"none", "host"}))

    def available(self) -> str | None:
        """Why it cannot run here, for `agentkit sandbox doctor`; None where it can."""
        return None if self._directory.is_dir() else f"there is no directory {self._directory}"

    async def start(self, spec: SandboxSpec, /) -> Sandbox:
        self.capabilities.check(spec, "labelled")
        team = spec.labels.get("team", self._default_team)
        folder = self._directory / team
        folder.mkdir(exist_ok=True)
        host = self._hosts.setdefault(team, HostBackend(directory=folder))
        return await host.start(spec)  # cancelled in there, it leaves nothing

    async def __aenter__(self) -> Self:  # what is shared by its sandboxes begins here, ...
        return self

    async def __aexit__(self, *_exc: object) -> None:  # ... and ends here
        self._hosts.clear()


# --8<-- [end:backend]


# --8<-- [start:registry]
def make(path: Path, lifetime_s: float, registry: Registry) -> Entry:
    entry = registry.add("labelled", path.name, lifetime_s=lifetime_s, data={"path": str(path)})  # never a secret
    path.mkdir()  # only now
    return entry


async def remove(entry: Entry) -> None:  # a class method of the back end; a SandboxError where it could not
    path = Path(entry.data["path"])
    if path.exists():  # perhaps it was never made, or is gone already
        path.rmdir()


# --8<-- [end:registry]


async def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        # --8<-- [start:use]
        async with LabelledBackend(directory=directory) as backend:
            sandbox = await backend.start(SandboxSpec(labels={"team": "red"}))
            try:
                assert (await sandbox.run("echo hello > file; cat file")).text == "hello\n"
                assert [path.name for path in directory.iterdir()] == ["red"]
            finally:
                await sandbox.close()
        # --8<-- [end:use]
        registry = Registry(directory / "state")
        entry = make(directory / "machine", 60.0, registry)
        assert registry.due() == []
        await remove(entry)
        await remove(entry)
        registry.forget(entry)


if __name__ == "__main__":
    anyio.run(main)
