"""How to sample, read from a request."""

import math

import pytest
from agentkit_hf import SamplingParams

from agentkit.errors import ConfigError


def test_defaults_sample_from_the_model_itself():
    assert SamplingParams.read({}) == SamplingParams(temperature=1.0, top_p=1.0, top_k=0, seed=None, max_tokens=None)


def test_values_are_taken_and_none_is_a_default():
    read = SamplingParams.read({"temperature": 0, "top_p": 0.9, "top_k": 5, "seed": 3, "max_tokens": None})
    assert read == SamplingParams(temperature=0, top_p=0.9, top_k=5, seed=3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("top_k", 2.0),
        ("seed", -1),
        ("seed", 2**63),
        ("max_tokens", 0),
        ("max_tokens", [3]),
    ],
)
def test_a_bad_value_is_named(name: str, value: object):
    with pytest.raises(ConfigError, match=rf"params\.{name} must be"):
        SamplingParams.read({name: value})  # type: ignore[dict-item]


def test_an_unknown_name_is_never_ignored():
    with pytest.raises(ConfigError, match="did you mean 'temperature'"):
        SamplingParams.read({"temprature": 1.0})
    with pytest.raises(ConfigError, match=r"'logit_bias'.*knows temperature, top_p"):
        SamplingParams.read({"logit_bias": {}})


@pytest.mark.parametrize("name", ["n", "best_of", "num_return_sequences", "num_beams"])
def test_several_continuations_are_refused_with_what_to_do_instead(name: str):
    with pytest.raises(
        ConfigError, match=rf"params\.{name} .*one continuation .*at a time.*group_size.*rollout.candidates"
    ):
        SamplingParams.read({name: 2})


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs", "echo", "output_logits", "stop", "stop_token_ids"])
def test_what_is_settled_elsewhere_is_refused_with_where(name: str):
    with pytest.raises(ConfigError, match=rf"params\.{name} is not for an HFModel: .+; leave it out"):
        SamplingParams.read({name: 1})
