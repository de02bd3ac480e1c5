"""What the page on limits of sandboxes shows; where one cannot be kept, it says so and goes without."""

import anyio

from agentkit.protocols import Limits, SandboxSpec
from agentkit.sandbox import BwrapBackend

WANTED = Limits(cpus=1.5, memory_bytes=256 * 1024**2, processes=200)


async def greedy(backend: BwrapBackend) -> None:
    # --8<-- [start:limits]
    spec = SandboxSpec(limits=Limits(cpus=1.5, memory_bytes=256 * 1024**2, processes=200))
    async with await backend.start(spec) as sandbox:
        killed = await sandbox.exec(["python3", "-c", "len(bytearray(1024**3))"])
        assert killed.exit_code == 137
        assert (await sandbox.run("echo alive")).text == "alive\n"
    # --8<-- [end:limits]


async def main() -> None:
    backend = BwrapBackend()
    why = backend.available()
    if why is not None:
        print(why)
        return
    # --8<-- [start:missing]
    for line in backend.shortcomings():  # "limits.cpus cannot be kept, ...: start under ..."
        print(line)
    # --8<-- [end:missing]
    if backend.capabilities.limits >= WANTED.named:
        await greedy(backend)


if __name__ == "__main__":
    anyio.run(main)
