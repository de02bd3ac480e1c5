"""What the page on remote sandboxes shows: a server on this machine, in place of another one."""

import secrets
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

# --8<-- [start:imports]
from agentkit_remote import RemoteBackend, SandboxServer, ServerPolicy

import agentkit as ak
from agentkit.envs import SandboxEnv
from agentkit.protocols import SandboxSpec
from agentkit.sandbox import default_backend

# --8<-- [end:imports]


async def serve_and_use(tokens: Path) -> None:
    # --8<-- [start:server]
    policy = ServerPolicy(max_sandboxes=256, orphan_s=30)
    async with SandboxServer(default_backend(allow_host=True), token_file=tokens, policy=policy) as server:
        url = server.url
        # --8<-- [end:server]
        # --8<-- [start:client]
        backend = RemoteBackend(url, token_file=tokens)
        async with backend, await backend.start(SandboxSpec(lifetime_s=600)) as sandbox:
            await sandbox.write("numbers.txt", b"10\n9\n2\n")
            result = await sandbox.exec(["sort", "-n", "numbers.txt"], timeout_s=10, on_output=print)
            assert result.text == "2\n9\n10\n"
            assert (await sandbox.run("echo begun; sleep 60", timeout_s=0.5)).timed_out
        # --8<-- [end:client]

        # --8<-- [start:retry]
        try:
            sandbox = await backend.start(SandboxSpec())
        except ak.SandboxDead:
            raise  # what was there is gone
        except ak.SandboxError as error:
            if not error.retryable:  # not reachable or full for now: SandboxEnv tries again by itself
                raise
        # --8<-- [end:retry]
        else:
            await sandbox.close()

        # --8<-- [start:env]
        def make_env() -> SandboxEnv:  # what ak.Agent(..., env=make_env) takes
            return SandboxEnv(backend)

        # --8<-- [end:env]
        env = make_env()
        await env.start(ak.Task("try", "Try."))
        assert (await env.run("echo there")).text == "there\n"
        await env.close()
        assert server.sandboxes == 0


def use() -> None:
    with TemporaryDirectory() as folder:
        tokens = Path(folder) / "tokens"
        tokens.touch(mode=0o600)
        tokens.write_text(secrets.token_urlsafe() + "\n")
        anyio.run(serve_and_use, tokens, backend="asyncio")  # aiohttp's loop


async def main() -> None:
    await anyio.to_thread.run_sync(use)


if __name__ == "__main__":
    anyio.run(main)
