"""A policy behind a chat API: messages in, a message out."""

import logging
import re
from collections.abc import Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Literal, Self

from attrs import frozen

from agentkit.errors import ConfigError, ContextOverflow, ModelError
from agentkit.protocols import EmitText, Finish, Json, MessageRequest
from agentkit_openai.chat_answer import ANSWER_CHARS, Answer
from agentkit_openai.chat_fields import Asked, Fields, LimitField, check_params
from agentkit_openai.chat_server import find_window
from agentkit_openai.chat_wire import ChatWire, encode
from agentkit_openai.events import read_bounded
from agentkit_openai.faults import Refused
from agentkit_openai.retry import Backoff, retried
from agentkit_openai.transport import Transport, header_value

_LOG = logging.getLogger("agentkit_openai")
_PATH = "chat/completions"
_NO_TOOLS = re.compile(
    r"--enable-auto-tool-choice|--tool-call-parser|tool choice requires|--jinja|(?:does|do) not support tools?\b"
    r"|tools? (?:is|are|use is) not supported",
    re.IGNORECASE,
)
_TOOL_FLAGS = (
    "the server takes no tools as it runs: start vLLM with --enable-auto-tool-choice --tool-call-parser <the model's "
    "format, such as hermes>, SGLang with --tool-call-parser, llama.cpp with --jinja"
)


