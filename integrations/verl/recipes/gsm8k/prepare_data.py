"""Rows of openai/gsm8k (question, answer) as tasks.

python -m recipes.gsm8k.prepare_data train-00000-of-00001.parquet data/gsm8k-train.parquet
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from recipes.gsm8k.problems import number_in
from recipes.prepare import prepare

from agentkit import Task, system, user

SYSTEM = (
    "Solve the problem step by step. Use the tool calculate for arithmetic. When you are sure, call the tool finish "
    "with the final number alone."
)


def task_of(row: Mapping[str, Any]) -> Task:
    """The task of one row: the number behind `####` is what is asked for."""
    question, answer = str(row["question"]), str(row["answer"])
    final = number_in(answer.rpartition("####")[2])
    if final is None:
        raise ValueError(f"answer must end in '#### number', found {answer[-80:]!r}")
    name = sha256(question.encode()).hexdigest()[:16]
    return Task(
        f"gsm8k-{name}",
        (system(SYSTEM), user(question)),
        data={"answer": str(final), "data_source": "openai/gsm8k"},
    )


if __name__ == "__main__":
    prepare(task_of, "rows of openai/gsm8k as tasks")
