"""An agent's params as vLLM's sampling parameters."""

import pytest
from agentkit_vllm.engine import engine_arguments
from agentkit_vllm.sampling import check_params, sampling_fields
from hypothesis import given
from hypothesis import strategies as st

from agentkit import ConfigError

KNOWN = ("temperature", "top_p", "top_k", "seed", "stop", "_all_stop_token_ids")


OWN = [
    "max_tokens",
    "stop_token_ids",
    "n",
    "best_of",
    "use_beam_search",
    "logprobs",
    "prompt_logprobs",
    "output_kind",
    "echo",
]


@pytest.mark.parametrize("name", OWN)
def test_what_the_rollout_decides_is_not_the_callers_to_set(name: str):
    with pytest.raises(ConfigError, match=rf"params\.{name} is set by the model itself: .+; leave it out"):
        check_params({"temperature": 1.0, name: 3})


def test_a_misspelt_parameter_is_named_with_what_was_meant():
    with pytest.raises(ConfigError, match=r"params\.temprature .* did you mean 'temperature'\?"):
        check_params({"temprature": 0.5}, known=KNOWN)


def test_an_internal_field_of_vllm_is_no_parameter():
    with pytest.raises(ConfigError, match="_all_stop_token_ids is no sampling parameter"):
        check_params({"_all_stop_token_ids": [3]}, known=KNOWN)


def test_unknown_names_pass_where_vllm_has_not_said_what_it_knows():
    check_params({"a_parameter_of_tomorrow": 1})


@given(
    st.dictionaries(st.sampled_from(("temperature", "top_p", "top_k", "seed")), st.floats(0, 1)),
    st.frozensets(st.integers(0, 2**31 - 1)),
    st.integers(1, 10**6),
)
def test_params_go_through_and_the_rollouts_own_fields_come_on_top(params, stop_ids, max_tokens):
    fields = sampling_fields(params, stop_ids=stop_ids, max_tokens=max_tokens)
    assert fields == {
        **params,
        "stop_token_ids": sorted(stop_ids),
        "max_tokens": max_tokens,
        "logprobs": 0,
        "detokenize": False,
    }


def test_text_is_decoded_only_where_a_stop_string_needs_it():
    assert sampling_fields({"stop": ["x"]}, stop_ids=(), max_tokens=1)["detokenize"] is True
    assert sampling_fields({"stop": []}, stop_ids=(), max_tokens=1)["detokenize"] is False


@given(st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-100, 100)))
def test_logit_bias_from_json_is_the_same_as_with_integer_keys(bias):
    as_json = {str(key): value for key, value in bias.items()}
    assert sampling_fields({"logit_bias": as_json}, stop_ids=(), max_tokens=1)["logit_bias"] == bias


@pytest.mark.parametrize("bias", [[1, 2], {"x": 1.0}, {"1": "2"}, {"1": True}, {"1": None}])
def test_a_logit_bias_of_another_shape_is_refused(bias):
    with pytest.raises(ConfigError, match="logit_bias"):
        sampling_fields({"logit_bias": bias}, stop_ids=(), max_tokens=1)


def test_the_callers_params_are_left_as_they_are():
    params = {"temperature": 0.5, "logit_bias": {"1": 2}}
    sampling_fields(params, stop_ids=(2,), max_tokens=5)
    assert params == {"temperature": 0.5, "logit_bias": {"1": 2}}


def test_logprobs_are_of_what_was_sampled_from_unless_asked_otherwise():
    assert engine_arguments("m", {})["logprobs_mode"] == "processed_logprobs"
    assert engine_arguments("m", {"logprobs_mode": "raw_logprobs"})["logprobs_mode"] == "raw_logprobs"


@pytest.mark.parametrize("mode", ["raw_logits", "processed_logits", None])
def test_an_engine_that_gives_no_log_probabilities_is_refused(mode):
    with pytest.raises(ConfigError, match=r"engine\.logprobs_mode"):
        engine_arguments("m", {"logprobs_mode": mode})


def test_the_model_is_named_once():
    with pytest.raises(ConfigError, match=r"engine\.model"):
        engine_arguments("m", {"model": "other"})
