"""Many more requests than connections: all are answered, in order, and the loop keeps turning."""

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator
from typing import Any, Self

import pytest
from agentkit_openai import CompletionsModel

from agentkit.errors import ContextOverflow
from agentkit.protocols import FinishReason, TokenRequest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

REQUESTS = 16_000
CONNECTIONS = 256
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_LAST_ID = re.compile(rb'"prompt":\[(?:\d+,)*(\d+)\]')


class Echo(asyncio.Protocol):
    """As little of a server as will do: samples the last id of the prompt again, then the stop id."""

    open = 0
    most_open = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.buffer = bytearray()
        Echo.open += 1
        Echo.most_open = max(Echo.most_open, Echo.open)

    def connection_lost(self, error: Exception | None) -> None:
        Echo.open -= 1

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head = self.buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        length = _LENGTH.search(self.buffer[:head])
        size = int(length[1]) if length else 0
        if len(self.buffer) < head + 4 + size:
            return
        body = bytes(self.buffer[head + 4 :])
        is_list = self.buffer.startswith(b"GET")
        self.buffer.clear()
        if is_list:
            kind, answer = b"application/json", b'{"data":[{"id":"tiny","max_model_len":2048}]}'
        else:
            last_id = _LAST_ID.search(body)
            assert last_id is not None
            more = b',-1.0]},"token_ids":[%b,2]' if b'"max_tokens":1,' not in body else b']},"token_ids":[%b]'
            answer = (
                b'data: {"choices":[{"index":0,"text":"","finish_reason":"stop","logprobs":{"token_logprobs":[-1.5'
                + more % last_id[1]
                + b"}]}\n\ndata: [DONE]\n\n"
            )
            kind = b"text/event-stream"
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (kind, len(answer), answer)
        )


@pytest.fixture
async def base_url() -> AsyncIterator[str]:
    Echo.open = Echo.most_open = 0
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0, backlog=1024)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    server.close()


class Pulse:
    """How long the loop was held at most."""

    async def __aenter__(self) -> Self:
        self.longest_s = 0.0
        self._task = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _beat(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.01)
            self.longest_s = max(self.longest_s, time.perf_counter() - before - 0.01)


async def ask(model: CompletionsModel, number: int, answered: dict[int, list[int]]) -> None:
    ids: list[int] = []
    request = TokenRequest(f"task-{number}", [5, number], 2, 9, frozenset({2}), math.inf)
    finish = await model.sample_tokens(request, lambda chunk: ids.extend(chunk.token_ids))
    assert finish.reason is FinishReason.STOP
    answered[number] = ids


async def test_sixteen_thousand_at_once_are_all_answered(base_url: str) -> None:
    answered: dict[int, list[int]] = {}
    async with CompletionsModel(base_url, "tiny", max_connections=CONNECTIONS) as model:
        tasks = [asyncio.create_task(ask(model, 3 + number, answered)) for number in range(REQUESTS)]
        async with Pulse() as pulse:
            await asyncio.gather(*tasks)
        slots = model._transport.slots
        assert (slots.free, slots.waiting) == (CONNECTIONS, 0)
    assert answered == {3 + number: [3 + number, 2] for number in range(REQUESTS)}
    assert Echo.most_open <= CONNECTIONS
    assert pulse.longest_s < 3  # some 0.5 s at the start, where all tasks begin in one turn of the loop


async def test_half_of_them_may_give_up_on_the_way(base_url: str) -> None:
    answered: dict[int, list[int]] = {}
    async with CompletionsModel(base_url, "tiny", max_connections=CONNECTIONS) as model:
        tasks = [asyncio.create_task(ask(model, 3 + number, answered)) for number in range(REQUESTS)]
        async with Pulse() as pulse:
            while len(answered) < 1000:
                await asyncio.sleep(0.01)
            for task in tasks[1::2]:
                task.cancel()
            results: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
        slots = model._transport.slots
        assert (slots.free, slots.waiting) == (CONNECTIONS, 0)
    assert results[0::2] == [None] * (REQUESTS // 2)
    assert sum(isinstance(result, asyncio.CancelledError) for result in results) > REQUESTS // 4
    assert all(answered[3 + number] == [3 + number, 2] for number in range(0, REQUESTS, 2))
    assert pulse.longest_s < 3


async def test_a_long_conversation_costs_its_new_tokens(base_url: str) -> None:
    async with CompletionsModel(base_url, "tiny") as model:
        prompt = [7, *range(3, 1003)]
        written = []
        for turn in range(100):
            before = model.encoded_bytes
            request = TokenRequest("task-0", prompt, 10, 9, frozenset({2}), math.inf)
            sampled: list[int] = []
            await model.sample_tokens(request, lambda chunk, ids=sampled: ids.extend(chunk.token_ids))
            prompt += sampled + [1000 + turn] * 8
            written.append(model.encoded_bytes - before)
        assert max(written[1:]) <= 60
        with pytest.raises(ContextOverflow):
            await model.sample_tokens(TokenRequest("task-0", [5] * 2048, 0, 9, frozenset(), math.inf), print)
