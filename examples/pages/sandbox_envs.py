"""What the page on envs with sandboxes shows. Without bubblewrap, commands run as you."""

import shutil
import tempfile
from pathlib import Path

import anyio

import agentkit as ak

# --8<-- [start:imports]
from agentkit.envs import SandboxEnv
from agentkit.models import ScriptedModel
from agentkit.sandbox import StartPolicy, default_backend
from agentkit.tools import execute_bash

# --8<-- [end:imports]

backend = default_backend(allow_host=True)
HERE = Path(tempfile.mkdtemp())
LINT = HERE / "lint"
LINT.write_text('#!/bin/sh\ngrep -n "print" "$@" && exit 1\necho "$WHO: fine"\n')


# --8<-- [start:prepare]
def make_env() -> SandboxEnv:
    return SandboxEnv(
        backend,
        tools=[LINT],  # executables of this machine, on the PATH inside
        uploads={"extra": HERE},  # files and folders of this machine
        files={"src/main.py": "x = 1\n"},
        commands=["mkdir out", "cd src", "export STAGE=test"],  # each must succeed; the session keeps what they do
        env={"WHO": "agentkit"},
    )


# --8<-- [end:prepare]


# --8<-- [start:failures]
def make_lasting_env() -> SandboxEnv:
    return SandboxEnv(
        backend,
        starts=StartPolicy(attempts=5, first_wait_s=1.0),  # within the budget's setup_s
        restarts=2,  # a sandbox that dies is replaced, and the policy told
    )


# --8<-- [end:failures]


async def main() -> None:
    call = '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "%s"}}\n</tool_call>'
    script = [call % "basename $PWD; echo $STAGE; lint main.py", "Done."]
    trajectory = await ak.Agent(ScriptedModel(script), env=make_env, tools=[execute_bash]).run("Check main.py.")
    assert trajectory.turns[0].observations[0].content == "src\ntest\nagentkit: fine\n[exit code 0]"
    agent = ak.Agent(ScriptedModel([call % "true", "Done."]), env=make_lasting_env, tools=[execute_bash])
    trajectory = await agent.run("Do nothing.")
    assert trajectory.exit_reason == "finished"
    shutil.rmtree(HERE)


if __name__ == "__main__":
    anyio.run(main)
