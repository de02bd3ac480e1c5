"""What a template refuses for what is said, though it takes this kind of append: a typed error in its own words."""

import pytest

from agentkit.errors import NotAppendable
from agentkit.protocols import Message, ToolCall, assistant
from tests.tokens.families.bench import bench_of


def said(call_id: str) -> tuple[Message, list[Message]]:
    """A turn with a call, and its result."""
    answer = Message("tool", "ok", tool_call_id=call_id, name="bash")
    return assistant("", ToolCall(call_id, "bash", {"cmd": "ls"})), [answer]


@pytest.mark.parametrize("call_id", ["c", "call000200"])
def test_an_id_that_mistrals_template_does_not_take(call_id: str) -> None:
    renderer = bench_of("mistral-nemo-spm").kept.renderer
    with pytest.raises(NotAppendable, match="alphanumeric strings with length 9"):
        renderer.bridge(*said(call_id), (), sampled=(2,))
    assert renderer.bridge(*said("call00020"), (), sampled=(2,))[1]
