"""What a renderer must know of a model family beyond its template, as data."""

from collections.abc import Sequence

from attrs import frozen

from agentkit.errors import ConfigError
from agentkit.protocols.tokens import Tokenizer


@frozen(kw_only=True)
class Thought:
    """How a family marks reasoning: the text that opens and closes it, and what closes one that was cut short."""

    opens: str = "<think>"
    closes: str = "</think>"
    cut: str = "\n</think>\n\n"


@frozen(kw_only=True)
class Family:
    """How the turns of a model family end.

    `marks` are control tokens that tell the tokenizers of this family from others with the same stops. `stops` are the
    control tokens that end a turn when sampled (those the tokenizer lacks are ignored). `headers` are those among them
    that already open what comes next, so that they are not written again. `written` are control tokens that the
    template writes at the end of a turn though they stop no generation. `close` is what a turn ends with in the
    template; with every stop a header nothing closes a turn, so it stays empty. `thought` is how reasoning is marked.
    `reasons` says whether the policy may write reasoning: with False, a template that drops earlier reasoning counts
    as append-only as long as no turn has any. Whether the generation prompt opens a thought, whether a turn may hold
    several calls, whether there is a system role and the like are asked of the template itself.
    """

    name: str
    stops: tuple[str, ...]
    marks: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    close: str = ""
    thought: Thought | None = Thought()
    reasons: bool = True

    @property
    def endings(self) -> tuple[str, ...]:
        """What may be written at the end of a turn."""
        return (*(text for text in self.stops if text not in self.headers), *self.written)

    def stop_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """The ids of `stops` in this tokenizer.

        Raises:
            ConfigError: the tokenizer lacks what this family needs.
        """
        control = tokenizer.control
        found = frozenset(control[text] for text in self.stops if text in control)
        if not found:
            raise ConfigError(f"family {self.name!r} stops at {self.stops!r}, none of which the tokenizer knows")
        if self.close not in control and (self.close or not self.headers):
            raise ConfigError(f"family {self.name!r} closes a turn with {self.close!r}, which the tokenizer lacks")
        return found


def known(texts: Sequence[str], tokenizer: Tokenizer) -> frozenset[str]:
    """Those of `texts` that are control tokens of this tokenizer."""
    return frozenset(text for text in texts if text in tokenizer.control)
