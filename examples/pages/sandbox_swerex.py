"""What the page on SWE-ReX shows, over its own server on this machine: commands run as you."""

import anyio

# --8<-- [start:imports]
from agentkit_swerex import SwerexBackend

from agentkit.errors import ConfigError
from agentkit.protocols import SandboxSpec

# --8<-- [end:imports]

# --8<-- [start:backend]
docker = SwerexBackend(
    deployment={  # SWE-ReX's own configuration of a deployment, as it stands
        "type": "docker",
        "image": "my-image-with-swe-rex",
        "container_runtime": "podman",
        "pull": "never",
    }
)
# --8<-- [end:backend]

local = SwerexBackend()  # SWE-ReX's server as a child of this process


# --8<-- [start:use]
async def use(backend: SwerexBackend, spec: SandboxSpec) -> None:
    async with await backend.start(spec) as sandbox:
        await sandbox.run("cd /usr; export WHO=agentkit")
        print((await sandbox.run("echo $WHO in $PWD")).text)  # agentkit in /usr
        late = await sandbox.run("echo half way; sleep 60", timeout_s=0.5)
        print(late.timed_out, late.text)  # True half way
        print((await sandbox.exec(["printf", r"\000\377"])).output)  # b"\x00\xff"


# --8<-- [end:use]


async def main() -> None:
    try:
        await use(local, SandboxSpec())
    except ConfigError as error:  # on trio
        print(error)


if __name__ == "__main__":
    anyio.run(main)