@frozen
class ChatUsage:
    """What the answers of a model have cost so far, as its server counted: those it did not count are missing."""

    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class ChatModel:
    """A message-level policy: `model` behind the OpenAI-compatible chat API at `base_url`, as `http://host:8000/v1`.

    Open it with `async with` around all that uses it; it makes no connection before, and runs on asyncio. `params` go
    with every request, those of the agent over them. `max_tokens` bounds one answer; without it an answer may fill what
    the server's window leaves, or the budget, if that is smaller. A server that knows the bound by its other name is
    understood; `max_tokens_field` says it from the start. `stream=False` asks for whole replies, where a server cannot
    stream tool calls: nothing of an answer is then kept if a deadline cuts it. `reasoning_field` names the field in
    which the reasoning of earlier turns is sent back, where a server wants that. `session_header` carries the
    trajectory's id, the same for all its requests, for routers that keep a trajectory on one replica. `startup_s` is
    how long to wait for a server that is not up yet. The key is never read from the environment.

    Raises:
        ConfigError: an argument cannot work; the message names it.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Json] | None = None,
        max_tokens: int | None = None,
        max_tokens_field: Literal["auto"] | LimitField = "auto",
        stream: bool = True,
        reasoning_field: str | None = None,
        max_connections: int = 1024,
        retries: int = 6,
        connect_s: float = 10.0,
        startup_s: float = 30.0,
        session_header: str = "X-Session-ID",
        wire_cache_bytes: int = 256 << 20,
    ) -> None:
        name: object = model
        if not isinstance(name, str) or not name:
            raise ConfigError(f"model must be the name under which the server serves it, found {model!r}")
        if not startup_s >= 0:
            raise ConfigError(f"startup_s must be >= 0, found {startup_s!r}")
        self._transport = Transport(
            base_url, api_key=api_key, headers=headers, max_connections=max_connections, connect_s=connect_s
        )
        self._backoff = Backoff(retries=retries)
        self._fields = Fields(max_tokens=max_tokens, field=max_tokens_field, counts=stream)
        self._wire = ChatWire(reasoning_field=reasoning_field, cache_bytes=wire_cache_bytes)
        self._params = dict(params or {})
        check_params(self._params, where="params")
        self._model = model
        self._stream = stream
        self._startup_s = startup_s
        self._session_header = session_header
        self._tries = count()
        self._head = b'{"model":' + encode(model, what="model") + b',"messages":['
        self._where = f"POST {self._transport.url(_PATH)}"
        self._usage = ChatUsage()
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        return f"ChatModel({self._transport.base_url!r}, {self._model!r})"

    @property
    def usage(self) -> ChatUsage:
        """What the answers have cost so far."""
        return self._usage

    @property
    def encoded_bytes(self) -> int:
        """How many bytes of messages and tools were encoded so far: it grows with what is new in each turn only."""
        return self._wire.encoded_bytes

    async def __aenter__(self) -> Self:
        """Open the connections, and ask the server for its models, until `startup_s` if it is not up yet.

        Raises:
            ConfigError: the server does not serve the model, or this is not asyncio.
            MissingExtraError: aiohttp is not installed.
            ModelError: the server is not up, or does not let us in.
        Cancellation: nothing is left open.
        """
        await self._transport.__aenter__()
        try:
            self._fields.window = await find_window(self._transport, self._model, startup_s=self._startup_s)
        except BaseException:
            await self._transport.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the connections.

        Cancellation: they are closed all the same.
        """
        await self._transport.__aexit__(kind, error, traceback)

    async def sample_message(self, request: MessageRequest, emit: EmitText, /) -> Finish:
        """Push the answer's text into `emit`, as it arrives, and return it whole.

        Calls that cannot run, their arguments being no JSON object, say, are among the attempts of the result, as
        faults. While nothing was pushed, what may pass is tried again, until the deadline.

        Raises:
            ContextOverflow: no room for one more token.
            ModelError: no connection, a refusal, a broken answer; not retryable once all tries are spent.
            ConfigError: the params of the request hold what the client sets itself.
        Cancellation: the connection is closed, so that the server stops; what was pushed is kept.
        """
        if request.max_tokens < 1:
            raise ContextOverflow(f"max_tokens must be >= 1, found {request.max_tokens!r}")
        check_params(request.params, where="params of the agent")
        answer = self._answer(request, emit)

        async def ask() -> Finish:
            nonlocal answer
            asked = self._fields.ask(request.max_tokens)
            while True:
                answer = self._answer(request, emit)
                try:
                    return await self._ask(request, asked, answer)
                except ModelError as error:
                    if answer.emitted:
                        raise
                    other = self._fields.learn(asked, error, request.max_tokens)
                    if other is None:
                        explained = self._explained(request, error)
                        if explained is error:  # no error is its own cause: who follows causes would not come to an end
                            raise
                        raise explained from error
                    asked = other

        finish = await retried(ask, backoff=self._backoff, deadline=request.deadline, began=lambda: answer.emitted)
        self._note(answer)
        return finish

    def _answer(self, request: MessageRequest, emit: EmitText) -> Answer:
        return Answer(emit, request.tools, where=self._where, secrets=self._transport.secrets)

    async def _ask(self, request: MessageRequest, asked: Asked, answer: Answer) -> Finish:
        body = self._body(request, asked)
        session = header_value(request.request_id)
        # Servers name a request by its id, and one that a lost connection left behind may still be running there when
        # the next begins: so there is one id for each try, beside the one of the trajectory for routers.
        headers = {self._session_header: session, "X-Request-Id": f"{session}.{next(self._tries)}"}
        if self._stream:
            async with self._transport.stream(_PATH, body, headers=headers) as events:
                async for event in events:
                    answer.feed(event)
                    events.is_complete = answer.has_ended
        else:
            answer.feed(await self._reply(body, headers))
        return answer.finish()

    def _body(self, request: MessageRequest, asked: Asked) -> list[bytes]:
        messages, tools = self._wire.pieces(request.request_id, request.messages, request.tools)
        fields = {**self._params, **request.params, "stream": self._stream, **asked.wire()}
        rest = encode(fields, what="params")
        tools_json = b'"tools":' + tools + b"," if tools else b""
        return [self._head, *messages, b"]," + tools_json + rest[1:]]

    async def _reply(self, body: Sequence[bytes], headers: Mapping[str, str]) -> bytes:
        await self._transport.slots.acquire()
        try:
            response = await self._transport.open("POST", _PATH, body, headers)
            try:
                return await read_bounded(response, ANSWER_CHARS, where=self._where)
            finally:
                response.close()
        finally:
            self._transport.slots.release()

    def _explained(self, request: MessageRequest, error: ModelError) -> ModelError:
        """The error, with the flags that are missing where the server takes no tools: trying again is no use then."""
        if isinstance(error, Refused) and request.tools and _NO_TOOLS.search(str(error)):
            return ModelError(f"{error}; {_TOOL_FLAGS}")
        return error

    def _note(self, answer: Answer) -> None:
        counted = answer.usage or {}
        before = self._usage
        self._usage = ChatUsage(
            before.answers + 1,
            before.prompt_tokens + _count(counted.get("prompt_tokens")),
            before.completion_tokens + _count(counted.get("completion_tokens")),
        )
        if answer.has_raw_call:
            self._warn(
                "the answer of %r holds a raw <tool_call>, which is answered as a format error: either the call was "
                "malformed, or the server runs without a parser for this model's calls: see --tool-call-parser",
                self._model,
            )
        if answer.unknown_reason is not None:
            self._warn("the finish reason %r is not known, and counts as 'stop'", answer.unknown_reason)

    def _warn(self, message: str, *values: object) -> None:
        if message not in self._warned:  # once a model: thousands of answers may be alike
            self._warned.add(message)
            _LOG.warning(message, *values)


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
