"""A tree of chains grown by conversations: prompts, sampled turns, and what leads from one to the next.

    Prompt --(the policy samples)--> Spoken --(extend: messages since)--> Prompt --> ...
       `--(again)--> Prompt             `--(extend: other messages)--> Prompt

A place in the tree is a value and stays good for ever. Going on from one grows its chain where nothing came after it,
and forks it where something did. So what is in a chain is never touched, and what was sampled is trained in the chain
that it was sampled in, and nowhere else (T6). Every step costs O(new tokens), forks included.
"""

from collections.abc import Sequence

from attrs import frozen

from agentkit.protocols.chains import SpanKind
from agentkit.protocols.media import Placed
from agentkit.protocols.messages import Message, ToolSpec
from agentkit.protocols.tokens import Renderer
from agentkit.tokens.ledger import Ledger
from agentkit.tokens.media import Shown


@frozen
class Prompt:
    """The first `length` tokens of chain number `chain`: the policy samples next. `room` tokens fit behind them."""

    chain: int
    length: int
    room: int


@frozen
class Spoken:
    """A sampled turn: tokens `start <= t < stop` of chain number `chain`, and the message it was parsed to."""

    chain: int
    start: int
    stop: int
    turn: int
    message: Message


class Branches:
    """Opens, extends and forks the chains of one ledger. A chain never outgrows `max_tokens`."""

    def __init__(self, ledger: Ledger, renderer: Renderer, *, max_tokens: int) -> None:
        self._ledger = ledger
        self._renderer = renderer
        self._max_tokens = max_tokens
        self._shown = Shown(renderer)

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Prompt | None:
        """A new chain from a full rendering; None, and no chain, where there is no room to sample one token.

        Raises:
            MediaError: media cannot be shown. Nothing was changed.
        """
        ids = self._renderer.prompt(messages, tools)
        placed = self._shown.find(ids, messages, start=0)
        room = self._max_tokens - len(ids)
        if room <= 0:
            return None
        chain = self._ledger.open(ids)
        self._shown.add(chain, placed)
        return Prompt(chain, len(ids), room)

    def extend(self, spoken: Spoken, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Prompt | None:
        """The prompt after a sampled turn and the messages since; None, and no change, where there is no room.

        Raises:
            NotAppendable: the template would rewrite what is in the chain. Nothing was changed.
            MediaError: media cannot be shown. Nothing was changed.
        """
        ledger, chain = self._ledger, spoken.chain
        sampled = ledger.view(chain)[spoken.start : spoken.stop] if spoken.stop > spoken.start else ()
        close, bridge = self._renderer.bridge(spoken.message, new, tools, sampled=sampled)
        length = spoken.stop + len(close) + len(bridge)
        placed = self._shown.find(bridge, new, start=length - len(bridge))
        if length >= self._max_tokens:
            return None
        if ledger.length(chain) > spoken.stop:
            chain = self._fork(chain, spoken.stop)
        self._shown.add(chain, placed)
        ledger.append(chain, close, SpanKind.CLOSE, turn=spoken.turn)
        ledger.append(chain, bridge, SpanKind.OBSERVATION, turn=spoken.turn)
        return Prompt(chain, length, self._max_tokens - length)

    def again(self, prompt: Prompt, *, apart: bool = False) -> Prompt:
        """The same prompt, for another turn that answers it; `apart` on a chain of its own in any case."""
        if self._ledger.length(prompt.chain) == prompt.length and not apart:
            return prompt
        return Prompt(self._fork(prompt.chain, prompt.length), prompt.length, prompt.room)

    def media(self, prompt: Prompt) -> tuple[Placed, ...]:
        """What a prompt shows, in order."""
        return self._shown.until(prompt.chain, prompt.length)

    def _fork(self, chain: int, length: int) -> int:
        forked = self._ledger.fork(chain, length)
        self._shown.fork(chain, forked, length)
        return forked
