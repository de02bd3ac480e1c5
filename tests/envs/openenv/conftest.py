"""A server made with openenv-core's own helpers, in a process of its own; its client runs on asyncio."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Serve = Callable[..., tuple[str, subprocess.Popen[str]]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server with room for `room` sessions: its address and its process."""
    started: list[subprocess.Popen[str]] = []

    def start(room: int = 8, port: int = 0) -> tuple[str, subprocess.Popen[str]]:
        command = [sys.executable, str(Path(__file__).with_name("guessing.py")), str(room), str(port)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("http://"), line
        return line.strip(), process

    yield start
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()
