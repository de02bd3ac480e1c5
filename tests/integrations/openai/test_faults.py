"""What a refusal means, in the words of each server."""

import json
import pickle

import pytest
from agentkit_openai.faults import Refused, fault_of_event, fault_of_reply, plain
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import ContextOverflow, ModelError

VLLM = "This model's maximum context length is 2048 tokens. However, your prompt contains 3000 input tokens"
OVERFLOWS = {
    "vllm prompt": (400, {"error": {"message": VLLM, "type": "BadRequestError", "param": "input_tokens", "code": 400}}),
    "vllm prompt, other words": (400, {"error": {"message": "too long", "param": "input_tokens", "code": 400}}),
    "vllm text": (400, {"error": {"message": "too long", "param": "input_text", "code": 400}}),
    "vllm older, flat": (400, {"object": "error", "message": VLLM, "type": "BadRequestError", "code": 400}),
    "vllm full window": (
        400,
        {"error": {"message": "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)", "code": 400}},
    ),
    "vllm below": (400, {"error": {"message": "max_tokens must be at least 1, got -952.", "param": "max_tokens"}}),
    "vllm engine": (
        400,
        {
            "error": {
                "message": "The decoder prompt (length 3000) is longer than the maximum model length of 2048. Make"
            }
        },
    ),
    "vllm engine, sum": (
        400,
        {
            "error": {
                "message": "The decoder prompt (length 2048) plus the number of requested output tokens "
                "(at least 1) is longer than the maximum model length of 2048."
            }
        },
    ),
    "llama.cpp": (
        400,
        {
            "error": {
                "code": 400,
                "message": "request (600 tokens) exceeds the available context size (512 tokens), try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 600,
                "n_ctx": 512,
            }
        },
    ),
    "openai": (
        400,
        {"error": {"message": "Your input is long.", "code": "context_length_exceeded", "param": "messages"}},
    ),
    "openai wording": (
        400,
        {"error": {"message": "This model's maximum context length is 8192 tokens", "code": None, "param": None}},
    ),
    "sglang": (
        400,
        {"object": "error", "message": "Input length (3000 tokens) exceeds the maximum allowed length (2042 tokens)."},
    ),
    "sglang 2": (
        400,
        {"message": "The input (3000 tokens) is longer than the model's context length (2048 tokens)."},
    ),
    "sglang 3": (
        400,
        {"message": "Requested token count exceeds the model's maximum context length of 2048 tokens."},
    ),
    "tgi": (422, {"error": "Input validation error: `inputs` must have less than 1024 tokens. Given: 3000"}),
    "anthropic": (400, {"error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8"}}),
    "text": (400, "This model's maximum context length is 4096 tokens"),
}
OTHERS = {
    "vllm id": (400, {"error": {"message": "Token id 999999 is out of vocabulary", "code": 400}}),
    "vllm max_tokens": (
        400,
        {"error": {"message": "max_tokens must be an int, but is of type str", "param": "max_tokens"}},
    ),
    "vllm empty": (400, {"error": {"message": "You must pass at least one prompt", "code": 400}}),
    "temperature": (400, {"error": {"message": "temperature must be non-negative, got -1.0.", "param": "temperature"}}),
    "top_k": (400, {"error": {"message": "top_k must be at least 1, got 0"}}),
    "llama.cpp": (
        400,
        {"error": {"code": 400, "message": "Prompt contains invalid tokens", "type": "invalid_request_error"}},
    ),
    "transformers": (400, {"detail": "prompt must be a string."}),
    "fastapi": (422, {"detail": [{"loc": ["body", "prompt"], "msg": "field required"}]}),
    "proxy": (413, "<html>413 Request Entity Too Large</html>"),
    "5xx with the words": (500, {"error": {"message": "maximum context length"}}),
    "nothing": (404, ""),
}


def reply(status: int, content: object, **more: object) -> ModelError:
    body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
    return fault_of_reply(status, body, where="POST http://host/v1/completions", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OVERFLOWS)
def test_no_room_in_any_server_s_words_is_an_overflow(name: str) -> None:
    status, content = OVERFLOWS[name]
    fault = reply(status, content)
    assert isinstance(fault, ContextOverflow)
    assert not fault.retryable


