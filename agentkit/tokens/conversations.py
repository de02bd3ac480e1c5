"""Chains for requests that each bring their whole history along, as those to a chat API do.

A request goes on with the chain whose history begins like its own, the deepest match first (`Histories` says what
counts as the same): the same request again is another answer to the same prompt, on a fork of its chain; a changed
history, tools or options start a new chain, and the old one stays as it is.
"""

from collections.abc import Mapping, Sequence

from attrs import evolve, field, frozen

from agentkit.errors import NotAppendable
from agentkit.protocols.messages import Json, Message, ToolSpec
from agentkit.protocols.tokens import Renderer
from agentkit.tokens.branches import Branches, Prompt, Spoken
from agentkit.tokens.histories import Histories
from agentkit.tokens.ledger import Ledger


@frozen
class Asked:
    """A request, and the prompt that its answer is to be sampled behind."""

    prompt: Prompt
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    options: Mapping[str, Json] = field(factory=dict)


class Conversations:
    """The chains of one session, in `ledger`, and the history that each of them holds. Not safe for two threads.

    Requests may overlap: each samples into a chain of its own. Memory grows with the messages of the histories only by
    their digests, and by the last message of each answer.
    """

    def __init__(self, ledger: Ledger, *, max_tokens: int) -> None:
        self.ledger = ledger
        self._max_tokens = max_tokens
        self._prompts: Histories[Prompt] = Histories()
        self._turns: Histories[Spoken] = Histories()

    def ask(
        self,
        messages: Sequence[Message],
        renderer: Renderer,
        *,
        tools: Sequence[ToolSpec] = (),
        options: Mapping[str, Json] | None = None,
    ) -> Asked | None:
        """Where the answer to `messages` is sampled; None where there is no room for one token of it.

        `renderer` renders as `options` say. Where the template would rewrite what is in the matching chain, the request
        starts a new one.
        """
        options = options or {}
        prompt = self._prompt(Branches(self.ledger, renderer, max_tokens=self._max_tokens), messages, tools, options)
        if prompt is None:
            return None
        self._prompts.note(messages, prompt, tools=tools, options=options)
        return Asked(prompt, tuple(messages), tuple(tools), options)

    def answered(self, asked: Asked, message: Message, *, turn: int) -> Spoken:
        """Keep what was sampled behind a prompt, and is in the ledger by now, as the answer `message`."""
        chain, start = asked.prompt.chain, asked.prompt.length
        spoken = Spoken(chain, start, self.ledger.length(chain), turn, message)
        self._turns.note((*asked.messages, message), spoken, tools=asked.tools, options=asked.options)
        return spoken

    def _prompt(
        self,
        branches: Branches,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        options: Mapping[str, Json],
    ) -> Prompt | None:
        before = self._prompts.find(messages, tools=tools, options=options)
        if before is not None and before.depth == len(messages):
            return branches.again(before.value, apart=True)
        turn = self._turns.find(messages, tools=tools, options=options)
        if turn is not None:
            new = messages[turn.depth :]
            calls = messages[turn.depth - 1].tool_calls  # the answers name them by the ids that the client gave them
            spoken = evolve(turn.value, message=evolve(turn.value.message, tool_calls=calls))
            if new and all(message.role != "assistant" for message in new):
                try:
                    return branches.extend(spoken, new, tools)
                except NotAppendable:
                    pass
        return branches.open(messages, tools)
