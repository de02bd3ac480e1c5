"""Every property of alignment, over every specimen: as training wants it, and with `keep_history`.

`AGENTKIT_HYPOTHESIS=deep` tries 2,000 conversations of each specimen; otherwise it is a few for each property.
"""

import os

import pytest

from agentkit.testing.alignment import PROPERTIES, Property, search
from tests.tokens.families.bench import Bench

DEEP = os.environ.get("AGENTKIT_HYPOTHESIS") == "deep"
EXAMPLES = -(-2000 // len(PROPERTIES)) if DEEP else 2
SEED = int(os.environ.get("AGENTKIT_ALIGNMENT_SEED", "0"))


def check(bench: Bench, kind: str, prop: Property, examples: int = EXAMPLES) -> None:
    finding = search(getattr(bench, kind), prop, examples=examples, seed=SEED)
    assert finding.counterexample is None, f"{bench.name}, {kind}: {finding.counterexample}"


@pytest.mark.parametrize("prop", PROPERTIES, ids=lambda each: each.name)
def test_property_holds(bench: Bench, prop: Property) -> None:
    check(bench, "subject", prop)


def test_properties_hold_where_history_is_kept(bench: Bench) -> None:
    """Where nothing is ever rewritten this is the same as the above."""
    if not bench.renderer.certificate.is_exact:
        for prop in PROPERTIES:
            check(bench, "kept", prop, examples=EXAMPLES if DEEP else 1)


@pytest.mark.slow
def test_what_the_oracle_is_for_is_reached(bench: Bench) -> None:
    """A property that no conversation reaches holds of anything: those that compare with full renders are reached."""
    subject = bench.subject if bench.renderer.certificate.is_exact else bench.kept
    named = {prop.name: prop for prop in PROPERTIES}
    for name in ("the_chain_is_the_full_render", "content_forges_no_control_token"):
        finding = search(subject, named[name], examples=40, seed=0)
        assert finding.counterexample is None
        assert finding.reached, f"{bench.name}: none of {finding.tried} conversations reaches {name}"
