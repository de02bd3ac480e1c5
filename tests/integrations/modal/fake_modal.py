"""Modal's control plane and worker, as much of both as sandboxes need, on one port of the loopback.

Modal's own client talks to it. It checks what every call carries, and runs the programs for real, each sandbox in a
bubblewrap sandbox. `faults` makes calls fail or linger, before or after they have done their work.
"""

import asyncio
import base64
import json
import secrets
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from attrs import define, field
from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from grpclib.server import Server, Stream
from modal_proto import api_pb2, task_command_router_pb2
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

from agentkit.protocols import OutputCap, SandboxSpec
from agentkit.sandbox import BwrapBackend, EmbeddedSandbox

TOKEN_ID, TOKEN_SECRET = "ak-id", "as-secret-of-the-tests"
RESULT = api_pb2.GenericResult


def jwt() -> str:
    def part(body: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(body).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none'})}.{part({'exp': time.time() + 3600})}.{secrets.token_hex(8)}"


@define(eq=False)
class Exec:
    """One program in a sandbox."""

    request: Any
    stdin: bytearray = field(factory=bytearray)
    eof: asyncio.Event = field(factory=asyncio.Event)
    output: bytearray = field(factory=bytearray)
    changed: asyncio.Event = field(factory=asyncio.Event)
    exit_code: int | None = None

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


@define(eq=False)
class Box:
    """One sandbox as the fake cloud knows it."""

    id: str
    name: str
    definition: Any
    tags: dict[str, str]
    inner: EmbeddedSandbox
    deadline: float
    token: str
    jwt: str
    status: int = RESULT.GENERIC_STATUS_UNSPECIFIED
    execs: dict[str, Exec] = field(factory=dict)
    tasks: list[asyncio.Task[None]] = field(factory=list)

    @property
    def task_id(self) -> str:
        return f"ta-{self.id.removeprefix('sb-')}V"


@define
class Fault:
    """What happens to the next `times` calls of an RPC."""

    status: Status | None = None
    linger_s: float = 0.0
    after: bool = False
    """After the work is done, not before: the answer is what is lost."""
    times: int = 1


class _Server(Server):
    """One that can hang up: grpclib's leaves the connections to the clients."""

    def _protocol_factory(self) -> Any:
        protocol = super()._protocol_factory()
        self.protocols = [*getattr(self, "protocols", []), protocol]
        return protocol

    def hang_up(self) -> None:
        for protocol in getattr(self, "protocols", []):
            transport = getattr(getattr(protocol, "connection", None), "_transport", None)
            if transport is not None:  # not closed by the client
                transport.abort()


class FakeModal:
    """The server, in a thread of its own. `boxes` is every sandbox there ever was, by id."""

    def __init__(self) -> None:
        self.boxes: dict[str, Box] = {}
        self.faults: dict[str, list[Fault]] = {}
        self.calls: list[str] = []
        self.complaints: list[str] = []
        self.auth = jwt()
        self.apps: dict[str, str] = {}
        self.images: dict[str, Any] = {}
        self.port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(20)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def live(self) -> list[Box]:
        return [box for box in self.boxes.values() if box.status == RESULT.GENERIC_STATUS_UNSPECIFIED]

    def end(self, box: Box, status: int) -> None:
        """End a sandbox from outside, as the cloud would."""
        asyncio.run_coroutine_threadsafe(self.stop(box, status), self._loop).result(20)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(20)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        async with BwrapBackend() as self.backend:
            server = _Server([control_plane(self), Router(self)])
            await server.start("127.0.0.1", 0)
            self.port = server._server.sockets[0].getsockname()[1]
            ticker = asyncio.create_task(self._lifetimes())
            self._ready.set()
            await self._stopping.wait()
            ticker.cancel()
            server.close()
            await server.wait_closed()
            server.hang_up()
            await asyncio.sleep(0.1)  # transports close at the loop's next turn
            for box in self.live():
                await self.stop(box, RESULT.GENERIC_STATUS_TERMINATED)

    async def _lifetimes(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            for box in self.live():
                if time.monotonic() > box.deadline:
                    await self.stop(box, RESULT.GENERIC_STATUS_TIMEOUT)

    async def stop(self, box: Box, status: int) -> None:
        if box.status == RESULT.GENERIC_STATUS_UNSPECIFIED:
            box.status = status
            await box.inner.close()
            for program in box.execs.values():
                program.eof.set()
            await asyncio.gather(*box.tasks, return_exceptions=True)
            for program in box.execs.values():
                if program.exit_code is None:
                    program.exit_code = 137
                program.wake()

    def check(self, holds: object, what: str) -> None:
        if not holds:
            self.complaints.append(what)
            raise GRPCError(Status.INVALID_ARGUMENT, what)

    async def call(self, name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        self.calls.append(name)
        fault = next((one for one in self.faults.get(name, []) if one.times > 0), None)
        if fault is not None:
            fault.times -= 1
            if fault.after:
                await work()
            await asyncio.sleep(fault.linger_s)
            if fault.status is not None:
                raise GRPCError(fault.status, f"as planned for {name}")
            if fault.after:
                raise GRPCError(Status.UNAVAILABLE, "the answer was lost")
        return await work()

    def box(self, sandbox_id: str) -> Box:
        if sandbox_id not in self.boxes:
            raise GRPCError(Status.NOT_FOUND, f"no sandbox {sandbox_id}")
        return self.boxes[sandbox_id]

    def result(self, box: Box) -> Any:
        return RESULT(status=box.status)

    async def create(self, request: Any) -> Any:
        definition = request.definition
        self.check(request.app_id in self.apps.values(), f"app {request.app_id!r} is not known")
        self.check(definition.image_id in self.images, f"image {definition.image_id!r} is not known")
        self.check(0 < definition.timeout_secs <= 86_400, f"timeout_secs is {definition.timeout_secs}")
        self.check(not definition.secret_ids and not request.secret_sources, "a secret was sent along")
        tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        self.check({"agentkit-owner", "agentkit-deadline"} <= set(tags), f"tags are {sorted(tags)}")
        if any(box.name == definition.name for box in self.live()):
            raise GRPCError(Status.ALREADY_EXISTS, f"there is a sandbox {definition.name!r}")
        inner = await self.backend.start(SandboxSpec(cwd=tags.get("cwd", "/work")))
        key = "".join(secrets.choice("0123456789abcdef") for _ in range(26))
        deadline = time.monotonic() + definition.timeout_secs
        box = Box(f"sb-{key}", definition.name, definition, tags, inner, deadline, secrets.token_hex(8), jwt())
        self.boxes[box.id] = box
        access = api_pb2.CommandRouterAccess(url=self.url, jwt=box.jwt)
        return api_pb2.SandboxCreateV2Response(
            sandbox_id=box.id, task_id=box.task_id, sandbox_token=box.token, command_router_access=access
        )

    def named(self, request: Any) -> Any:
        self.check(request.app_name in self.apps, f"app {request.app_name!r} is not known")
        for box in self.live():
            if box.name == request.sandbox_name:
                return api_pb2.SandboxGetFromNameResponse(sandbox_id=box.id)
        raise GRPCError(Status.NOT_FOUND, f"no sandbox {request.sandbox_name!r}")


def control_plane(fake: FakeModal) -> Any:
    """All RPCs of the control plane; those that sandboxes need do their work, the others are unimplemented."""

    async def hello(_: Any) -> Any:
        return api_pb2.ClientHelloResponse()

    async def token(_: Any) -> Any:
        return api_pb2.AuthTokenGetResponse(token=fake.auth)

    async def app(request: Any) -> Any:
        app_id = fake.apps.setdefault(request.app_name, f"ap-{secrets.token_hex(11)}")
        return api_pb2.AppGetOrCreateResponse(app_id=app_id)

    async def environment(request: Any) -> Any:
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06", webhook_suffix="")
        metadata = api_pb2.EnvironmentMetadata(name=request.deployment_name or "main", settings=settings)
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=metadata)

    async def image(request: Any) -> Any:
        image_id = f"im-{secrets.token_hex(11)}"
        fake.images[image_id] = list(request.image.dockerfile_commands)
        done = RESULT(status=RESULT.GENERIC_STATUS_SUCCESS)
        return api_pb2.ImageGetOrCreateResponse(image_id=image_id, result=done, metadata=api_pb2.ImageMetadata())

    async def create(request: Any) -> Any:
        return await fake.create(request)

    async def named(request: Any) -> Any:
        return fake.named(request)

    async def named_before(request: Any) -> Any:
        raise GRPCError(Status.NOT_FOUND, f"no sandbox of the first kind {request.sandbox_name!r}")

    async def wait(request: Any) -> Any:
        return api_pb2.SandboxWaitResponse(result=fake.result(fake.box(request.sandbox_id)))

    async def terminate(request: Any) -> Any:
        await fake.stop(fake.box(request.sandbox_id), RESULT.GENERIC_STATUS_TERMINATED)
        return api_pb2.SandboxTerminateResponse()

    async def task(request: Any) -> Any:
        box = fake.box(request.sandbox_id)
        if box.status != RESULT.GENERIC_STATUS_UNSPECIFIED:
            return api_pb2.SandboxGetTaskIdResponse(task_result=fake.result(box))
        return api_pb2.SandboxGetTaskIdResponse(task_id=box.task_id)

    async def access(request: Any) -> Any:
        box = fake.box(request.sandbox_id)
        if box.status != RESULT.GENERIC_STATUS_UNSPECIFIED:
            raise GRPCError(Status.FAILED_PRECONDITION, "the sandbox has ended")
        return api_pb2.SandboxGetCommandRouterAccessResponse(jwt=box.jwt, url=fake.url)

    works: dict[str, Callable[[Any], Awaitable[Any]]] = {
        "ClientHello": hello,
        "AuthTokenGet": token,
        "AppGetOrCreate": app,
        "EnvironmentGetOrCreate": environment,
        "ImageGetOrCreate": image,
        "SandboxCreateV2": create,
        "SandboxGetFromNameV2": named,
        "SandboxGetFromName": named_before,
        "SandboxWaitV2": wait,
        "SandboxTerminateV2": terminate,
        "SandboxGetTaskIdV2": task,
        "SandboxGetCommandRouterAccess": access,
    }

    def method(name: str) -> Any:
        async def serve(_self: Any, stream: Stream[Any, Any]) -> None:
            request = await stream.recv_message()
            if name not in works:
                fake.complaints.append(f"{name} is not expected")
                raise GRPCError(Status.UNIMPLEMENTED, name)
            metadata = stream.metadata or {}
            known = (metadata.get("x-modal-token-id"), metadata.get("x-modal-token-secret")) == (TOKEN_ID, TOKEN_SECRET)
            if not known:
                raise GRPCError(Status.UNAUTHENTICATED, "no such token")
            if name.startswith("Sandbox") and name != "SandboxGetFromName":
                fake.check(metadata.get("x-modal-auth-token") == fake.auth, f"{name} has no auth token")
            await stream.send_message(await fake.call(name, lambda: works[name](request)))

        return serve

    names = [name for name in vars(ModalClientBase) if getattr(vars(ModalClientBase)[name], "__isabstractmethod__", 0)]
    return type("ControlPlane", (ModalClientBase,), {name: method(name) for name in names})()


class Router:
    """The worker's side: programs in a sandbox."""

    def __init__(self, fake: FakeModal) -> None:
        self._fake = fake

    def __mapping__(self) -> Any:
        cls = TaskCommandRouterBase
        names = [name for name in vars(cls) if getattr(vars(cls)[name], "__isabstractmethod__", 0)]
        body = {name: getattr(type(self), name, _unimplemented) for name in names}
        instance: Any = type("Bound", (cls,), {**body, "_fake": self._fake, "_box": Router._box})()
        return instance.__mapping__()

    def _box(self, stream: Stream[Any, Any], task_id: str) -> Box:
        box = next((box for box in self._fake.boxes.values() if box.task_id == task_id), None)
        if box is None:
            raise GRPCError(Status.NOT_FOUND, f"no task {task_id}")
        if (stream.metadata or {}).get("authorization") != f"Bearer {box.jwt}":
            raise GRPCError(Status.UNAUTHENTICATED, "no such jwt")
        if box.status != RESULT.GENERIC_STATUS_UNSPECIFIED:
            raise GRPCError(Status.NOT_FOUND, "the task has ended")
        return box

    async def TaskExecStart(self, stream: Stream[Any, Any]) -> None:
        request = await stream.recv_message()
        box = self._box(stream, request.task_id)
        self._fake.check(sum(map(len, request.command_args)) < 2**16, "arguments are too long")
        self._fake.check(not request.secret_ids and not request.secret_sources, "a secret was sent along")

        async def work() -> Any:
            if request.exec_id not in box.execs:
                program = box.execs[request.exec_id] = Exec(request)
                box.tasks.append(asyncio.create_task(_run(box, program)))
            return task_command_router_pb2.TaskExecStartResponse()

        await stream.send_message(await self._fake.call("TaskExecStart", work))

    async def TaskExecStdinWrite(self, stream: Stream[Any, Any]) -> None:
        request = await stream.recv_message()
        program = self._box(stream, request.task_id).execs[request.exec_id]

        async def work() -> Any:
            self._fake.check(request.offset <= len(program.stdin), "a gap in the input")
            program.stdin[request.offset :] = request.data
            if request.eof:
                program.eof.set()
            return task_command_router_pb2.TaskExecStdinWriteResponse()

        await stream.send_message(await self._fake.call("TaskExecStdinWrite", work))

    async def TaskExecStdioRead(self, stream: Stream[Any, Any]) -> None:
        request = await stream.recv_message()
        box = self._box(stream, request.task_id)
        program, offset = box.execs[request.exec_id], request.offset

        async def work() -> None:
            pass

        await self._fake.call("TaskExecStdioRead", work)
        while True:
            changed = program.changed
            while offset < len(program.output):
                piece = bytes(program.output[offset : offset + 65_536])
                offset += len(piece)
                await stream.send_message(task_command_router_pb2.TaskExecStdioReadResponse(data=piece))
            if program.exit_code is not None:
                if box.status != RESULT.GENERIC_STATUS_UNSPECIFIED:
                    raise GRPCError(Status.NOT_FOUND, "the task has ended")
                return
            await changed.wait()

    async def TaskExecWait(self, stream: Stream[Any, Any]) -> None:
        request = await stream.recv_message()
        program = self._box(stream, request.task_id).execs[request.exec_id]
        while program.exit_code is None:
            await program.changed.wait()
        await stream.send_message(task_command_router_pb2.TaskExecWaitResponse(code=program.exit_code))


async def _unimplemented(_self: Any, _stream: Stream[Any, Any]) -> None:
    raise GRPCError(Status.UNIMPLEMENTED, "not by this server")


async def _run(box: Box, program: Exec) -> None:
    def take(data: bytes) -> None:
        program.output.extend(data)
        program.wake()

    await program.eof.wait()
    code = 137
    try:
        ended = await box.inner.exec(
            tuple(program.request.command_args), stdin=bytes(program.stdin), cap=OutputCap(0, 0), on_output=take
        )
        code = ended.exit_code
    except Exception:  # the sandbox has ended under it
        pass
    finally:
        program.exit_code = code
        program.wake()


__all__ = ["RESULT", "TOKEN_ID", "TOKEN_SECRET", "Box", "Empty", "FakeModal", "Fault"]
