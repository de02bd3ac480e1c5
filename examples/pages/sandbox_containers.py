"""What the page on containers shows; with PODMAN and IMAGE in the environment it runs there."""

import os
from pathlib import Path

import anyio

# --8<-- [start:imports]
from agentkit.protocols import Limits, SandboxSpec
from agentkit.sandbox import ApptainerBackend, DockerBackend, PodmanBackend

# --8<-- [end:imports]


async def use(podman: str, image: str, project: Path) -> None:
    # --8<-- [start:use]
    async with PodmanBackend(command=podman, image=image) as backend:
        spec = SandboxSpec(
            cwd="/testbed",
            env={"LANG": "C.UTF-8"},
            limits=Limits(cpus=1, memory_bytes=1 << 30, processes=256),
            lifetime_s=600,  # it ends by then, whatever becomes of this process
        )
        async with await backend.start(spec) as sandbox:
            await sandbox.upload(project, "project")
            result = await sandbox.run("cd project && ls | wc -l", timeout_s=60)
            assert (result.exit_code, result.timed_out) == (0, False)
            verdict = await sandbox.exec(["cat", "project/numbers"], timeout_s=60)
    # --8<-- [end:use]
    assert (result.text, verdict.text) == ("1\n", "3 1 2\n")


def others() -> None:
    # --8<-- [start:others]
    DockerBackend(image="debian:12", user="1000:1000", arguments=("--shm-size", "1g"))
    ApptainerBackend(image="/images/task.sif", arguments=("--nv",))
    # --8<-- [end:others]


async def main() -> None:
    others()
    podman, image = os.environ.get("PODMAN"), os.environ.get("IMAGE")
    if podman and image:
        async with anyio.TemporaryDirectory() as folder:
            project = anyio.Path(folder) / "project"
            await project.mkdir()
            await (project / "numbers").write_text("3 1 2\n")
            await use(podman, image, Path(project))


if __name__ == "__main__":
    anyio.run(main)
