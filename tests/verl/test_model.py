"""verl's servers as a model: what they are sent, how much they may sample, and how their answers are read."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from agentkit_verl.model import TAKEN, ServerModel, Taken
from agentkit_verl.outputs import RowLimits, rows_of
from agentkit_verl.rows import RowInfo
from agentkit_verl.settings import VerlSettings
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit import Agent, Budget, ExitReason, OutcomePolicy, Task, Trajectory, user
from agentkit.errors import ContextOverflow, ModelError
from agentkit.parsing import HermesParser
from agentkit.protocols import EmitTokens, Finish, FinishReason, TokenChunk, TokenRequest
from agentkit.testing import virtual_asyncio
from agentkit.tokens import byte_chatml

RENDERER = byte_chatml()
END = RENDERER.tokenizer.control["<|im_end|>"]
STOPS = frozenset({END})


def output(ids: Sequence[int], stop: str | None = "completed", **more: Any) -> Any:
    """A `TokenOutput`."""
    values = {"log_probs": [-0.5] * len(ids), "routed_experts": None, "num_preempted": None, "global_steps": 1, **more}
    extra = {"global_steps": values.pop("global_steps")}
    return SimpleNamespace(token_ids=list(ids), stop_reason=stop, extra_fields=extra, **values)


class Client:
    """Answers what it is told to, keeps within `max_tokens`, and remembers what it was sent."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.sent: list[list[int]] = []
        self.params: dict[str, Any] = {}

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        self.sent.append(list(prompt_ids))
        self.params = sampling_params
        await asyncio.sleep(0)
        answer = self.answer(len(self.sent)) if callable(self.answer) else self.answer
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, list):
            return output(answer[: sampling_params["max_tokens"]])
        return answer


class Checked:
    """A model between a rollout and the one under test: what was sent must be the chain."""

    def __init__(self, model: ServerModel, client: Client) -> None:
        self.model, self.client = model, client
        self.renderer, self.parser = RENDERER, HermesParser()

    async def sample_tokens(self, request: TokenRequest, emit: EmitTokens, /) -> Finish:
        chain = list(request.prompt_ids)
        task = asyncio.current_task()
        assert task is not None
        before = len(self.client.sent)
        try:
            return await self.model.sample_tokens(request, emit)
        finally:
            if len(self.client.sent) > before:
                assert chain in self.client.sent[before:]


OPS = st.one_of(
    st.tuples(st.just("sample")),
    st.tuples(st.just("sample")),
    st.tuples(st.just("candidates"), st.integers(1, 3), st.integers(0, 2)),
    st.tuples(st.just("observe"), st.integers(1, 30)),
    st.tuples(st.just("rollback"), st.integers(1, 2)),
    st.tuples(st.just("mark")),
    st.tuples(st.just("return"), st.integers(0, 3)),
    st.tuples(st.just("compact"), st.integers(0, 4)),
    st.tuples(st.just("child")),
)


def loop_of(program: Sequence[tuple[Any, ...]], helper: Agent) -> Callable[[Any], Awaitable[None]]:
    async def loop(rollout: Any) -> None:
        marks: list[Any] = []
        for name, *values in program:
            if name in ("sample", "candidates") and rollout.messages[-1].role == "assistant":
                rollout.observe("On.")
            if name == "sample":
                await rollout.sample()
            elif name == "candidates":
                actions = await rollout.candidates(values[0])
                rollout.take(actions[values[1] % len(actions)])
            elif name == "observe":
                rollout.observe("x" * values[0])
            elif name == "rollback" and sum(m.role == "assistant" for m in rollout.messages) > 1:
                rollout.rollback(values[0])
            elif name == "mark":
                marks.append(rollout.bookmark())
            elif name == "return" and marks:
                rollout.back_to(marks[values[0] % len(marks)])
            elif name == "compact":
                rollout.rewrite([*rollout.messages[: values[0]], user("In short.")])
            elif name == "child":
                await rollout.child(helper, "Help.")

    return loop


async def _twice(rollout: Any) -> None:
    await rollout.sample()
    rollout.observe("More.")
    await rollout.sample()


async def play(program: Sequence[tuple[Any, ...]], limits: RowLimits) -> None:
    window = limits.prompt_length + limits.response_length
    client = Client(lambda number: [*b"abcdefgh"[: number % 9], END])
    model = ServerModel(
        client, prompt_length=limits.prompt_length, response_length=limits.response_length, window=window
    )
    checked = Checked(model, client)
    budget = Budget(max_turns=1000, max_tokens=window)
    helper = Agent(checked, name="helper", loop=_twice, budget=budget)
    agent = Agent(checked, loop=loop_of(program, helper), budget=budget)

    async def session(number: int) -> tuple[Trajectory, Taken]:
        taken = Taken()
        TAKEN.set(taken)
        return await agent.run(Task(f"t{number}", "Go."), index=number), taken

    sessions = await asyncio.gather(*(asyncio.create_task(session(number)) for number in range(2)))
    assert len(client.sent) == 0 or model._wires
    for trajectory, taken in sessions:
        ends = (ExitReason.FINISHED, ExitReason.TOKEN_LIMIT, ExitReason.INTERNAL_ERROR)
        assert trajectory.exit_reason in ends, trajectory.error
        assert trajectory.exit_reason is not ExitReason.INTERNAL_ERROR or "assert" not in str(trajectory.error)
        rows = rows_of(trajectory, limits=limits, settings=VerlSettings(), info=RowInfo(task_id="t", session=0))
        # what a server is allowed to sample is what a row holds: nothing was sampled in vain
        assert all(row.info.counts["cut"] == 0 for row in rows)
        model.forget(taken)
    assert not model._wires


