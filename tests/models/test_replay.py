"""Replay: the record again, bit by bit, or an error that names where the prompt left it."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.actors import Agent
from agentkit.errors import ConfigError, ContextOverflow, ModelError
from agentkit.models import ReplayModel
from agentkit.parsing import HermesParser
from agentkit.protocols import (
    Action,
    Chain,
    EmitTokens,
    ExitReason,
    Finish,
    FinishReason,
    HasRenderer,
    RolloutKey,
    Span,
    SpanKind,
    TokenChunk,
    TokenModel,
    TokenRequest,
    Trajectory,
    Turn,
    user,
)
from agentkit.tokens import byte_chatml

LOGPROBS = [0.0, 0.0, -0.1, -0.2, -0.3, 0.0, 0.0, -0.4, -0.5]
CHAIN = Chain.of(
    [10, 11, 12, 13, 14, 15, 16, 17, 18],
    [0, 0, 1, 1, 1, 0, 0, 1, 1],
    LOGPROBS,
    (
        Span(0, 2, SpanKind.PROMPT),
        Span(2, 4, SpanKind.SAMPLED, 0, 1),
        Span(4, 5, SpanKind.SAMPLED, 0, 2),
        Span(5, 7, SpanKind.OBSERVATION, 0),
        Span(7, 9, SpanKind.SAMPLED, 1, 2),
    ),
)
FORK = Chain.of([10, 99], [0, 1], [0.0, -0.7], (Span(0, 1, SpanKind.PROMPT), Span(1, 2, SpanKind.SAMPLED, 2, 3)))


def trajectory_of(*turns: Turn, chains: tuple[Chain, ...] = (CHAIN, FORK)) -> Trajectory:
    return Trajectory(RolloutKey("t", 0), (user("x"),), chains, turns, ExitReason.FINISHED)


RECORD = trajectory_of(
    Turn(0, Action("a"), chain=0, start=2, stop=5),
    Turn(1, Action("b", finish=FinishReason.LENGTH), chain=0, start=7, stop=9),
    Turn(2, Action("c"), chain=1, start=1, stop=2),
)


def request_for(prompt_ids: list[int], request_id: str = "r", max_tokens: int = 100) -> TokenRequest:
    return TokenRequest(request_id, prompt_ids, len(prompt_ids), max_tokens, frozenset(), float("inf"))


async def replayed(model: ReplayModel, request: TokenRequest) -> tuple[list[TokenChunk], Finish]:
    chunks: list[TokenChunk] = []
    return chunks, await model.sample_tokens(request, chunks.append)


async def test_turns_are_emitted_as_recorded_with_their_versions():
    model = ReplayModel(RECORD, renderer=byte_chatml())
    assert isinstance(model, TokenModel)
    assert isinstance(model, HasRenderer)
    recorded = list(CHAIN.logprobs)
    for request_id in ("a", "b"):
        chunks, finish = await replayed(model, request_for([10, 11], request_id))
        assert chunks == [TokenChunk([12, 13], recorded[2:4], 1), TokenChunk([14], recorded[4:5], 2)]
        assert finish == Finish(FinishReason.STOP)
    chunks, finish = await replayed(model, request_for(list(CHAIN.ids[:7]), "a"))
    assert chunks == [TokenChunk([17, 18], recorded[7:9], 2)]
    assert finish == Finish(FinishReason.LENGTH)
    chunks, _ = await replayed(model, request_for([10], "a"))
    assert chunks == [TokenChunk([99], list(FORK.logprobs[1:2]), 3)]
    with pytest.raises(ModelError, match="3 turns"):
        await replayed(model, request_for([10], "a"))


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([10, 12], "turn 0 differs from the record at position 1: expected 11, found 12"),
        ([9, 12], "turn 0 differs from the record at position 0: expected 10, found 9"),
        ([10], "turn 0 differs from the record at position 1: expected 2 ids, found 1"),
        ([10, 11, 12], "turn 0 differs from the record at position 2: expected 2 ids, found 3"),
    ],
)
async def test_another_prompt_is_refused_at_its_first_difference(prompt, words):
    chunks: list[TokenChunk] = []
    with pytest.raises(ModelError, match=words):
        await ReplayModel(RECORD).sample_tokens(request_for(prompt), chunks.append)
    assert chunks == []


@given(st.integers(0, 1), st.integers(-3, 3).filter(bool))
def test_any_single_changed_id_is_found(position, change):
    prompt = [10, 11]
    prompt[position] += change
    with pytest.raises(ModelError, match=f"position {position}:"):
        anyio.run(replayed, ReplayModel(RECORD), request_for(prompt))


async def test_a_smaller_token_limit_cuts():
    chunks, finish = await replayed(ReplayModel(RECORD), request_for([10, 11], max_tokens=1))
    assert [list(chunk.token_ids) for chunk in chunks] == [[12]]
    assert finish.reason is FinishReason.LENGTH
    with pytest.raises(ContextOverflow):
        await replayed(ReplayModel(RECORD), request_for([10, 11], max_tokens=0))


def test_a_record_without_tokens_cannot_be_replayed():
    with pytest.raises(ConfigError, match="t#0 holds no sampled tokens"):
        ReplayModel(trajectory_of(Turn(0, Action("a")), chains=()))


async def test_a_stop_string_within_a_token_is_replayed() -> None:
    renderer = byte_chatml()

    class Stopping:
        """Ends with a stop string in the middle of its last token."""

        parser = HermesParser()

        def __init__(self) -> None:
            self.renderer = renderer

        async def sample_tokens(self, request: TokenRequest, emit: EmitTokens, /) -> Finish:
            ids = list(renderer.tokenizer.encode("<answer>4</answer>\n"))
            emit(TokenChunk(ids, [-0.5] * len(ids)))
            return Finish(stop_string="</answer>")

    recorded = await Agent(Stopping()).run("2 + 2?")
    (turn,) = recorded.turns
    assert (turn.action.text, turn.action.content) == ("<answer>4</answer>\n", "<answer>4</answer>")
    again = await Agent(ReplayModel(recorded, renderer=renderer, parser=HermesParser())).run("2 + 2?")
    assert again.turns[0].action == turn.action
    assert (turn.stop_string, again.turns[0].stop_string) == ("</answer>", "</answer>")
