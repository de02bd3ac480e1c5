"""Word problems: the calculator, the reward, and the rows of the dataset."""

import ast
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recipes.gsm8k.prepare_data import task_of
from recipes.gsm8k.problems import LONGEST, calculate, number_in, right_number
from recipes.prepare import tasks_of

import agentkit as ak
from agentkit.errors import ConfigError, ToolError
from agentkit.models import ScriptedModel
from agentkit.tools import finish

numbers = st.integers(0, 999).map(str)
expressions = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/"]), inner).map(lambda parts: f"({' '.join(parts)})"),
        inner.map(lambda part: f"-{part}"),
    ),
    max_leaves=12,
)


def exactly(node: ast.AST) -> Fraction:
    """The value in fractions."""
    match node:
        case ast.Constant(value=value):
            return Fraction(value)
        case ast.UnaryOp(operand=operand):
            return -exactly(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return exactly(left) + exactly(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return exactly(left) - exactly(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return exactly(left) * exactly(right)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return exactly(left) / exactly(right)
    raise AssertionError(node)


def largest(tree: ast.AST) -> float:
    """The largest value on the way: what rounding errors are to be measured by."""
    values = [abs(float(exactly(node))) for node in ast.walk(tree) if isinstance(node, ast.expr)]
    return max(1.0, *values)


@given(expressions)
async def test_the_calculator_is_right(expression: str):
    if len(expression) > LONGEST:
        with pytest.raises(ToolError, match="at most 200 characters"):
            await calculate(expression)
        return
    try:
        expected = float(exactly(ast.parse(expression, mode="eval").body))
    except ZeroDivisionError:
        return  # in floats the denominator may be a rounding error
    try:
        shown = float(await calculate(expression))
    except ToolError:
        assert "/" in expression  # and the other way round
        return
    assert math.isclose(shown, expected, rel_tol=1e-6, abs_tol=1e-6 * largest(ast.parse(expression, mode="eval")))


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("1 / 0", "a division by zero"),
        ("2 ** 9", "found Pow"),
        ("__import__('os')", "found Call"),
        ("'a' * 3", "found Constant"),
        ("True + 1", "found Constant"),
        ("1 +", "is no arithmetic expression"),
        ("x", "found Name"),
        ("1e308 * 10", "the result is too large"),
        ("9" * 400, "at most 200 characters"),
        ("", "is no arithmetic expression"),
        ("(" * 150, "is no arithmetic expression"),
        ("1j", "found Constant"),
    ],
)
async def test_what_the_calculator_cannot_do_is_told(expression: str, told: str):
    with pytest.raises(ToolError, match=told):
        await calculate(expression)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12,400 people", "12400"),
        ("so 3 - 7 = -4", "-4"),
        ("$140.50.", "140.50"),
        ("none", None),
        ("1.50 or 7%", "7"),
        (".5", "0.5"),
    ],
)
def test_the_last_number_counts(text: str, number: str | None):
    assert number_in(text) == (None if number is None else Decimal(number))


def test_rows_become_tasks(rows: Path):
    tasks = tasks_of(rows / "gsm8k.jsonl", task_of)
    assert [task.data["answer"] for task in tasks] == ["140", "15500", "-4"]
    assert len({task.id for task in tasks}) == 3
    assert all("####" not in message.content for task in tasks for message in task.messages)


def test_a_row_without_a_final_number_is_named(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"question": "q", "answer": "no idea"}\n')
    with pytest.raises(ConfigError, match="row 0: answer must end in '#### number'"):
        tasks_of(tmp_path / "a.jsonl", task_of)


@pytest.mark.parametrize(
    ("answer", "score"), [("15,500", 1.0), ("It is 15500.0 people", 1.0), ("15501", 0.0), ("many", 0.0)]
)
async def test_the_answer_is_compared_as_a_number(answer: str, score: float, rows: Path):
    call = f'<tool_call>\n{{"name": "finish", "arguments": {{"answer": "{answer}"}}}}\n</tool_call>'
    agent = ak.Agent(ScriptedModel([call]), tools=[calculate, finish], reward=right_number)
    async with ak.Pool(agent) as pool:
        trajectories = await pool.run(tasks_of(rows / "gsm8k.jsonl", task_of)[1:2])
    assert [trajectory.score for trajectory in trajectories] == [score]
