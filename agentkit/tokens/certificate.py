"""The report on a chat template: which appends are exact, which rewrite what is in a chain, which are refused."""

from enum import StrEnum

from attrs import frozen

from agentkit.tokens.situations import Mode, Situation


class Verdict(StrEnum):
    """What a template does with an append."""

    EXACT = "exact"
    """The chain, grown by the splice, is the template's own full rendering."""
    REWRITTEN = "rewritten"
    """The splice is exact, but the full rendering changes text that is in the chain already."""
    REFUSED = "refused"
    """The template raises, drops what was said, or goes on in a way that hangs on more than the turn."""


@frozen
class Finding:
    """The answer to one question; `difference` says in words what is not exact."""

    verdict: Verdict
    difference: str | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the append may be made."""
        return self.verdict is Verdict.EXACT

    @property
    def is_tail_exact(self) -> bool:
        """Whether what follows the turn is exact, so that it may be appended to a history that is kept."""
        return self.verdict is not Verdict.REFUSED


@frozen
class Cell:
    """One case of the matrix and what was found."""

    case: str
    situation: Situation
    finding: Finding


@frozen
class Certificate:
    """What one template does in every case that was tried, for one tokenizer, one set of arguments and tools.

    `mode` is what the generation prompt says of reasoning, `moves` whether the template reads the clock. A template
    that does not write calls (`shows_calls`) may still take their results: the calls stand in the chain as sampled.
    """

    family: str
    mode: Mode
    moves: bool
    cells: tuple[Cell, ...]
    shows_calls: bool = True

    @property
    def is_exact(self) -> bool:
        """Whether every case is exact."""
        return all(cell.finding.is_exact for cell in self.cells)

    @property
    def rewrites(self) -> tuple[str, ...]:
        """In words, each case whose full rendering changes what is in the chain."""
        return self._said(Verdict.REWRITTEN)

    @property
    def refusals(self) -> tuple[str, ...]:
        """In words, each case that no append can serve."""
        return self._said(Verdict.REFUSED)

    def _said(self, verdict: Verdict) -> tuple[str, ...]:
        """Cases with and without tools are told once where both go the same way."""
        found = (cell for cell in self.cells if cell.finding.verdict is verdict)
        return tuple(dict.fromkeys(f"{cell.case}: {cell.finding.difference}" for cell in found))
