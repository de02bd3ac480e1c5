"""Templates that write the date, that hold one call a turn, and that move the system message about.

Needs `pip install -e '.[hf]'`, and tokenizers of Llama 3.2 and Mistral Nemo:
`python examples/tokens/settings.py meta-llama/Llama-3.2-3B-Instruct mistralai/Mistral-Nemo-Instruct-2407`
"""

import sys
from datetime import datetime
from typing import Any

from agentkit_hf import certify, hf_renderer

import agentkit as ak
from agentkit.errors import ConfigError


def dates(tokenizer: Any) -> None:
    # --8<-- [start:dates]
    question = [ak.user("What day is it?")]
    renderer = hf_renderer(tokenizer, keep_history=True)
    assert renderer.certificate.moves  # the template reads the clock

    # What an agent does when a rollout starts.
    started = renderer.dated(datetime(2026, 11, 30, 23, 59))
    assert "30 Nov 2026" in renderer.tokenizer.decode(started.prompt(question, ()))

    # For all rollouts, so that a run can be repeated on another day.
    always = hf_renderer(tokenizer, keep_history=True, today="2026-01-01")
    assert "01 Jan 2026" in renderer.tokenizer.decode(always.prompt(question, ()))
    # --8<-- [end:dates]
    assert not always.certificate.moves

    # --8<-- [start:one-call]
    assert renderer.holds_one_call
    # --8<-- [end:one-call]


def system(tokenizer: Any) -> None:
    # --8<-- [start:system]
    moved = "what follows a turn hangs on more than the turn"
    assert moved in "".join(certify(tokenizer).refusals)

    renderer = hf_renderer(tokenizer, with_system=False, keep_history=True)
    assert moved not in "".join(renderer.certificate.refusals)
    try:
        renderer.prompt([ak.system("Be brief."), ak.user("Hello.")], ())
    except ConfigError as error:
        print(error)  # a system message all the same: leave one of them out
    # --8<-- [end:system]


def main(llama: Any, nemo: Any) -> None:
    dates(llama)
    system(nemo)


if __name__ == "__main__":
    main(*sys.argv[1:])
