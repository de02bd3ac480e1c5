"""Why rollouts went wrong, a line each."""

import traceback
from collections import Counter

import pytest

import agentkit as ak
from agentkit.errors import ModelError
from agentkit.models import ScriptedModel
from agentkit.protocols import ExitReason, Grade, GradeStatus, RolloutKey, Trajectory
from agentkit.runs.causes import OTHERS, causes, count_causes


def failed(error: str | None, grade: Grade | None = None) -> Trajectory:
    return Trajectory(RolloutKey("a", 0), (), (), (), ExitReason.MODEL_ERROR, error=error, grade=grade)


def of(error: BaseException) -> str:
    try:
        try:
            raise KeyError("the first")
        except KeyError as first:
            raise error from first
    except BaseException:
        return traceback.format_exc()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (of(ModelError("refused")), "ModelError: refused"),
        (of(ZeroDivisionError("division by zero")), "ZeroDivisionError: division by zero"),
        (of(ValueError("first line\n  indented\nlast")), "ValueError: first line"),
        (of(ValueError()), "ValueError"),
        (of(OSError("/a.b/c: no such file")), "OSError: /a.b/c: no such file"),
        ("the server aborted the generation", "the server aborted the generation"),
        ("see example.com: gone", "see example.com: gone"),
        (" \n\n", ""),
    ],
)
def test_what_was_raised_last_without_its_traceback(text: str, said: str) -> None:
    assert causes(failed(text)) == (f"model_error: {said}",)


def test_what_the_grader_raised_is_a_cause_and_a_grade_not_asked_for_is_none() -> None:
    broken = Grade(GradeStatus.ERROR, error="ZeroDivisionError: division by zero")
    assert causes(failed(None, broken)) == ("reward: ZeroDivisionError: division by zero",)
    assert causes(failed("gone", Grade(GradeStatus.SKIPPED, error="not graded"))) == ("model_error: gone",)
    assert causes(failed(None)) == ()


def test_a_secret_is_hidden_before_anything_is_cut() -> None:
    secret = "s" * 400
    (cause,) = causes(failed(f"key {secret}"), redact=lambda text: text.replace(secret, "[hidden]"))
    assert cause == "model_error: key [hidden]"


def test_a_long_message_is_cut_and_kinds_without_end_are_not_kept() -> None:
    (cause,) = causes(failed("x" * 10_000))
    assert len(cause) < 400
    counts: Counter[str] = Counter()
    for number in range(1000):
        count_causes(counts, (f"no {number}",))
        count_causes(counts, ("no 0",))
    assert counts["no 0"] == 1001
    assert counts[OTHERS] == 900
    assert len(counts) == 101


async def test_a_real_rollout() -> None:
    class Refusing(ScriptedModel):
        async def sample_tokens(self, request: object, emit: object) -> ak.Finish:
            raise ak.ConfigError("params['max_tokens'] is set by the budget")

    trajectory = await ak.Agent(Refusing(["x"])).run("Go.")
    assert causes(trajectory) == ("internal_error: ConfigError: params['max_tokens'] is set by the budget",)