@given(
    st.lists(OPS, max_size=12),
    st.builds(RowLimits, prompt_length=st.sampled_from([10, 60, 400]), response_length=st.integers(1, 300)),
)
@example(  # back to a chain after another was opened
    [("sample",), ("mark",), ("compact", 0), ("sample",), ("return", 0), *[("sample",)] * 6],
    RowLimits(prompt_length=400, response_length=60),
)
def test_servers_are_sent_the_chain_and_sample_what_a_row_holds(
    program: list[tuple[Any, ...]], limits: RowLimits
) -> None:
    backend, options = virtual_asyncio()
    anyio.run(play, program, limits, backend=backend, backend_options=options)


# one request at a time


async def ask(
    answer: Any,
    *,
    prompt: Sequence[int] = (1, 2, 3),
    params: Any = None,
    max_tokens: int = 100,
    response: int = 50,
    **options: Any,
) -> tuple[Finish, list[TokenChunk], Client]:
    client, chunks = Client(answer), list[TokenChunk]()
    model = ServerModel(client, prompt_length=8, response_length=response, **options)
    request = TokenRequest("r", list(prompt), len(prompt), max_tokens, STOPS, 1e9, params or {})
    return await model.sample_tokens(request, chunks.append), chunks, client


@pytest.mark.parametrize(
    ("answer", "params", "finish"),
    [
        (output([5, END]), {}, Finish(FinishReason.STOP)),
        (output([5, 6], "length"), {}, Finish(FinishReason.LENGTH)),
        (output([5, END], "length"), {}, Finish(FinishReason.LENGTH)),
        (output([5] * 50), {}, Finish(FinishReason.LENGTH)),  # some servers say "completed" at the limit, too
        (output([5] * 49 + [END]), {}, Finish(FinishReason.STOP)),
        (output([5], "aborted"), {}, Finish(FinishReason.ABORTED)),
        (output([], "abort"), {}, Finish(FinishReason.ABORTED)),
        (output([5, 6]), {"stop": ["</a>"]}, Finish(FinishReason.STOP, stop_string="</a>")),
        (output([5, 6]), {"stop": "</a>"}, Finish(FinishReason.STOP, stop_string="</a>")),
        (output([5, 6]), {"stop": ["a", "b"]}, Finish(FinishReason.STOP)),
        (output([5, END]), {"stop": ["</a>"]}, Finish(FinishReason.STOP)),
    ],
)
async def test_how_an_answer_ended(answer: Any, params: Any, finish: Finish) -> None:
    assert (await ask(answer, params=params))[0] == finish


async def test_what_is_sent_and_what_is_pushed() -> None:
    _, chunks, client = await ask(output([5, END], global_steps=7), params={"temperature": 0.5, "top_k": -1})
    assert client.sent == [[1, 2, 3]]
    assert client.params == {"temperature": 0.5, "top_k": -1, "max_tokens": 50, "stop_token_ids": [END]}
    assert chunks == [TokenChunk([5, END], [-0.5, -0.5], 7)]
    _, chunks, _ = await ask(output([5], global_steps=None))
    assert chunks[0].policy_version is None


@pytest.mark.parametrize(
    ("prompt", "options", "room"),
    [
        (3, {}, 50),
        (3, {"max_tokens": 7}, 7),
        (3, {"window": 20}, 17),
        (12, {}, 46),  # what the opening has beyond prompt_length is the response's
        (58, {}, None),
        (3, {"window": 3}, None),
        (57, {}, 1),
    ],
)
async def test_how_much_a_server_may_sample(prompt: int, options: Any, room: int | None) -> None:
    if room is None:
        with pytest.raises(ContextOverflow, match="prompt_length=8 and response_length=50"):
            await ask(output([END]), prompt=range(prompt), **options)
        return
    _, _, client = await ask(output([END]), prompt=range(prompt), **options)
    assert client.params["max_tokens"] == room


class ActorUnavailableError(Exception):
    """As Ray's, by name."""


class Wrapped(Exception):
    cause = ValueError("the prompt is too long")


@pytest.mark.parametrize(
    ("error", "kind", "told", "retryable"),
    [
        (RuntimeError("gone"), ModelError, "verl's rollout server failed the request: RuntimeError: gone", False),
        (ActorUnavailableError("restarting"), ModelError, "ActorUnavailableError: restarting", True),
        (Wrapped(), ModelError, "ValueError: the prompt is too long", False),
        (ValueError("4097 tokens leaves no room to generate"), ContextOverflow, "leaves no room", False),
    ],
)
async def test_what_fails_at_the_server_is_told(
    error: Exception, kind: type[ModelError], told: str, retryable: bool
) -> None:
    with pytest.raises(kind, match=told) as caught:
        await ask(error)
    assert type(caught.value) is kind
    assert caught.value.retryable is retryable


