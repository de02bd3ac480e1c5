"""A small retriever of the same contract, to try the recipe with a corpus of one's own: BM25, in memory.

python -m recipes.search.bm25_server corpus.jsonl --port 8000        # lines with "contents": "title, newline, text"

For the Wikipedia of the papers use the dense server that Search-R1 publishes: this one is for up to some 100,000
passages. Robertson and Zaragoza 2009 (doi 10.1561/1500000019), equation 3.15, with k1 = 1.2 and b = 0.75.
"""

import argparse
import heapq
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aiohttp import web
from attrs import define, field

_WORD: Final = re.compile(r"\w+")
_K1: Final = 1.2
_B: Final = 0.75


@define
class Index:
    """Passages, and how often each word is in which."""

    passages: Sequence[str]
    _lengths: list[int] = field(init=False, factory=list)
    _postings: dict[str, list[tuple[int, int]]] = field(init=False, factory=lambda: defaultdict(list))

    def __attrs_post_init__(self) -> None:
        for number, passage in enumerate(self.passages):
            counts = Counter(words_of(passage))
            self._lengths.append(sum(counts.values()))
            for word, count in counts.items():
                self._postings[word].append((number, count))

    def best(self, query: str, count: int) -> list[tuple[float, int]]:
        """(score, number) of the `count` passages that fit best, best first; those that share no word are left out."""
        mean = sum(self._lengths) / max(1, len(self._lengths))
        scores: dict[int, float] = defaultdict(float)
        for word in set(words_of(query)):
            postings = self._postings.get(word, [])
            rarity = math.log(1 + (len(self.passages) - len(postings) + 0.5) / (len(postings) + 0.5))
            for number, times in postings:
                norm = _K1 * (1 - _B + _B * self._lengths[number] / mean)
                scores[number] += rarity * times * (_K1 + 1) / (times + norm)
        return heapq.nsmallest(
            count, ((score, number) for number, score in scores.items()), key=lambda at: (-at[0], at[1])
        )


def words_of(text: str) -> list[str]:
    """The words of `text`, in lower case."""
    return _WORD.findall(text.lower())


def app_of(index: Index) -> web.Application:
    """The server: POST /retrieve."""

    async def retrieve(request: web.Request) -> web.Response:
        asked = await request.json()
        results = [
            [{"document": {"contents": index.passages[number]}, "score": score} for score, number in found]
            for found in (index.best(query, asked.get("topk", 3)) for query in asked["queries"])
        ]
        return web.json_response({"result": results})

    app = web.Application()
    app.router.add_post("/retrieve", retrieve)
    return app


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="a small BM25 retriever")
    parser.add_argument("corpus", type=Path, help='JSONL, each line with "contents"')
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    with given.corpus.open(encoding="utf-8") as lines:
        index = Index([json.loads(line)["contents"] for line in lines if line.strip()])
    web.run_app(app_of(index), host=given.host, port=given.port)


if __name__ == "__main__":
    main()
