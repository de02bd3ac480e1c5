"""SWE-ReX as it comes, for comparison: its local runtime in our event loop, and its Docker deployment."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

TIMES = 10
COMMANDS = 30


async def _measure(deploy: Callable[[], Any]) -> dict[str, list[float]]:
    from swerex.runtime.abstract import BashAction, CreateBashSessionRequest

    found: dict[str, list[float]] = {"start, session included": [], "a command in the session": [], "stop": []}
    for number in range(TIMES + 1):
        deployment = deploy()
        began = time.perf_counter()
        await deployment.start()
        await deployment.runtime.create_session(CreateBashSessionRequest())
        up = time.perf_counter()
        if number == 0:
            for _ in range(COMMANDS):
                before = time.perf_counter()
                await deployment.runtime.run_in_session(BashAction(command="true", check="ignore"))
                found["a command in the session"].append(1000 * (time.perf_counter() - before))
        before = time.perf_counter()
        await deployment.stop()
        if number:
            found["start, session included"].append(1000 * (up - began))
            found["stop"].append(1000 * (time.perf_counter() - before))
    return found


async def _local() -> dict[str, list[float]]:
    from swerex.deployment.local import LocalDeployment

    return await _measure(LocalDeployment)


async def _docker() -> dict[str, list[float]]:
    import os
    import tempfile

    from _sandbox_kinds import rig
    from swerex.deployment.docker import DockerDeployment

    image, podman = rig()
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(podman, f"{folder}/podman")  # SWE-ReX asks for it by this name
        before = os.environ["PATH"]
        os.environ["PATH"] = f"{folder}:{before}"
        try:
            return await _measure(
                lambda: DockerDeployment(image=image, container_runtime="podman", pull="never", startup_timeout=60)
            )
        finally:
            os.environ["PATH"] = before


PEERS: dict[str, Callable[[], Awaitable[dict[str, list[float]]]]] = {
    "SWE-ReX 1.4.0 local": _local,
    "SWE-ReX 1.4.0 Docker (podman)": _docker,
}
