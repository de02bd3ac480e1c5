"""Requests on an event loop, sampled together in a thread: aborting, cancelling, pausing, exchanging weights."""
# pyright: basic, reportMissingImports=false
# torch is not installed where pyright runs.

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from attrs import define, field, frozen

from agentkit_verl.cpu.batch import Batch, Row
from agentkit_verl.cpu.sampling import Sampling


@frozen
class Generated:
    """What was sampled for a request: to its end, or until it was aborted.

    `versions` are the weights of the first and the last token; both those of now where there is no token.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    aborted: bool
    versions: tuple[int | None, int | None]


@frozen
class EngineState:
    """Counts since the engine began, and what it is doing.

    `calls` are those that `completed`, were `aborted` or `cancelled` or failed with the model, and those under way.
    `generated` counts tokens, also those that came too late for a request that had been aborted.
    """

    calls: int
    completed: int
    aborted: int
    cancelled: int
    generated: int
    steps: int
    largest_batch: int
    loads: int
    running: int
    parked: int
    paused: bool
    version: int | None


@define(eq=False)
class _Request:
    id: str
    row: Row
    done: asyncio.Future[bool]
    """Whether it came to its end: False where it was aborted."""
    logprobs: list[float] = field(factory=list)
    tokens: list[int] = field(factory=list)
    versions: list[int | None] = field(factory=list)


@define(eq=False)
class Engine:
    """Runs a `Batch` for whoever asks on one event loop. Use all of it on that loop.

    The model computes in a thread of its own, so that the loop answers meanwhile. Requests that are there at the same
    time share each step; one that comes later joins at the next.
    """

    batch: Batch
    _thread: ThreadPoolExecutor = field(
        factory=lambda: ThreadPoolExecutor(max_workers=1, thread_name_prefix="agentkit-cpu"), init=False
    )
    _requests: dict[str, _Request] = field(factory=dict, init=False)
    _running: dict[int, _Request] = field(factory=dict, init=False)
    _parked: dict[str, _Request] = field(factory=dict, init=False)
    _joins: list[_Request] = field(factory=list, init=False)
    _leaves: list[Row] = field(factory=list, init=False)
    _pump: asyncio.Task[None] | None = field(default=None, init=False)
    _paused: bool = field(default=False, init=False)
    _rejecting: bool = field(default=False, init=False)
    _counts: dict[str, int] = field(
        factory=lambda: dict.fromkeys(
            ("calls", "completed", "aborted", "cancelled", "generated", "steps", "largest_batch", "loads"), 0
        ),
        init=False,
    )

    async def generate(self, request_id: str, prompt: list[int], sampling: Sampling) -> Generated:
        """Samples after `prompt`.

        While the engine is paused the request waits for `resume`; one that rejects hands it back, aborted and empty.

        Raises:
            ValueError: The prompt is empty, or a request of this name is under way.

        Cancellation: the request leaves the batch before its next token.
        """
        if not prompt:
            raise ValueError("the prompt is empty: there is nothing to sample after")
        if request_id in self._requests:
            raise ValueError(f"request {request_id!r} is under way already")
        self._counts["calls"] += 1
        request = _Request(request_id, Row.of(prompt, sampling), asyncio.get_running_loop().create_future())
        self._requests[request_id] = request
        if not self._paused:
            self._start(request)
        elif self._rejecting:
            self.abort(request_id)
        else:
            self._parked[request_id] = request
        try:
            ended = await request.done
        except asyncio.CancelledError:
            self._counts["cancelled"] += request.done.cancelled()  # it may just have ended in another way
            raise
        finally:
            self._forget(request)
        now = self.batch.version
        first, last = (request.versions[0], request.versions[-1]) if request.versions else (now, now)
        return Generated(tuple(request.tokens), tuple(request.logprobs), not ended, (first, last))

    def abort(self, request_id: str) -> bool:
        """Ends a request with what it has; False when there is none of this name."""
        request = self._requests.get(request_id)
        if request is None or request.done.done():
            return False
        self._counts["aborted"] += 1
        request.done.set_result(False)
        self._forget(request)
        return True

    async def pause(self, *, reject: bool = False) -> list[str]:
        """Aborts the running requests and lets no other run until `resume`; returns once the model is still.

        Args:
            reject: Hand back requests that come meanwhile, and those that wait already, instead of letting them wait.

        Returns:
            The names of those that were aborted.
        """
        self._paused, self._rejecting = True, reject
        aborted = [request.id for request in [*self._running.values()] if self.abort(request.id)]
        if reject:
            aborted += [name for name in [*self._parked] if self.abort(name)]
        await self.drain()
        return aborted

    def resume(self) -> None:
        """Lets requests run again, those first that have waited."""
        self._paused = self._rejecting = False
        waiting, self._parked = self._parked, {}
        for request in waiting.values():
            self._start(request)

    async def drain(self) -> None:
        """Returns once nothing is running; requests that wait for `resume` do not count."""
        while self._pump is not None:
            await asyncio.shield(self._pump)

    async def load(self, weights: Mapping[str, Any], version: int | None = None) -> None:
        """Replaces weights between two steps. Requests that are running go on with the new ones.

        Raises:
            ValueError: See `Batch.load`.
        """
        await asyncio.get_running_loop().run_in_executor(self._thread, self.batch.load, weights, version)
        self._counts["loads"] += 1

    def state(self) -> EngineState:
        """What the engine has done and is doing."""
        return EngineState(
            **self._counts,
            running=len(self._running),
            parked=len(self._parked),
            paused=self._paused,
            version=self.batch.version,
        )

    def close(self) -> None:
        """Ends the thread. Requests that are under way are not answered."""
        self._thread.shutdown(wait=True)

    def _start(self, request: _Request) -> None:
        self._running[id(request.row)] = request
        self._joins.append(request)
        if self._pump is None:
            self._pump = asyncio.get_running_loop().create_task(self._run())

    def _forget(self, request: _Request) -> None:
        """Drops a request wherever it stands; a second time nothing is left to do."""
        if self._requests.get(request.id) is request:
            del self._requests[request.id]
        self._parked.pop(request.id, None)
        if self._running.pop(id(request.row), None) is None:
            return
        if request in self._joins:
            self._joins.remove(request)
        else:
            self._leaves.append(request.row)

    async def _run(self) -> None:
        """Steps while there are requests."""
        loop = asyncio.get_running_loop()
        try:
            while self._running or self._leaves:
                joins, self._joins = [request.row for request in self._joins], []
                leaves, self._leaves = self._leaves, []
                sampled = await loop.run_in_executor(self._thread, self.batch.step, joins, leaves)
                self._counts["steps"] += 1
                self._counts["generated"] += len(sampled)
                self._counts["largest_batch"] = max(self._counts["largest_batch"], len(sampled))
                for one in sampled:
                    request = self._running.get(id(one.row))
                    if request is None or request.done.done():
                        continue  # it was aborted or cancelled while this token was computed
                    request.tokens.append(one.token)
                    request.logprobs.append(one.logprob)
                    request.versions.append(one.version)
                    if one.last:
                        del self._running[id(one.row)]
                        self._counts["completed"] += 1
                        request.done.set_result(True)
        except BaseException as error:
            self.batch.clear()
            self._joins, self._leaves = [], []
            failed, self._running = list(self._running.values()), {}
            for request in failed:
                if not request.done.done():
                    request.done.set_exception(_failure(error))
            if not isinstance(error, Exception):
                raise
        finally:
            self._pump = None


def _failure(error: BaseException) -> RuntimeError:
    failure = RuntimeError(f"the model failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
