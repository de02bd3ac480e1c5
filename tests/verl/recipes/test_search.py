"""Questions to look up: the tool against real servers, the exact match, and the rows of the datasets."""

import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from recipes.prepare import tasks_of
from recipes.search.bm25_server import Index, app_of, words_of
from recipes.search.prepare_data import task_of
from recipes.search.retrieval import em, normalized, search

import agentkit as ak
from agentkit.models import ScriptedModel
from agentkit.tools import finish

PASSAGES = [
    "Radium\nMarie Curie discovered radium in 1898 with Pierre Curie.",
    "Salzburg\nMozart was born in Salzburg. The river Salzach flows through the city.",
    "Vienna\nMozart died in Vienna, on the Danube.",
]
Serve = Callable[[web.Application], Any]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serves an app on a port of this machine; its address."""
    running: list[web.AppRunner] = []

    async def start(app: web.Application) -> str:
        runner = web.AppRunner(app)
        running.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return str(site.name)

    yield start
    for runner in running:
        await runner.cleanup()


def answering(*answers: Any, seen: list[Any] | None = None) -> web.Application:
    """Gives these answers in turn, the last one again and again."""
    left = list(answers)

    async def retrieve(request: web.Request) -> web.StreamResponse:
        if seen is not None:
            seen.append(await request.json())
        answer = left.pop(0) if len(left) > 1 else left[0]
        return web.Response(status=answer) if isinstance(answer, int) else web.json_response(answer)

    app = web.Application()
    app.router.add_post("/retrieve", retrieve)
    return app


async def played(url: str, *calls: tuple[str, Mapping[str, str]], answers: list[str], **options: Any) -> ak.Trajectory:
    texts = [
        f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(given)}}}\n</tool_call>' for name, given in calls
    ]
    agent = ak.Agent(
        ScriptedModel(texts),
        tools=[search(url, **options), finish],
        reward=em,
        outcomes=ak.OutcomePolicy(retries=0),
    )
    async with ak.Pool(agent) as pool:
        (trajectory,) = await pool.run([ak.Task("a", "?", data={"answers": answers})])
    return trajectory


async def test_a_question_is_looked_up_and_answered(serve: Serve):
    url = await serve(app_of(Index(PASSAGES)))
    trajectory = await played(
        url,
        ("search", {"query": "river of Mozart's birthplace"}),
        ("finish", {"answer": "the Salzach!"}),
        answers=["Salzach"],
    )
    (shown,) = trajectory.turns[0].observations
    assert shown.content.startswith("[1] Salzburg\nMozart was born in Salzburg.")
    assert "[2] Vienna" in shown.content
    assert trajectory.score == 1.0


async def test_the_retriever_is_asked_as_its_contract_says(serve: Serve):
    seen: list[Any] = []
    answer = {"result": [[{"document": {"contents": '"A"\n' + "x" * 99}, "score": 1.0}] * 5]}
    url = await serve(answering(answer, seen=seen))
    trajectory = await played(
        url, ("search", {"query": "a b"}), ("finish", {"answer": ""}), answers=["a"], topk=2, chars=10
    )
    assert seen == [{"queries": ["a b"], "topk": 2, "return_scores": True}]
    assert trajectory.turns[0].observations[0].content == f'[1] "A"\n{"x" * 10} ...\n\n[2] "A"\n{"x" * 10} ...'
    assert trajectory.score == 0.0  # no answer is no match, whatever is asked for


async def test_a_retriever_that_stumbles_is_asked_again(serve: Serve):
    seen: list[Any] = []
    url = await serve(answering(503, {"nonsense": 1}, {"result": [[]]}, seen=seen))
    trajectory = await played(url, ("search", {"query": "a"}), ("finish", {"answer": "b"}), answers=["b"])
    assert len(seen) == 3
    assert trajectory.turns[0].observations[0].content == "Nothing was found."
    assert trajectory.score == 1.0


@pytest.mark.parametrize("answer", [500, {"result": "no"}, {"result": [[{"document": {"contents": 3}}]]}, "text"])
async def test_a_retriever_that_is_broken_is_no_failure_of_the_policy(answer: Any, serve: Serve):
    url = await serve(answering(answer))
    trajectory = await played(url, ("search", {"query": "a"}), answers=["b"], tries=1)
    assert trajectory.exit_reason is ak.ExitReason.ENV_DEAD
    assert trajectory.outcome is ak.Outcome.DROP
    assert trajectory.score is None


async def test_nobody_at_the_address_is_told():
    trajectory = await played("http://127.0.0.1:9", ("search", {"query": "a"}), answers=["b"], tries=1)
    assert trajectory.exit_reason is ak.ExitReason.ENV_DEAD
    assert "http://127.0.0.1:9 failed 1 times" in str(trajectory.turns[0].observations) + str(trajectory.error)


def test_rows_become_tasks_but_for_those_without_an_answer(rows: Path):
    first, second = tasks_of(rows / "search.jsonl", task_of)  # both have the id train_0, from different sources
    assert first.messages[1].content == "who discovered the element radium?"
    assert first.data == {"answers": ["Marie Curie", "Marie and Pierre Curie"], "data_source": "nq"}
    assert second.data["data_source"] == "hotpotqa"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("The  Salzach.", "salzach"), ("An apple-tree", "appletree"), ("theatre", "theatre"), ("a", "")],
)
def test_answers_are_compared_without_articles_and_punctuation(given: str, wanted: str):
    assert normalized(given) == wanted


words = st.lists(st.sampled_from("abcdef"), max_size=6).map(" ".join)


@given(st.lists(words, min_size=1, max_size=8), words, st.integers(1, 4))
def test_passages_are_ranked_as_the_formula_says(passages: list[str], query: str, count: int):
    lengths = [len(words_of(passage)) for passage in passages]
    mean = sum(lengths) / len(lengths)

    def score(number: int) -> float:
        counts, total = Counter(words_of(passages[number])), 0.0
        for word in set(words_of(query)):
            holding = sum(word in words_of(passage) for passage in passages)
            if counts[word]:
                idf = math.log(1 + (len(passages) - holding + 0.5) / (holding + 0.5))
                total += idf * counts[word] * 2.2 / (counts[word] + 1.2 * (0.25 + 0.75 * lengths[number] / mean))
        return total

    scores = [(score(number), number) for number in range(len(passages))]
    expected = sorted((at for at in scores if at[0] > 0), key=lambda at: (-at[0], at[1]))
    found = Index(passages).best(query, count)
    # passages that score the same but for rounding may change places
    assert [value for value, _ in found] == pytest.approx([value for value, _ in expected[:count]])
    assert all(value == pytest.approx(score(number)) for value, number in found)
