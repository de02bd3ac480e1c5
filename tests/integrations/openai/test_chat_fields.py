"""How a chat server is asked for an answer, and what its refusals teach."""

import json

import pytest
from agentkit_openai.chat_fields import Fields, check_params
from agentkit_openai.faults import fault_of_reply

from agentkit import ConfigError, ContextOverflow, ModelError

BUDGET = 131_072


def fields(max_tokens=None, *, field="auto", window=None, counts=True) -> Fields:
    return Fields(max_tokens=max_tokens, field=field, counts=counts, window=window)


def refusal(message: str, status: int = 400, **error) -> ModelError:
    return fault_of_reply(status, json.dumps({"error": {"message": message, **error}}).encode(), where="POST /chat")


TOO_LARGE = {
    "vllm": "max_tokens=131072 cannot be greater than max_model_len=2048. Please request fewer output tokens. "
    "(parameter=max_tokens, value=131072)",
    "openai": "max_tokens is too large: 131072. This model supports at most 16384 completion tokens, whereas you "
    "provided 131072.",
    "pydantic": "max_tokens: Input should be less than or equal to 8192",
}
SUMS = {
    "old vllm": "'max_tokens' or 'max_completion_tokens' is too large: 131072. This model's maximum context length is "
    "2048 tokens and your request has 17 input tokens (131072 > 2048 - 17).",
    "old openai": "This model's maximum context length is 4097 tokens. However, you requested 131172 tokens (100 in "
    "the messages, 131072 in the completion). Please reduce the length of the messages or completion.",
}
RENAMED = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."


def test_the_smaller_of_budget_limit_and_window_is_asked_for() -> None:
    assert fields().ask(500).wire() == {"max_tokens": 500, "stream_options": {"include_usage": True}}
    assert fields(100, counts=False).ask(500).wire() == {"max_tokens": 100}
    assert fields(100, counts=False).ask(50).wire() == {"max_tokens": 50}
    assert fields(counts=False, window=2048).ask(2047).wire() == {"max_tokens": 2047}
    assert fields(counts=False, window=2048).ask(2048).wire() == {}
    assert fields(counts=False, field="max_completion_tokens").ask(5).wire() == {"max_completion_tokens": 5}


@pytest.mark.parametrize("said", [*TOO_LARGE.values(), *SUMS.values()])
def test_a_budget_that_is_too_large_for_the_server_is_left_out_from_then_on(said) -> None:
    known = fields()
    asked = known.ask(BUDGET)
    other = known.learn(asked, refusal(said), BUDGET)
    assert (other.field, other.counts) == (None, True)
    assert known.ask(BUDGET).field is None
    assert known.learn(other, refusal(said), BUDGET) is None


@pytest.mark.parametrize("said", SUMS.values())
def test_a_limit_of_the_users_that_no_longer_fits_is_left_out_once(said) -> None:
    known = fields(100)
    other = known.learn(known.ask(BUDGET), refusal(said), BUDGET)
    assert other.field is None
    assert known.ask(BUDGET).wire()["max_tokens"] == 100


@pytest.mark.parametrize("said", TOO_LARGE.values())
def test_a_limit_of_the_users_that_never_fits_is_theirs_to_mend(said) -> None:
    known = fields(BUDGET)
    assert known.learn(known.ask(BUDGET), refusal(said), BUDGET) is None


def test_the_other_name_of_the_limit_is_learnt_once() -> None:
    known = fields(100)
    other = known.learn(known.ask(BUDGET), refusal(RENAMED, param="max_tokens", code="unsupported_parameter"), BUDGET)
    assert other.field == "max_completion_tokens"
    assert known.ask(BUDGET) == other
    unknown = refusal("Unexpected fields in the request: {'max_completion_tokens'}", 422)
    assert known.learn(other, unknown, BUDGET) is None
    fixed = fields(100, field="max_tokens")
    assert fixed.learn(fixed.ask(BUDGET), refusal(RENAMED), BUDGET) is None


def test_what_another_request_learnt_is_used() -> None:
    known = fields(100)
    first, second = known.ask(BUDGET), known.ask(BUDGET)
    learnt = known.learn(first, refusal(RENAMED), BUDGET)
    assert known.learn(second, refusal(RENAMED), BUDGET) == learnt


def test_a_server_that_does_not_count_is_not_asked_to() -> None:
    known = fields()
    other = known.learn(known.ask(50), refusal("Unexpected fields in the request: {'stream_options'}", 422), 50)
    assert other.wire() == known.ask(50).wire() == {"max_tokens": 50}


@pytest.mark.parametrize(
    "fault",
    [
        refusal("This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input "
                "tokens, which exceeds this limit even without any output tokens.", param="input_tokens"),
        refusal("max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)", param="max_tokens"),
        refusal("request (18031 tokens) exceeds the available context size (2048 tokens), try increasing it"),
        refusal("max_tokens is too large: 131072", 500),
        refusal("temperature must be at most 2"),
        ModelError("POST /chat: the connection broke, max_tokens at most", retryable=True),
        ContextOverflow("no room"),
    ],
)  # fmt: skip
def test_what_is_about_something_else_teaches_nothing(fault) -> None:
    known = fields()
    asked = known.ask(BUDGET)
    assert known.learn(asked, fault, BUDGET) is None
    assert known.ask(BUDGET) == asked


@pytest.mark.parametrize("name", ["model", "messages", "tools", "stream", "stream_options", "max_tokens", "functions"])
def test_params_that_the_client_sets_are_refused(name) -> None:
    with pytest.raises(ConfigError, match=f"params: {name} is set by the client"):
        check_params({name: 1}, where="params")


def test_one_answer_a_turn() -> None:
    with pytest.raises(ConfigError, match="n must be 1, found 2"):
        check_params({"n": 2}, where="params")
    check_params({"n": 1, "temperature": 0.5, "tool_choice": "required"}, where="params")


@pytest.mark.parametrize("wrong", [{"max_tokens": 0}, {"max_tokens": True}, {"field": "tokens"}])
def test_what_cannot_work_is_refused(wrong) -> None:
    with pytest.raises(ConfigError, match="max_tokens"):
        fields(**wrong)
