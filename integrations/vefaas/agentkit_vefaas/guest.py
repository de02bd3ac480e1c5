"""The server inside a veFaaS sandbox, of Python's standard library alone: its source is the sandbox's command.

A program has an id that the caller chose, so that every request can be repeated: its input is put at an offset, its
output is read from an offset, each for as long as a gateway keeps a request open. What is read is let go of; a program
whose output nobody reads is held up. Settings come by the environment and are removed from it.
"""

from __future__ import annotations

import hmac
import http.server
import json
import os
import subprocess
import threading
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

KEEP = 8 << 20
PROGRAMS: dict[str, Program] = {}
LOCK = threading.Lock()


class Program:
    """One program: `base` is the offset of what is still kept of its output."""

    def __init__(self, argv: list[str]) -> None:
        self.process = subprocess.Popen(argv, stdin=-1, stdout=-1, stderr=-3, start_new_session=True)
        self.taken = 0
        self.base = 0
        self.output = bytearray()
        self.ended = False
        self.changed = threading.Condition()
        threading.Thread(target=self.pump, daemon=True).start()

    def pump(self) -> None:
        """Take the output, as far as there is room for it."""
        stream = self.process.stdout
        while stream is not None:
            data = os.read(stream.fileno(), 65536)
            with self.changed:
                if not data:
                    break
                self.output += data
                self.changed.notify_all()
                while len(self.output) > KEEP:
                    self.changed.wait()
        self.process.wait()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def give(self, offset: int, data: bytes, last: bool) -> None:
        """Put input at `offset`; what was put before is passed over."""
        pipe = self.process.stdin
        data = data[max(0, self.taken - offset) :]
        self.taken += len(data)
        try:
            if pipe is not None and not pipe.closed:
                pipe.write(data)
                pipe.flush()
                if last:
                    pipe.close()
        except OSError:
            pass

    def take(self, offset: int, wait: float) -> tuple[bytes, bool]:
        """Output from `offset` on, and whether that was all there ever is."""
        end = time.monotonic() + wait
        with self.changed:
            del self.output[: offset - self.base]
            self.base = max(self.base, offset)
            self.changed.notify_all()
            while not self.output and not self.ended and time.monotonic() < end:
                self.changed.wait(max(0.0, end - time.monotonic()))
            return bytes(self.output[: 1 << 20]), self.ended and len(self.output) <= 1 << 20


class Handler(http.server.BaseHTTPRequestHandler):
    """Requests that carry the token."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 65536  # an answer is one write
    token = ""

    def answer(self, status: int, body: bytes = b"", done: bool = False) -> None:
        """Send an answer."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Agentkit-Done", "1" if done else "0")
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def do_POST(self) -> None:
        """Do what the path says."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not hmac.compare_digest(self.headers.get("X-Agentkit-Token") or "", self.token):
            return self.answer(403)
        url = urlsplit(self.path)
        asked: dict[str, Any] = {key: values[0] for key, values in parse_qs(url.query).items()}
        operation = url.path.rsplit("/", 1)[-1]
        if operation == "alive":
            return self.answer(200, b"agentkit")
        with LOCK:
            program = PROGRAMS.get(asked["id"])
            if operation == "start" and program is None:
                try:
                    program = PROGRAMS[asked["id"]] = Program(json.loads(body))
                except OSError as error:
                    return self.answer(422, str(error).encode())
            if operation == "forget":
                PROGRAMS.pop(asked["id"], None)
                if program is not None:
                    program.take(program.base + len(program.output), 0.0)
        if operation in ("start", "forget"):
            return self.answer(200)
        if program is None:
            return self.answer(404)
        if operation == "give":
            program.give(int(asked["offset"]), body, asked["last"] == "1")
            return self.answer(200)
        return self.answer(200, *program.take(int(asked["offset"]), float(asked["wait"])))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the library's name
        """Nothing is logged."""


class Server(http.server.ThreadingHTTPServer):
    """One thread a request."""

    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    """Serve until the lifetime is over."""
    Handler.token = os.environ.pop("AGENTKIT_GUEST_TOKEN")
    port, lifetime = os.environ.pop("AGENTKIT_GUEST_SERVES").split()
    host = os.environ.pop("AGENTKIT_GUEST_HOST", "0.0.0.0")  # noqa: S104  # the gateway comes from outside
    server = Server((host, int(port)), Handler)
    timer = threading.Timer(float(lifetime), os._exit, (0,))
    timer.daemon = True
    timer.start()
    server.serve_forever()


if __name__ == "__main__":
    main()
