"""What the `verl` section of an entry may say."""

import math
from typing import Any

import pytest
from agentkit_verl.settings import VerlSettings

from agentkit import ConfigError


def test_the_defaults_change_nothing_that_verl_does() -> None:
    said = VerlSettings()
    assert (said.credit, said.kinds, said.min_group, said.on_lost_group) == ("outcome", False, 2, "auto")
    assert (said.batch_s, said.journal, said.tools_kwargs, said.prompt_overflow) == (None, None, {}, "move")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("credit", "turns", "verl.credit must be one of outcome, turn, token, found 'turns'"),
        ("weights", "none", "verl.weights must be one of session-balanced, session-per-token, per-chain, per-token"),
        ("on_lost_group", None, "verl.on_lost_group must be one of auto, drop, fail, found None"),
        ("prompt_overflow", "cut", "verl.prompt_overflow must be one of move, drop, found 'cut'"),
        ("min_group", 0, "verl.min_group must be at least 1, found 0"),
        ("min_group", True, "verl.min_group must be at least 1, found True"),
        ("batch_s", 0, "verl.batch_s must be a number of seconds > 0, found 0"),
        ("batch_s", -1.5, "verl.batch_s must be a number of seconds > 0, found -1.5"),
        ("batch_s", math.nan, "verl.batch_s must be a number of seconds > 0, found nan"),
    ],
)
def test_values_that_make_no_sense_are_named(name: str, value: Any, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        VerlSettings(**{name: value})
    assert str(caught.value).startswith(told)
