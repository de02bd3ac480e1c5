"""Strategies of one's own tests: what tools answer at their worst, in a property of a tool."""

from hypothesis import given

# --8<-- [start:outputs]
from agentkit.testing import strategies
from agentkit.tokens import ByteTokenizer


def first_lines(output: str, limit: int = 20) -> str:
    """The function under test: what of an output is shown."""
    return "\n".join(output.splitlines()[:limit])


@given(strategies.tool_outputs(ByteTokenizer()))
def test_what_is_shown_is_no_longer_than_what_there_is(output: str) -> None:
    assert len(first_lines(output)) <= len(output)
    # --8<-- [end:outputs]
