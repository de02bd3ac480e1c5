"""Word problems in plain numbers: a calculator, and a reward that compares numbers."""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Final

import agentkit as ak
from agentkit.errors import ToolError
from agentkit.rewards import answer_of

LONGEST: Final = 200
_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")


@ak.tool
async def calculate(expression: str) -> str:
    """Work out one arithmetic expression of numbers, + - * / // % and parentheses.

    Args:
        expression: For example (3 + 4) * 12.5
    """
    if len(expression) > LONGEST:
        raise ToolError(f"the expression must have at most {LONGEST} characters, found {len(expression)}")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except SyntaxError:
        raise ToolError(f"{expression!r} is no arithmetic expression") from None
    except ZeroDivisionError:
        raise ToolError("a division by zero") from None
    except OverflowError:
        raise ToolError("the result is too large") from None
    if not math.isfinite(value):
        raise ToolError("the result is too large")
    return f"{value:.10g}"


async def right_number(trajectory: ak.Trajectory, env: object) -> float:
    """1.0 where the last number of the answer is the one in the task's data under `answer`."""
    expected = number_in(str(trajectory.task.data["answer"]))
    if expected is None:
        raise ValueError(f"the answer of task {trajectory.task_id!r} has no number: {trajectory.task.data['answer']!r}")
    return float(number_in(answer_of(trajectory)) == expected)


def number_in(text: str) -> Decimal | None:
    """The last number in `text`, thousands separators left out; None where there is none."""
    found = _NUMBER.findall(text)
    try:
        return Decimal(found[-1].replace(",", "")) if found else None
    except InvalidOperation:
        return None


def _value(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]  # of a float no operation here is slow, however large
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    found = node.op if isinstance(node, ast.BinOp | ast.UnaryOp) else node
    raise ToolError(f"only numbers, + - * / // % and parentheses are understood, found {type(found).__name__}")
