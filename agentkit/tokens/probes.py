"""What chat templates are asked with."""

from collections.abc import Callable, Sequence

from agentkit.protocols.messages import Message, ToolSpec
from agentkit.protocols.tokens import ChatTemplate

PROBE_TOOLS = (
    ToolSpec("probe_a", "A probe.", {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}),
)


def asking(template: ChatTemplate) -> Callable[[Sequence[Message], bool], str]:
    """Renders messages without tools, or with some where a template cannot do without."""

    def ask(messages: Sequence[Message], generation_prompt: bool) -> str:
        try:
            return template(messages, (), generation_prompt=generation_prompt)
        except Exception:  # the template is the user's code; if tools do not help it says why
            return template(messages, PROBE_TOOLS, generation_prompt=generation_prompt)

    return ask
