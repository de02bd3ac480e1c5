"""A real vLLM server beside a pytest run: `python -m pytest -p tests.servers.plugin ...`.

It is started where a test wants it, on a free port of the loopback address, and is gone when pytest is. Tests find it
by the fixture `vllm_server`; contracts, which need no fixture of this plugin, in AGENTKIT_SERVER_URL and
AGENTKIT_SERVER_MODEL.
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
"""What outlives a run: the tiny model, and the logs of servers of runs that failed."""
MODEL_NAME = "tiny"
START_S = 300.0
MODEL_S = 300.0
LOG_LINES = 60
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_RPC_BASE_PATH": "/tmp",  # its sockets: a path has at most 107 characters
    "TORCH_COMPILE_DISABLE": "1",  # needs a C++ compiler, and ten seconds at the first request
}
"""Of servers, and of engines in this process."""


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

    def __init__(self) -> None:
        self.log = WORK / f"vllm-{os.getpid()}.log"
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
        model = tiny_model()
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model)),
            *("--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(self.port)),
            *("--dtype", "float32", "--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "64"),
            *("--logprobs-mode", "processed_logprobs", "--max-logprobs", "20"),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        ]
        with self.log.open("ab") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, str(HERE / "keeper.py"), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
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
    """The address is settled before the tests are read, for some ask there whether they have a server."""
    server = session.config.stash[SERVER] = VLLMServer()
    os.environ |= ENVIRONMENT | {"AGENTKIT_SERVER_URL": server.url, "AGENTKIT_SERVER_MODEL": MODEL_NAME}


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    server = session.config.stash[SERVER]
    server.stop()
    if exitstatus == 0:
        server.log.unlink(missing_ok=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    server = config.stash[SERVER]
    if server.log.exists() and any(terminalreporter.stats.get(kind) for kind in ("failed", "error")):
        terminalreporter.section(f"the end of {server.log}")
        terminalreporter.write_line(server.tail())


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start it here, if a test wants it: the time that takes is on no test's clock."""
    if session.config.option.collectonly or not any(map(_wants_server, session.items)):
        return
    server = session.config.stash[SERVER]
    try:
        server.start()
        server.wait()
    except RuntimeError as error:
        pytest.exit(str(error), returncode=3)


def _wants_server(item: pytest.Item) -> bool:
    fixtures = item.fixturenames if isinstance(item, pytest.Function) else ()
    return "vllm_server" in fixtures or item.path.name.endswith("contract.py")


@pytest.fixture(scope="session")
def vllm_server(request: pytest.FixtureRequest) -> VLLMServer:
    """The server; a test that ends it must start it again."""
    return request.config.stash[SERVER]


@pytest.fixture(scope="session")
def tiny_model_folder() -> Path:
    """The model that the server serves."""
    return tiny_model()
