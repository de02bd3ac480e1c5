"""A real vLLM server beside a pytest run: `python -m pytest -p tests.servers.plugin ...`.

It is started before the tests are collected, on a free port of the loopback address, and is gone when pytest is. Tests
of any folder find it in AGENTKIT_SERVER_URL and AGENTKIT_SERVER_MODEL, or by the fixture `vllm_server`.
"""

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.servers.keeper import members

HERE = Path(__file__).parent
WORK = Path(sys.prefix) / "agentkit"
"""What outlives a run: the tiny model, and the log of the last server."""
MODEL_NAME = "tiny"
START_S = 300.0
MODEL_S = 300.0
LOG_LINES = 60


def tiny_model() -> Path:
    """The folder of the tiny model, made once for each version of its script and of Python."""
    script = HERE / "tiny_model.py"
    version = hashlib.sha256(script.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = WORK / f"tiny-{version}"
    if not (folder / "made.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        subprocess.run([sys.executable, str(script), str(folder)], check=True, capture_output=True, timeout=MODEL_S)
    return folder


class VLLMServer:
    """`vllm serve` in a process session of its own, with its output in a file."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.log = WORK / "vllm.log"
        self.log.unlink(missing_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._keeper: subprocess.Popen[bytes] | None = None
        self._session = 0

    @property
    def root(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Where its OpenAI-compatible API is."""
        return f"{self.root}/v1"

    def start(self) -> None:
        """Start it; `wait` until it answers."""
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(self.model)),
            *("--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(self.port)),
            *("--dtype", "float32", "--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "64"),
            *("--logprobs-mode", "processed_logprobs", "--max-logprobs", "20"),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        ]
        env = {name: value for name, value in os.environ.items() if not name.startswith("AGENTKIT_")}
        env |= {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_RPC_BASE_PATH": "/tmp",  # its sockets: paths of at most 107 characters
        }
        with self.log.open("ab") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, str(HERE / "keeper.py"), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        assert self._keeper.stdout is not None
        self._session = int(self._keeper.stdout.readline())

    def wait(self) -> None:
        """Return once it answers.

        Raises:
            RuntimeError: it ended, or did not answer in time.
        """
        limit = time.monotonic() + START_S
        while time.monotonic() < limit:
            if self._keeper is None or self._keeper.poll() is not None:
                raise RuntimeError(f"the server ended before it answered:\n{self.tail()}")
            try:
                with urllib.request.urlopen(f"{self.root}/health", timeout=5):
                    break
            except OSError:
                time.sleep(0.2)
        else:
            raise RuntimeError(f"the server did not answer within {START_S:.0f} s:\n{self.tail()}")
        self._warm_up()

    def _warm_up(self) -> None:
        """The first request after a start takes seconds: no test's deadline should pay for it."""
        body = json.dumps({"model": MODEL_NAME, "prompt": [1], "max_tokens": 2}).encode()
        request = urllib.request.Request(f"{self.url}/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120):
            pass

    def kill(self) -> None:
        """End all of its processes at once, as a crash would."""
        for pid in members(self._session):
            os.kill(pid, signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """End it, with everything it started."""
        if self._keeper is not None:
            self._keeper.communicate(timeout=60)
            self._keeper = None

    def metrics(self) -> dict[str, float]:
        """Its counters and gauges, summed over labels."""
        with urllib.request.urlopen(f"{self.root}/metrics", timeout=30) as reply:
            lines = reply.read().decode().splitlines()
        sums: dict[str, float] = {}
        for line in lines:
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                sums[name.partition("{")[0]] = sums.get(name.partition("{")[0], 0.0) + float(value)
        return sums

    def tail(self) -> str:
        """The end of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])


SERVER = pytest.StashKey[VLLMServer]()


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.option.collectonly:
        return
    session.config.stash[SERVER] = server = VLLMServer(tiny_model())
    server.start()
    os.environ |= {"AGENTKIT_SERVER_URL": server.url, "AGENTKIT_SERVER_MODEL": MODEL_NAME}


def pytest_unconfigure(config: pytest.Config) -> None:
    if (server := config.stash.get(SERVER, None)) is not None:
        server.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    server = config.stash.get(SERVER, None)
    if server is not None and any(terminalreporter.stats.get(kind) for kind in ("failed", "error")):
        terminalreporter.section(f"the end of {server.log}")
        terminalreporter.write_line(server.tail())


def pytest_collection_finish(session: pytest.Session) -> None:
    """Wait here: the time a server takes to start is on no test's clock."""
    server = session.config.stash.get(SERVER, None)
    if server is not None and session.items:
        try:
            server.wait()
        except RuntimeError as error:
            pytest.exit(str(error), returncode=3)


@pytest.fixture(scope="session")
def vllm_server(request: pytest.FixtureRequest) -> VLLMServer:
    """The server; a test that ends it must start it again."""
    return request.config.stash[SERVER]


@pytest.fixture(scope="session")
def tiny_model_folder(vllm_server: VLLMServer) -> Path:
    """The model that the server serves."""
    return vllm_server.model
