"""What is learnt: to read a question, to call a calculator with it, and to say what came back.

The policy of this demo is far too small to calculate. It copies: the question into a call, the result into an answer.
"""

import json
import random

import agentkit as ak

SIGNS = "+-"


# --8<-- [start:agent]
@ak.tool
async def calculate(expression: str) -> str:
    """Calculate.

    Args:
        expression: Such as 12+34.
    """
    return result_of(expression)


# --8<-- [end:agent]


def result_of(expression: str) -> str:
    """What the calculator says."""
    for sign in SIGNS:
        left, _, right = expression.partition(sign)
        if left.isdecimal() and right.isdecimal() and len(expression) <= 9:
            return str(int(left) + int(right) if sign == "+" else int(left) - int(right))
    raise ak.ToolError("not a sum")


def make_tasks(count: int, seed: int) -> list[ak.Task]:
    """Sums of two numbers of two digits."""
    draw = random.Random(seed)
    sums = [f"{draw.randint(10, 99)}{draw.choice(SIGNS)}{draw.randint(10, 99)}" for _ in range(count)]
    return [
        ak.Task(f"{seed}-{number}", f"{text} = ?", data={"answer": result_of(text)}) for number, text in enumerate(sums)
    ]


def expert(prompt: str) -> str:
    """The next turn of who can do it, from the whole prompt as text: what `ScriptedModel` asks for."""
    role, _, said = prompt.split("<|im_start|>")[-2].removesuffix("<|im_end|>\n").partition("\n")
    if role == "tool":
        return said
    arguments = json.dumps({"expression": said.removesuffix(" = ?")})
    return f'<tool_call>\n{{"name": "calculate", "arguments": {arguments}}}\n</tool_call>'
