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
    renderer = hf_renderer(tokenizer, keep_history=True)  # an agent holds the date at which each rollout started
    assert renderer.certificate.moves
    started = renderer.dated(datetime(2026, 11, 30, 23, 59))
    question = [ak.user("What day is it?")]
    assert "30 Nov 2026" in renderer.tokenizer.decode(started.prompt(question, ()))

    always = hf_renderer(tokenizer, keep_history=True, today="2026-01-01")  # for runs to be repeated
    assert "01 Jan 2026" in renderer.tokenizer.decode(always.prompt(question, ()))
    # --8<-- [end:dates]
    assert not always.certificate.moves

    # --8<-- [start:one-call]
    assert renderer.holds_one_call
    # --8<-- [end:one-call]


def system(tokenizer: Any) -> None:
    # --8<-- [start:system]
    assert "what follows a turn hangs on more than the turn" in "".join(certify(tokenizer).refusals)
    renderer = hf_renderer(tokenizer, with_system=False, keep_history=True)
    assert "what follows a turn hangs on more than the turn" not in "".join(renderer.certificate.refusals)
    try:
        renderer.prompt([ak.system("Be brief."), ak.user("Hello.")], ())
    except ConfigError as error:
        print(error)
    # --8<-- [end:system]


def main(llama: Any, nemo: Any) -> None:
    dates(llama)
    system(nemo)


if __name__ == "__main__":
    main(*sys.argv[1:])