@pytest.mark.parametrize(("logprobs", "found"), [(None, "none"), ([], "0"), ([-1.0], "1")])
async def test_logprobs_that_are_missing_name_the_setting(logprobs: Any, found: str) -> None:
    with pytest.raises(ModelError, match=f"2 token ids and {found} log-prob.*calculate_log_probs=True"):
        await ask(output([5, 6], log_probs=logprobs))


class Attempts:
    """A client as verl's asynchronous one: attempts at a server, until one is not aborted. Its answer is their sum."""

    def __init__(self, *parts: Any, lost: int = 0, seconds: float = 0.01) -> None:
        self.seconds = seconds
        self.parts, self.lost, self.prompts = list(parts), lost, list[list[int]]()
        self.aborted: list[str] = []
        self.generate_remote = SimpleNamespace(remote=lambda **arguments: asyncio.ensure_future(self._part(arguments)))
        self.abort_request = SimpleNamespace(remote=lambda request_id, **_: self.aborted.append(request_id))

    async def _acquire_server(self, request_id: str) -> tuple[str, Any]:
        return "s", SimpleNamespace(generate=self.generate_remote, abort_request=self.abort_request)

    async def _part(self, arguments: dict[str, Any]) -> Any:
        self.prompts.append(list(arguments["prompt_ids"]))
        await asyncio.sleep(0)
        return self.parts[len(self.prompts) - 1]

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: Any) -> Any:
        ids: list[int] = []
        while True:
            _, server = await self._acquire_server(request_id)
            part = await server.generate.remote(request_id=f"{request_id}{len(ids)}", prompt_ids=prompt_ids + ids)
            ids += part.token_ids
            if part.stop_reason != "aborted":
                return output(ids[self.lost :], part.stop_reason, num_preempted=9)
            await asyncio.sleep(self.seconds)


async def over_attempts(client: Attempts, emit: EmitTokens) -> tuple[Finish, Taken]:
    taken = Taken()
    TAKEN.set(taken)
    model = ServerModel(client, prompt_length=8, response_length=50)
    return await model.sample_tokens(TokenRequest("r", [1, 2], 2, 40, STOPS, 1e9, {}), emit), taken


async def test_parts_come_with_the_weights_of_each() -> None:
    client = Attempts(
        output([5, 6], "aborted", global_steps=3, num_preempted=1),
        output([], "aborted", global_steps=4, num_preempted=0),
        output([7, END], global_steps=5, num_preempted=2),
    )
    chunks: list[TokenChunk] = []
    finish, taken = await over_attempts(client, chunks.append)
    assert finish == Finish(FinishReason.STOP)
    assert chunks == [TokenChunk([5, 6], [-0.5] * 2, 3), TokenChunk([7, END], [-0.5] * 2, 5)]
    assert client.prompts == [[1, 2], [1, 2, 5, 6], [1, 2, 5, 6]]
    assert taken.preempted == 3
    assert 0.015 < taken.synced_s < 1.0
    assert not client.aborted


async def test_an_answer_that_is_not_the_sum_of_its_parts_is_refused() -> None:
    with pytest.raises(ModelError, match="answered with 1 token ids, its server's parts had 2"):
        await over_attempts(Attempts(output([5, END]), lost=1), lambda chunk: None)


async def test_a_chain_that_is_full_asks_for_no_further_part() -> None:
    client = Attempts(output([5] * 60, "aborted"), output([6, END]))
    model = ServerModel(client, prompt_length=64, response_length=64)
    agent = Agent(
        model,
        renderer=RENDERER,
        parser=HermesParser(),
        budget=Budget(max_tokens=64, max_turns=1),
        outcomes=OutcomePolicy(retries=0),
    )
    trajectory = await agent.run(Task("t", "Go."))
    assert len(client.prompts) == 1
    assert len(trajectory.chains[0]) == 64
    assert trajectory.turns[0].finish is FinishReason.LENGTH


async def test_a_cancel_between_attempts_refuses_the_next() -> None:
    client, chunks = Attempts(output([5], "aborted"), output([6, END]), seconds=0.1), list[TokenChunk]()
    task = asyncio.create_task(over_attempts(client, chunks.append))
    while not chunks:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.2)
    assert len(client.prompts) == 1
    assert chunks == [TokenChunk([5], [-0.5], 1)]
    assert not client.aborted  # there was nothing to abort


async def test_experts_are_those_of_the_tokens_asked_for() -> None:
    taken = Taken()
    taken.experts += [((5, 6), 4, "first"), ((7, 8), 8, "second")]
    chain = [1, 2, 5, 6, 3, 3, 7, 8, 9]
    assert taken.experts_of(chain, 4) == "first"
    assert taken.experts_of(chain, 8) == "second"
    assert taken.experts_of(chain, 9) is None
    assert taken.experts_of([1, 2, 5, 7], 4) is None  # of another branch
