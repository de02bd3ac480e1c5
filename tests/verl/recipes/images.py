"""What starts sandboxes from images, where the images are folders on this machine."""

import sysconfig
from pathlib import Path

import attrs

from agentkit.protocols import Sandbox, SandboxSpec
from agentkit.sandbox import BwrapBackend


class Images:
    """A `SandboxBackend` of images: each folder in one is copied to `/its/name`, with `_` for `/`.

    What it brings of Python packages are those of the tests.
    """

    async def start(self, spec: SandboxSpec, /) -> Sandbox:
        packages = sysconfig.get_path("purelib")
        env = {
            **spec.env,
            "PYTHONPATH": packages,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        sandbox = await BwrapBackend().start(attrs.evolve(spec, image=None, env=env, read_only=((packages, packages),)))
        try:
            for folder in sorted(Path(spec.image or "/nowhere").iterdir()):
                await sandbox.upload(folder, f"/{folder.name.replace('_', '/')}")
        except BaseException:
            await sandbox.close()
            raise
        return sandbox