@pytest.mark.parametrize("name", OTHERS)
def test_another_refusal_is_no_overflow(name: str) -> None:
    status, content = OTHERS[name]
    assert not isinstance(reply(status, content), ContextOverflow)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_retryable(status: int) -> None:
    fault = reply(status, {"error": {"message": "busy"}}, retry_after_s=3.0)
    assert isinstance(fault, Refused)
    assert fault.retryable
    assert (fault.status, fault.retry_after_s) == (status, 3.0)


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 405, 413, 422, 501, 505])
def test_what_cannot_pass_is_not(status: int) -> None:
    assert not reply(status, {"error": {"message": "no"}}).retryable


def test_an_empty_purse_does_not_pass() -> None:
    content = {
        "error": {"message": "You exceeded your quota", "type": "insufficient_quota", "code": "insufficient_quota"}
    }
    assert not reply(429, content).retryable


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"error": {"message": "the model is not here"}}, "the model is not here"),
        ({"error": "as a text"}, "as a text"),
        ({"detail": "from FastAPI"}, "from FastAPI"),
        ({"detail": [{"msg": "field required"}]}, "field required"),
        ({"message": "flat"}, "flat"),
        ("<html>Bad Gateway</html>", "<html>Bad Gateway</html>"),
        ("", "no reason given"),
        ([1, 2], "[1, 2]"),
        ({"error": None}, "no reason given"),
        ({"error": {"message": {"nested": 1}}}, "nested"),
    ],
)
def test_the_server_s_reason_is_in_the_message(content: object, said: str) -> None:
    message = str(reply(502, content))
    assert message.startswith("POST http://host/v1/completions: 502 Bad Gateway: ")
    assert said in message or content in ([1, 2], {"error": None})


def test_a_refused_key_says_what_to_look_at_and_is_not_quoted() -> None:
    content = {"error": {"message": "Incorrect API key provided: sk-hidden-123. See https://x"}}
    message = str(reply(401, content, secrets=("sk-hidden-123",)))
    assert "is api_key right" in message
    assert "sk-hidden" not in message


def test_a_redirect_is_not_followed_but_explained() -> None:
    assert "base_url" in str(reply(307, ""))


FIELDS = st.sampled_from(["error", "message", "code", "type", "param", "x"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(FIELDS, inner),
)


@given(st.binary(max_size=300) | VALUES.map(lambda value: json.dumps(value).encode()), st.integers(300, 999))
def test_any_body_gives_one_readable_line(body: bytes, status: int) -> None:
    fault = fault_of_reply(status, body, where="POST /v1", secrets=("",))
    assert isinstance(fault, ModelError)
    message = str(fault)
    assert message.isprintable() or all(c.isprintable() or not c.isascii() for c in message)
    assert len(message) < 700


def test_a_huge_body_is_cut() -> None:
    assert len(str(reply(500, "x" * 65536))) < 700
    assert len(str(reply(500, {"error": {"message": "é\x1b[31m" * 65536}}))) < 700


def test_nesting_that_breaks_parsers_is_text() -> None:
    assert isinstance(reply(500, "[" * 60_000), Refused)


def test_terminal_escapes_and_direction_marks_do_not_pass() -> None:
    assert plain("a\x1b[2Jb\r\nc\u202ed\x9b") == "a [2Jb c d"


def test_a_secret_is_blotted_out_wherever_it_stands() -> None:
    assert plain("key hunter22 hunter22x", secrets=("hunter22",)) == "key *** ***x"


@pytest.mark.parametrize("event", [None, [], "error", 3, {}, {"error": None}, {"choices": []}])
def test_other_events_are_no_faults(event: object) -> None:
    assert fault_of_event(event, where="completions") is None


def test_an_error_in_the_stream_keeps_its_meaning() -> None:
    overflow = fault_of_event({"error": {"message": VLLM, "code": 400}}, where="completions")
    assert isinstance(overflow, ContextOverflow)
    refused = fault_of_event({"error": {"message": "overloaded", "code": 503}}, where="completions")
    assert refused is not None
    assert refused.retryable
    unknown = fault_of_event({"error": {"message": "boom"}}, where="completions")
    assert unknown is not None
    assert not unknown.retryable


def test_faults_travel_between_processes() -> None:
    fault = reply(429, {"error": {"message": "busy"}}, retry_after_s=3.0)
    again = pickle.loads(pickle.dumps(fault))
    assert (str(again), again.retryable, again.status, again.retry_after_s) == (str(fault), True, 429, 3.0)
