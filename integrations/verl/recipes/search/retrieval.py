"""A search tool over a retriever that speaks Search-R1's contract, and the exact match that its papers report.

The contract: POST /retrieve with {"queries": [...], "topk": k, "return_scores": true}; the answer is {"result": [[{
"document": {"contents": "title, newline, text"}, "score": number}, ...], ...]}, one list a query.
"""

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
import anyio

import agentkit as ak
from agentkit.errors import SandboxDead, ToolError
from agentkit.protocols import Tool
from agentkit.rewards import answer_of

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


def search(url: str, *, topk: int = 3, timeout_s: float = 20.0, tries: int = 3, chars: int = 1_500) -> Tool:
    """The tool `search`, which shows `topk` documents, each with `chars` characters at most.

    A retriever that fails `tries` times is no fault of the policy: the rollout ends as `env_dead`.
    """

    @ak.tool(name="search", parallel=True)
    async def run(query: str) -> str:
        """Search an encyclopedia and read the passages that fit best.

        Args:
            query: What to look for, in a few words.
        """
        if not query.strip():
            raise ToolError("query must not be empty")
        failed: Exception | None = None
        for attempt in range(tries):
            if attempt:
                await anyio.sleep(2.0 ** (attempt - 1))
            try:
                found = await _ask(url, query, topk=topk, timeout_s=timeout_s)
                return _shown(found[:topk], chars)
            except (aiohttp.ClientError, TimeoutError, _Unreadable) as error:
                failed = error
        raise SandboxDead(f"the retriever at {url} failed {tries} times: {type(failed).__name__}: {failed}")

    return run


async def em(trajectory: ak.Trajectory, env: object) -> float:
    """1.0 where the answer is one of the task's `answers`, articles, punctuation and case apart."""
    golden = trajectory.task.data["answers"]
    if not isinstance(golden, Sequence) or isinstance(golden, str) or not golden:
        raise ValueError(f"the data of task {trajectory.task_id!r} must have a list of answers, found {golden!r:.80}")
    given = normalized(answer_of(trajectory))
    return float(bool(given) and given in {normalized(str(answer)) for answer in golden})


def normalized(answer: str) -> str:
    """`answer` as exact match compares it: lower case, without punctuation, articles and extra blanks."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


class _Unreadable(Exception):
    """The retriever answered what the contract does not say."""


async def _ask(url: str, query: str, *, topk: int, timeout_s: float) -> Sequence[str]:
    # return_scores: without them the original server fails
    body = {"queries": [query], "topk": topk, "return_scores": True}
    limit = aiohttp.ClientTimeout(total=timeout_s)
    async with (
        aiohttp.ClientSession(timeout=limit) as session,
        session.post(f"{url.rstrip('/')}/retrieve", json=body) as response,
    ):
        response.raise_for_status()
        try:
            answer: Any = await response.json(content_type=None)
        except ValueError as error:
            raise _Unreadable(f"no JSON: {error}") from error
    try:
        return [_contents(item) for item in answer["result"][0]]
    except (KeyError, IndexError, TypeError) as error:
        raise _Unreadable(f"no {{'result': [[...]]}}, found {answer!r:.200}") from error


def _contents(item: Mapping[str, Any]) -> str:
    contents = item["document"]["contents"]
    if not isinstance(contents, str):
        raise TypeError("contents must be text")
    return contents


def _shown(documents: Sequence[str], chars: int) -> str:
    if not documents:
        return "Nothing was found."
    shown: list[str] = []
    for number, document in enumerate(documents, 1):
        title, _, text = document.strip().partition("\n")
        clipped = text if len(text) <= chars else f"{text[:chars]} ..."
        shown.append(f"[{number}] {title}\n{clipped}".rstrip())
    return "\n\n".join(shown)
