"""veFaaS's API and the gateway of a function, on one port of the loopback.

It checks the signature of every call with Volcengine's own signer, and what the call carries with the request models of
Volcengine's own SDK. A sandbox is a bubblewrap sandbox whose main process is the command it was created with.
"""

import asyncio
import json
import secrets
import shlex
import socket
import threading
import time
from datetime import datetime
from typing import Any

import aiohttp
import volcenginesdkvefaas
from aiohttp import web
from attrs import define
from volcenginesdkcore import signv4

from agentkit.protocols import OutputCap, SandboxSpec
from agentkit.sandbox import BwrapBackend, EmbeddedSandbox

ACCESS, SECRET, REGION, FUNCTION = "AKLT-of-the-tests", "c2VjcmV0LW9mLXRoZS10ZXN0cw==", "cn-beijing", "fn-tests"


@define(eq=False)
class Box:
    """One sandbox as the fake cloud knows it."""

    id: str
    request: dict[str, Any]
    inner: EmbeddedSandbox
    port: int
    deadline: float
    status: str = "Ready"
    main: Any = None


@define
class Fault:
    """What happens to the next `times` calls of an action, of `gateway` or of an operation inside."""

    status: int = 500
    code: str = "InternalError"
    linger_s: float = 0.0
    after: bool = False
    """After the work is done: the answer is what is lost."""
    times: int = 1


def reference_signature(request: web.Request, body: str) -> str:
    """The Authorization header that Volcengine's signer gives this request, at the date it carries."""
    headers = {name: request.headers[name] for name in ("Content-Type", "Host")}

    class At(datetime):
        @classmethod
        def utcnow(cls) -> datetime:
            return datetime.strptime(request.headers["X-Date"], "%Y%m%dT%H%M%SZ")

    before, signv4.datetime.datetime = signv4.datetime.datetime, At
    try:
        query = dict(request.query)
        signv4.SignerV4.sign("/", "POST", headers, body, {}, query, ACCESS, SECRET, REGION, "vefaas")
    finally:
        signv4.datetime.datetime = before
    return headers["Authorization"]


