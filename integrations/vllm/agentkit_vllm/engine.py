"""vLLM's AsyncLLM from start to shutdown, with both on threads of their own: each takes seconds to minutes."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Protocol, TypeVar, cast

import anyio

from agentkit.errors import ConfigError, ModelError
from agentkit.extras import require

T = TypeVar("T")

LOGPROBS_MODES = ("processed_logprobs", "raw_logprobs")
STOP_S = 60.0
_READER_S = 5.0


class Engine(Protocol):
    """What is used of vLLM's AsyncLLM."""

    model_config: Any

    def generate(self, prompt: Any, sampling_params: Any, request_id: str, /) -> AsyncGenerator[Any, None]:
        """What is sampled, piece by piece; a cancel makes it abort the request."""
        ...

    async def abort(self, request_id: str, /) -> None:
        """End a request, whatever became of it."""
        ...

    def shutdown(self) -> None:
        """End its processes."""
        ...


def engine_arguments(model: str, engine: Mapping[str, object]) -> dict[str, object]:
    """The fields of vLLM's AsyncEngineArgs.

    Raises:
        ConfigError: a field is not for the caller to set, or would leave tokens without log-probabilities.
    """
    if "model" in engine:
        raise ConfigError(f"engine.model is set twice: {model!r} is the model; leave engine.model out")
    fields = {"model": model, "logprobs_mode": LOGPROBS_MODES[0], "disable_log_stats": True, **engine}
    if fields["logprobs_mode"] not in LOGPROBS_MODES:
        raise ConfigError(
            f"engine.logprobs_mode must be one of {', '.join(LOGPROBS_MODES)}, found {fields['logprobs_mode']!r}: "
            "a trajectory holds log-probabilities"
        )
    return fields


async def start_engine(fields: Mapping[str, object]) -> Engine:
    """A started AsyncLLM.

    Raises:
        ConfigError: vLLM has no such engine argument.
        MissingExtraError: vLLM is not installed.
        ModelError: the engine did not start.
    Cancellation: the start cannot be cut short; its thread goes on, and shuts down what it has started.
    """
    return await _in_thread(lambda: _start(fields), name="vllm start", unwanted=lambda engine: engine.shutdown())


async def stop_engine(engine: Engine) -> None:
    """Shut the engine down, and its processes.

    Cancellation: the shutdown goes on in its thread.
    """
    reader: asyncio.Task[object] | None = getattr(engine, "output_handler", None)
    if reader is not None:  # the loop goes on meanwhile: the task would take the shutdown for a crash, and log it
        reader.cancel()
        await asyncio.wait((reader,), timeout=_READER_S)
    with anyio.move_on_after(STOP_S):
        await _in_thread(engine.shutdown, name="vllm shutdown")


def _start(fields: Mapping[str, object]) -> Engine:
    arguments = require("vllm.engine.arg_utils", extra="vllm", purpose="VLLMModel").AsyncEngineArgs
    engines = require("vllm.v1.engine.async_llm", extra="vllm", purpose="VLLMModel").AsyncLLM
    try:
        given: Any = arguments(**fields)
    except TypeError as error:  # a name it does not have
        raise ConfigError(f"engine has an argument that this vLLM does not take: {error}") from error
    try:
        return cast("Engine", engines.from_engine_args(given))
    except Exception as error:
        said = str(error).strip() or "it gave no reason, see its log"
        raise ModelError(f"vLLM did not start {fields['model']!r}: {type(error).__name__}: {said:.2000}") from error


async def _in_thread(work: Callable[[], T], *, name: str, unwanted: Callable[[T], object] | None = None) -> T:
    """The result of `work`, on a daemon thread: one that hangs must not hold up the end of the process.

    `unwanted` gets the result, on a thread as well, where the caller has left in the meantime.
    """
    loop, ended, lock = asyncio.get_running_loop(), asyncio.Event(), threading.Lock()
    left = handed_over = False
    results: list[T] = []  # emptied by whoever takes it: frames of the thread outlive it in tracebacks that vLLM keeps
    faults: list[Exception] = []

    def run() -> None:
        nonlocal handed_over
        try:
            results.append(work())
        except BaseException as error:  # a SystemExit ends a thread without a word
            faults.append(error if isinstance(error, Exception) else ModelError(f"{name}: {error!r}"))
        with lock:
            handed_over = not left
        if handed_over:
            loop.call_soon_threadsafe(ended.set)
        else:
            discard()

    def discard() -> None:
        if unwanted is not None and results:
            unwanted(results.pop())

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        await ended.wait()
    except BaseException:
        with lock:
            left = True
        if handed_over:  # it was ready just then
            threading.Thread(target=discard, name=name, daemon=True).start()
        raise
    if faults:
        raise faults.pop()
    return results.pop()
