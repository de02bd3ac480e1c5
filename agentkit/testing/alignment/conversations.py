"""Conversations to try, and how each turn of them is sampled: plain values that print as what was said."""

from collections.abc import Sequence

from attrs import frozen

from agentkit.protocols import Message, Tokenizer, ToolSpec


@frozen(kw_only=True)
class Sampling:
    """How a turn is sampled: as the template would write it, unless something else is said.

    `ids` are sampled instead, whatever they decode to; or the template's own text is cut at `cuts` (positions in it)
    and the pieces are encoded apart, as a policy samples that does not take the longest token. With `kept` the turn is
    cut after so many tokens, at a length limit; else it ends with a stop token.
    """

    ids: tuple[int, ...] | None = None
    cuts: tuple[int, ...] = ()
    kept: int | None = None

    def __str__(self) -> str:
        how = "" if self.ids is None else f"ids {list(self.ids)}"
        how += f"its text encoded in pieces, cut at {list(self.cuts)}" if self.cuts else ""
        return how + ("" if self.kept is None else f"{', ' if how else ''}cut after {self.kept} tokens")


@frozen
class Exchange:
    """A turn of the policy as parsed, how it was sampled, and all that is said before the next turn."""

    said: Message
    new: tuple[Message, ...]
    sampling: Sampling = Sampling()


@frozen
class Conversation:
    """What opens a conversation, the tools shown, and what was said in turn."""

    opening: tuple[Message, ...]
    exchanges: tuple[Exchange, ...]
    tools: tuple[ToolSpec, ...] = ()

    def before(self, turn: int) -> list[Message]:
        """All that was said before the policy's turn number `turn`."""
        said = list(self.opening)
        for exchange in self.exchanges[:turn]:
            said += [exchange.said, *exchange.new]
        return said

    @property
    def messages(self) -> list[Message]:
        """All that was said."""
        return self.before(len(self.exchanges))

    def __str__(self) -> str:
        lines = [f"tools      {', '.join(tool.name for tool in self.tools) or 'none'}"]
        lines += map(_line, self.opening)
        for exchange in self.exchanges:
            lines.append(_line(exchange.said))
            if how := str(exchange.sampling):
                lines.append(f"           (sampled as {how})")
            lines += map(_line, exchange.new)
        return "\n".join(lines)


def resplit(tokenizer: Tokenizer, ids: Sequence[int], cuts: Sequence[int]) -> list[int]:
    """Other ids of the same text: the stretches of `ids` between control tokens, cut at `cuts` and encoded in pieces.

    A stretch stays as it is where its pieces do not decode to the same text.
    """
    control = frozenset(tokenizer.control.values())
    result: list[int] = []
    stretch: list[int] = []
    for token_id in [*ids, None]:
        if token_id is not None and token_id not in control:
            stretch.append(token_id)
            continue
        result += _in_pieces(tokenizer, stretch, cuts)
        stretch = []
        result += [] if token_id is None else [token_id]
    return result


def _in_pieces(tokenizer: Tokenizer, ids: Sequence[int], cuts: Sequence[int]) -> list[int]:
    text = tokenizer.decode(list(ids)) if ids else ""
    places = sorted({cut % len(text) for cut in cuts}) if text else []
    pieces = [text[start:stop] for start, stop in zip([0, *places], [*places, len(text)], strict=True)]
    split = [token_id for piece in pieces if piece for token_id in tokenizer.encode(piece)]
    return split if tokenizer.decode(split) == text else list(ids)


def _line(message: Message) -> str:
    parts = [] if message.reasoning is None else [f"thinks {message.reasoning!r}"]
    parts += [repr(message.content)] if message.content or not message.tool_calls else []
    parts += [f"calls {call.name}({call.arguments!r}) as {call.id!r}" for call in message.tool_calls]
    return f"{message.role:10} {', '.join(parts)}"
