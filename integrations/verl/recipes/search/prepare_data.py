"""Questions with short answers (NQ, HotpotQA and others, as Search-R1 and FlashRAG publish them) as tasks.

python -m recipes.search.prepare_data train.parquet data/search-train.parquet
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from recipes.prepare import prepare

from agentkit import Task, system, user

SYSTEM = (
    "Answer the question. Use the tool search as often as you need to look facts up. When you know the answer, call "
    "the tool finish with the answer alone: a name, a date or a few words."
)


def task_of(row: Mapping[str, Any]) -> Task | None:
    """The task of one row with `question` and `golden_answers`; None where no answer is known."""
    question = str(row["question"]).strip()
    answers = [str(answer) for answer in _answers(row["golden_answers"]) if str(answer).strip()]
    if not question or not answers:
        return None
    source = str(row.get("data_source") or "search")
    name = sha256(question.encode()).hexdigest()[:16]  # ids of the files repeat between their sources
    return Task(
        f"{source}-{name}",
        (system(SYSTEM), user(question if question.endswith("?") else f"{question}?")),
        data={"answers": answers, "data_source": source},
    )


def _answers(value: object) -> Sequence[object]:
    if isinstance(value, str):  # some copies have the list as JSON
        value = json.loads(value) if value.startswith("[") else [value]
    if not isinstance(value, list):
        raise TypeError(f"golden_answers must be a list, found {value!r:.80}")
    return value


if __name__ == "__main__":
    prepare(task_of, "questions with short answers as tasks")