class FakeVefaas:
    """The server, in a thread of its own. `boxes` is every sandbox there ever was, by id."""

    def __init__(self) -> None:
        self.boxes: dict[str, Box] = {}
        self.faults: dict[str, list[Fault]] = {}
        self.calls: list[str] = []
        self.complaints: list[str] = []
        self.port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(20)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def live(self) -> list[Box]:
        return [box for box in self.boxes.values() if box.status == "Ready"]

    def end(self, box: Box, status: str) -> None:
        """End a sandbox from outside, as the cloud would."""
        asyncio.run_coroutine_threadsafe(self.stop(box, status), self._loop).result(20)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(20)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        app = web.Application(client_max_size=4 * 2**20)
        app.router.add_post("/", self.control)
        app.router.add_post("/route/{tail:.*}", self.gateway)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        async with BwrapBackend() as self.backend, aiohttp.ClientSession() as self.session:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.port = runner.addresses[0][1]
            ticker = asyncio.create_task(self._lifetimes())
            self._ready.set()
            await self._stopping.wait()
            ticker.cancel()
            for box in self.live():
                await self.stop(box, "Terminated")
            await runner.cleanup()

    async def _lifetimes(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            for box in self.live():
                if time.monotonic() > box.deadline or box.main.done():
                    await self.stop(box, "Terminated")

    async def stop(self, box: Box, status: str) -> None:
        if box.status == "Ready":
            box.status = status
            await box.inner.close()
            await asyncio.gather(box.main, return_exceptions=True)

    def _complain(self, what: str) -> web.Response:
        self.complaints.append(what)
        return _error(400, "InvalidParameter", what)

    async def control(self, request: web.Request) -> web.Response:
        """One call of the API."""
        body = (await request.read()).decode()
        action = request.query.get("Action", "")
        self.calls.append(action)
        if request.query.get("Version") != "2024-06-06":
            return self._complain(f"version is {request.query.get('Version')!r}")
        if not secrets.compare_digest(request.headers.get("Authorization", ""), reference_signature(request, body)):
            return _error(401, "SignatureDoesNotMatch", "the signature is another")
        fields = json.loads(body)
        model = getattr(volcenginesdkvefaas, f"{action}Request", None)
        unknown = set(fields) - set(getattr(model, "attribute_map", {}).values())
        if model is None or unknown:
            return self._complain(f"{action} takes no {sorted(unknown)}")
        if fields.get("FunctionId") != FUNCTION:
            return self._complain(f"function is {fields.get('FunctionId')!r}")
        fault = next((one for one in self.faults.get(action, []) if one.times > 0), None)
        if fault is None:
            return await getattr(self, action)(fields)
        fault.times -= 1
        if fault.after:
            await getattr(self, action)(fields)
        await asyncio.sleep(fault.linger_s)
        return _error(fault.status, fault.code, "as planned")

    async def CreateSandbox(self, fields: dict[str, Any]) -> web.Response:
        image = fields["InstanceImageInfo"]
        if unknown := set(image) - set(
            volcenginesdkvefaas.InstanceImageInfoForCreateSandboxInput.attribute_map.values()
        ):
            return self._complain(f"InstanceImageInfo takes no {sorted(unknown)}")
        if not (isinstance(fields.get("Timeout"), int) and 0 < fields["Timeout"] <= 1440):
            return self._complain(f"Timeout is {fields.get('Timeout')!r}")
        if not {"agentkit-name", "agentkit-owner", "agentkit-deadline"} <= set(fields["Metadata"]):
            return self._complain(f"Metadata are {sorted(fields['Metadata'])}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        env = {one["Key"]: one["Value"] for one in fields["Envs"]}
        if set(env) != {"AGENTKIT_GUEST_TOKEN", "AGENTKIT_GUEST_SERVES"}:
            return self._complain(f"Envs are {sorted(env)}")
        asked, lifetime = env["AGENTKIT_GUEST_SERVES"].split()
        if int(asked) != image["Port"]:
            return self._complain(f"Port is {image['Port']}, and the server's {asked}")
        env |= {"AGENTKIT_GUEST_SERVES": f"{port} {lifetime}", "AGENTKIT_GUEST_HOST": "127.0.0.1"}
        cwd = fields["Metadata"].get("cwd", "/work")
        inner = await self.backend.start(SandboxSpec(cwd=cwd, network="host"))
        box = Box(secrets.token_hex(8), fields, inner, port, time.monotonic() + 60 * fields["Timeout"])
        words = shlex.split(image["Command"])
        box.main = asyncio.create_task(inner.exec(words, env=env, cap=OutputCap(2000, 2000)))
        self.boxes[box.id] = box
        return _ok({"SandboxId": box.id, "LatencyMs": 1})

    async def DescribeSandbox(self, fields: dict[str, Any]) -> web.Response:
        box = self.boxes.get(fields["SandboxId"])
        if box is None:
            return _error(404, "ResourceNotFound", "no such sandbox")
        return _ok({"Id": box.id, "FunctionId": FUNCTION, "Status": box.status, "Pending": False})

    async def ListSandboxes(self, fields: dict[str, Any]) -> web.Response:
        wanted = fields.get("Metadata", {}).items()
        found = [box for box in self.live() if wanted <= box.request["Metadata"].items()]
        rows = [{"Id": box.id, "Metadata": box.request["Metadata"], "Status": box.status} for box in found]
        return _ok({"Sandboxes": rows, "Total": len(rows)})

    async def KillSandbox(self, fields: dict[str, Any]) -> web.Response:
        box = self.boxes.get(fields["SandboxId"])
        if box is None or box.status != "Ready":
            return _error(404, "ResourceNotFound", "no such sandbox")
        await self.stop(box, "Terminated")
        return _ok({})

    async def gateway(self, request: web.Request) -> web.Response:
        """A request to the function's route, passed on to the sandbox that it names."""
        body = await request.read()
        box = self.boxes.get(request.headers.get("X-Faas-Instance-Name", ""))
        if box is None or box.status != "Ready":
            return web.Response(status=502, text="no such instance")
        planned = self.faults.get("gateway", []) + self.faults.get(request.match_info["tail"], [])
        fault = next((one for one in planned if one.times > 0), None)
        url = f"http://127.0.0.1:{box.port}/{request.match_info['tail']}"
        headers = {"X-Agentkit-Token": request.headers.get("X-Agentkit-Token", "")}
        try:
            if fault is not None:
                fault.times -= 1
                if not fault.after:
                    return web.Response(status=fault.status)
            async with self.session.post(url, params=request.query, data=body, headers=headers) as answer:
                text = await answer.read()
                done = answer.headers.get("X-Agentkit-Done", "")
                if fault is not None:
                    return web.Response(status=fault.status)
                return web.Response(status=answer.status, body=text, headers={"X-Agentkit-Done": done})
        except aiohttp.ClientError:
            return web.Response(status=502, text="the instance does not answer")


def _ok(result: dict[str, Any]) -> web.Response:
    return web.json_response({"ResponseMetadata": {"RequestId": secrets.token_hex(8)}, "Result": result})


def _error(status: int, code: str, message: str) -> web.Response:
    error = {"Code": code, "Message": message}
    return web.json_response({"ResponseMetadata": {"RequestId": "r", "Error": error}}, status=status)
