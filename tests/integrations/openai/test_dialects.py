"""Bodies as servers want them; answers read as they came, or refused."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from agentkit_openai.dialects import LlamaCppDialect, Reader, VLLMDialect
from agentkit_openai.dialects.dialect import check_params
from agentkit_openai.sse import SSEDecoder
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import ConfigError, ModelError
from agentkit.protocols import Finish, FinishReason

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
TOP = {"id": 9, "token": "y", "logprob": -0.5}


def vllm_event(
    ids: object = (), logprobs: object = None, *, reason: object = None, echo: object = None, **more: object
) -> bytes:
    logprobs = None if logprobs is None else {"token_logprobs": logprobs, "tokens": ["x"]}
    ids = list(ids) if isinstance(ids, tuple) else ids
    choice = {"index": 0, "text": ']"', "logprobs": logprobs, "finish_reason": reason, "prompt_token_ids": echo}
    event = {"id": "cmpl-1", "choices": [{**choice, "token_ids": ids, **more}]}
    return json.dumps(event, separators=(",", ":")).encode()


def usage(prompt_tokens: object, completion_tokens: object) -> bytes:
    counted = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return json.dumps({"id": "cmpl-1", "choices": [], "usage": counted}).encode()


def llama_event(ids: list[Any], predicted: object, *, evaluated: object = 3, **more: object) -> bytes:
    probabilities = [{"id": token_id, "token": "x", "logprob": -1.5, "top_logprobs": [TOP]} for token_id in ids]
    event = {"content": "x", "tokens": ids, "stop": False, "tokens_predicted": predicted, "tokens_evaluated": evaluated}
    if probabilities:
        event["completion_probabilities"] = probabilities
    return json.dumps({**event, **more}).encode()


def read(reader: Reader, *events: bytes) -> tuple[list[int], list[float], Finish]:
    ids: list[int] = []
    logprobs: list[float] = []
    for event in events:
        found = reader.read(event)
        if found is not None:
            ids += found[0]
            logprobs += found[1]
    return ids, logprobs, reader.finish()


def vllm() -> Reader:
    return VLLMDialect("tiny").reader((b"5,6", b",7"), 3)


def llama() -> Reader:
    return LlamaCppDialect().reader((b"5,6,7",), 3)


def test_a_vllm_body_is_neutral_but_for_what_is_asked() -> None:
    pieces = VLLMDialect('ti"ny').body(
        (b"5,6", b",7"), max_tokens=9, stop_ids=frozenset({4, 2}), params={"temperature": 0.5, "top_k": None, "seed": 3}
    )
    assert pieces[1:3] == [b"5,6", b",7"]
    assert json.loads(b"".join(pieces)) == {
        "model": 'ti"ny',
        "prompt": [5, 6, 7],
        "max_tokens": 9,
        "stop_token_ids": [2, 4],
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": 0,
        "return_token_ids": True,
        "temperature": 0.5,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "seed": 3,
    }


def test_a_llama_body_speaks_its_words() -> None:
    body = LlamaCppDialect().body(
        (b"5",), max_tokens=9, stop_ids=frozenset({2}), params={"repetition_penalty": 1.1, "logit_bias": {"7": -1}}
    )
    assert json.loads(b"".join(body)) == {
        "prompt": [5],
        "n_predict": 9,
        "stream": True,
        "return_tokens": True,
        "n_probs": 1,
        "cache_prompt": True,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repeat_penalty": 1.1,
        "logit_bias": [[7, -1]],
    }


@pytest.mark.parametrize("params", [{"min_tokens": 3}, {"structured_outputs": {}}, {"logit_bias": {"x": 1}}])
def test_what_llama_would_ignore_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(params))):
        LlamaCppDialect().body((b"5",), max_tokens=9, stop_ids=frozenset(), params=params)


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object()])
def test_a_param_without_a_json_form_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="JSON"):
        VLLMDialect("tiny").body((b"5",), max_tokens=9, stop_ids=frozenset(), params={"seed": value})


@pytest.mark.parametrize("name", ["n", "n_cmpl", "best_of", "use_beam_search"])
def test_several_continuations_are_refused_with_what_to_do_instead(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"params\['{name}'\].*one continuation at a time.*group_size.*candidates"):
        check_params({name: 4})


def test_scores_of_the_prompt_are_refused_with_what_to_do_instead() -> None:
    with pytest.raises(ConfigError, match=r"only sampled tokens are scored.*a request of your own"):
        check_params({"prompt_logprobs": 1})


def part_of(index: object) -> bytes:
    event = json.loads(vllm_event((4,), [-1.0]))
    event["choices"][0]["index"] = index
    return json.dumps(event).encode()


@pytest.mark.parametrize("index", [1, 7, -1, True, "0", 0.0, [0]])
def test_tokens_of_two_continuations_never_mix(index: object) -> None:
    reader = vllm()
    assert reader.read(part_of(0)) == ([4], [-1.0])
    with pytest.raises(ModelError, match="several continuations of one prompt"):
        reader.read(part_of(index))


def test_two_continuations_in_one_event_never_mix() -> None:
    one = json.loads(vllm_event((4,), [-1.0], echo=[5, 6, 7]))
    two = {**one["choices"][0], "index": 1, "token_ids": [5]}
    for choices in ([one["choices"][0], two], [two, one["choices"][0]], [two]):
        with pytest.raises(ModelError, match="several continuations"):
            vllm().read(json.dumps({"choices": choices}).encode())


def test_a_server_that_does_not_number_its_continuations_sends_one() -> None:
    assert vllm().read(part_of(None)) == ([4], [-1.0])


@pytest.mark.parametrize(
    ("ids", "logprobs"), [((4, 5), [-1.0]), ((4,), [-1.0, -2.0]), ((4,), []), ((4,), None), ((), [-1.0])]
)
def test_counts_that_disagree_name_the_setting_of_vllm(ids: object, logprobs: object) -> None:
    with pytest.raises(ModelError, match=r"logprobs.*vLLM gives for logprobs=0 and return_token_ids=true"):
        vllm().read(vllm_event(ids, logprobs))


SCORES = [None, {"6": {"logprob": -0.25, "rank": 1}}, {"7": {"logprob": -0.5, "rank": 1}}]
"""Of the prompt's ids, as vLLM sends them for `prompt_logprobs`."""


def test_scores_of_the_prompt_that_come_unasked_are_kept_apart() -> None:
    events = [vllm_event((4,), [-6.0], echo=[5, 6, 7], prompt_logprobs=SCORES), vllm_event((2,), [-1.5], reason="stop")]
    assert read(vllm(), *events) == ([4, 2], [-6.0, -1.5], Finish(STOP))


@pytest.mark.parametrize(
    ("ids", "logprobs"),
    [
        ((4,), [None, -0.25, -0.5, -6.0]),  # the prompt's scores before those of what was sampled
        ((4,), [-0.75, -0.25, -0.5, -6.0]),
        ((5, 6, 7, 4), [None, -0.25, -0.5, -6.0]),  # its ids as well
        ((5, 6, 7, 4), [-6.0]),
    ],
)
def test_a_prompt_that_is_echoed_unasked_is_refused_before_anything_is_passed_on(ids: object, logprobs: object) -> None:
    with pytest.raises(ModelError):
        vllm().read(vllm_event(ids, logprobs))


def test_a_prompt_that_is_echoed_with_scores_for_all_is_noticed_at_the_end() -> None:
    with pytest.raises(ModelError, match="held 4 ids after a prompt of 3, but the server counts 1"):
        read(vllm(), vllm_event((5, 6, 7, 4), [-1.0, -0.25, -0.5, -6.0], reason="stop"), usage(3, 1))


RECORDED = {
    json.loads(line)["key"]: json.loads(line)
    for name in ("completions_vllm_0.32", "completions_llamacpp_11434")
    for line in (Path(__file__).parent / "recorded" / f"{name}.jsonl").read_text().splitlines()
}
STREAMS = [
    (key, reply["body"].encode())
    for key, reply in RECORDED.items()
    if reply["type"] == "text/event-stream" and reply["status"] == 200 and '"prompt": [5, 6, 7, 8]' in key
]


def streamed(key: str, parts: list[bytes]) -> object:
    reader = LlamaCppDialect().reader((b"5,6,7,8",), 4) if key.startswith("/completion ") else four()
    decoder = SSEDecoder()
    events = [event for part in parts for event in decoder.feed(part) if event != b"[DONE]"]
    try:
        return read(reader, *events)
    except ModelError as error:
        return str(error)


def four() -> Reader:
    return VLLMDialect("tiny").reader((b"5", b",6,7", b",8"), 4)


@given(st.sampled_from(STREAMS), st.lists(st.integers(0, 1 << 16), max_size=9))
def test_however_the_bytes_of_a_recorded_answer_are_cut_it_is_the_same(
    stream: tuple[str, bytes], cuts: list[int]
) -> None:
    key, body = stream
    inside = [at for at, byte in enumerate(body) if 0x80 <= byte < 0xC0]  # where a cut parts a character
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts), *inside[: len(cuts)]})
    assert streamed(key, [body[start:stop] for start, stop in pairwise(places)]) == streamed(key, [body])


def test_the_recorded_answers_hold_characters_that_a_cut_can_part() -> None:
    assert sum(any(byte >= 0x80 for byte in body) for _, body in STREAMS) >= 3
    assert sum(isinstance(streamed(key, [body]), tuple) for key, body in STREAMS) >= 10


@pytest.mark.parametrize(("reason", "by", "found"), [("stop", "r>", "r>"), ("stop", 70, None), ("length", "r>", None)])
def test_the_stop_string_that_ended_it_is_named(reason: str, by: object, found: str | None) -> None:
    finish = read(vllm(), vllm_event((4,), [-1.0], reason=reason, stop_reason=by))[2]
    assert finish.stop_string == found


def test_the_stop_string_that_ended_it_is_named_by_llama_too() -> None:
    ended = llama_event([], 1, stop=True, stop_type="word", stopping_word="r>")
    assert read(llama(), llama_event([4], 1), ended)[2] == Finish(STOP, stop_string="r>")
    at_the_end = llama_event([], 1, stop=True, stop_type="eos", stopping_word="")
    assert read(llama(), llama_event([4], 1), at_the_end)[2] == Finish(STOP)


@pytest.mark.parametrize(
    "name", ["prompt", "stream", "max_tokens", "n", "logprobs", "stop_token_ids", "echo", "model", "return_token_ids"]
)
def test_what_the_client_sets_itself_is_refused_with_where_to_set_it(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"params\['{name}'\].*is set by"):
        check_params({"temperature": 1, name: 1})


def test_a_vllm_answer_is_read_as_it_came() -> None:
    events = [
        vllm_event((491,), [-5.5], echo=[5, 6, 7]),
        vllm_event((), None),  # text that was held back
        vllm_event((4, 2), [-6, -0.0], reason="stop", stop_reason=None),
        usage(3, 3),
    ]
    assert read(vllm(), *events) == ([491, 4, 2], [-5.5, -6.0, -0.0], Finish(STOP))


@pytest.mark.parametrize(
    ("reason", "finish"), [("stop", STOP), ("length", LENGTH), ("abort", FinishReason.ABORTED), ("repetition", LENGTH)]
)
def test_vllm_s_finish_reasons(reason: str, finish: FinishReason) -> None:
    assert read(vllm(), vllm_event((4,), [-1.0], reason=reason))[2] == Finish(finish)


@pytest.mark.parametrize("reason", ["error", "tool_calls", 3, True, ["stop"], {}])
def test_another_finish_reason_is_an_error(reason: object) -> None:
    with pytest.raises(ModelError, match="ended the generation with") as caught:
        read(vllm(), vllm_event((4,), [-1.0], reason=reason))
    assert caught.value.retryable == (reason == "error")


@pytest.mark.parametrize("reason", ["stop", "abort"])
def test_an_empty_generation_is_one(reason: str) -> None:
    assert read(vllm(), vllm_event((), None, reason=reason), usage(3, 0))[0] == []
    assert read(vllm(), vllm_event((), [], reason=reason))[0] == []
    assert read(vllm(), vllm_event(None, None, reason=reason))[0] == []


@pytest.mark.parametrize("events", [[], [vllm_event((4,), [-1.0])], [usage(3, 0)]])
def test_a_vllm_stream_without_an_end_was_cut(events: list[bytes]) -> None:
    with pytest.raises(ModelError, match="ended before") as caught:
        read(vllm(), *events)
    assert caught.value.retryable


@pytest.mark.parametrize(("prompt", "completion"), [(3, 2), (4, 1), (None, 1), (3, None), ("3", 1), (3, [])])
def test_tokens_lost_on_the_way_are_noticed(prompt: object, completion: object) -> None:
    with pytest.raises(ModelError, match="lost on the way"):
        read(vllm(), vllm_event((4,), [-1.0], reason="stop"), usage(prompt, completion))


def counted(event: bytes, prompt_tokens: int, completion_tokens: int) -> bytes:
    """The same event with the usage in it, as those send it that count in every event, or in the last."""
    counts = json.loads(usage(prompt_tokens, completion_tokens))["usage"]
    return json.dumps({**json.loads(event), "usage": counts}).encode()


@pytest.mark.parametrize("ids", [None, ()])
def test_tokens_lost_on_the_way_are_noticed_wherever_they_are_counted(ids: object) -> None:
    with pytest.raises(ModelError, match="held 0 ids after a prompt of 3, but the server counts 48 after 3"):
        read(vllm(), counted(vllm_event(ids, None, reason="length", text="of 48 tokens"), 3, 48))


def test_the_last_count_is_the_one_that_holds() -> None:
    events = [
        counted(vllm_event((), None), 3, 0),
        counted(vllm_event((4,), [-1.0]), 3, 1),
        counted(vllm_event((5, 2), [-1.0, -2.0], reason="stop"), 3, 3),
    ]
    assert read(vllm(), *events)[0] == [4, 5, 2]
    assert read(vllm(), *events, usage(3, 3))[0] == [4, 5, 2]


@pytest.mark.parametrize("echo", [[5, 6], [5, 6, 8], [5, 6, 7, 8], [], [5, 67]])
def test_a_prompt_that_was_rewritten_on_the_way_is_noticed(echo: list[int]) -> None:
    with pytest.raises(ModelError, match="another prompt"):
        vllm().read(vllm_event((4,), [-1.0], echo=echo))


def test_a_quoted_prompt_is_compared_whatever_its_spaces() -> None:
    spaced = json.dumps(json.loads(vllm_event((4,), [-1.0], echo=[5, 6, 7])))
    assert read(vllm(), spaced.encode(), vllm_event((), None, reason="stop"))[0] == [4]
    tight = vllm_event((4,), [-1.0], echo=[5, 6, 7]).replace(b"[5,6,7]", b"[5, 6 ,7]")
    assert read(vllm(), tight, vllm_event((), None, reason="stop"))[0] == [4]
    with pytest.raises(ModelError, match="another prompt"):
        vllm().read(vllm_event((4,), [-1.0], echo=[5, 6, 7]).replace(b"[5,6,7]", b"[5, 6 ,8]"))


def test_text_that_spells_the_quoted_prompt_is_text() -> None:
    event = vllm_event((4,), [-1.0], text='"prompt_token_ids":[9,9],"token_ids":[1]', echo=[5, 6, 7])
    assert vllm().read(event) == ([4], [-1.0])


@pytest.mark.parametrize(
    ("ids", "logprobs"),
    [
        ((4, 5), [-1.0]),
        ((4,), []),
        ((4,), None),
        ((), [-1.0]),
        (None, [-1.0]),
        ((4,), [None]),
        ((4,), [float("nan")]),
        ((4,), [float("-inf")]),
        ((4,), [0.5]),
        ((4,), [True]),
        ((4,), ["-1.0"]),
        ((4,), [-(10**400)]),
        ((-1,), [-1.0]),
        ((2**31,), [-1.0]),
        ((True,), [-1.0]),
        ((4.0,), [-1.0]),
        (("4",), [-1.0]),
        ((None,), [-1.0]),
        ({"0": 4}, [-1.0]),
        ("4", [-1.0]),
        ((4,), {"0": -1.0}),
    ],
)
def test_what_is_no_token_with_a_logprob_is_refused(ids: object, logprobs: object) -> None:
    with pytest.raises(ModelError) as caught:
        vllm().read(vllm_event(ids, logprobs))
    assert not caught.value.retryable
    assert len(str(caught.value)) < 300


def test_tokens_after_the_end_are_refused() -> None:
    with pytest.raises(ModelError, match="after it had ended"):
        read(vllm(), vllm_event((4,), [-1.0], reason="stop"), vllm_event((5,), [-1.0]))


def test_a_server_without_ids_is_told_from_noise() -> None:
    without = json.dumps({"choices": [{"index": 0, "text": "x", "logprobs": None, "finish_reason": None}]})
    with pytest.raises(ModelError, match="return_token_ids"):
        vllm().read(without.encode())
    with pytest.raises(ModelError, match="cannot be read"):
        vllm().read(b"<html>")
    with pytest.raises(ModelError, match="out-of-vocab"):
        vllm().read(b'{"error": {"message": "out-of-vocab", "code": 400}}')


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "token_ids",
                    "logprobs",
                    "token_logprobs",
                    "finish_reason",
                    "usage",
                    "error",
                    "message",
                    "tokens",
                    "stop",
                    "tokens_predicted",
                    "completion_probabilities",
                    "id",
                    "logprob",
                    "tokens_evaluated",
                ]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)


@given(JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40))
def test_any_event_is_tokens_or_a_model_error(data: bytes) -> None:
    for reader in (vllm(), llama()):
        try:
            found = reader.read(data)
        except ModelError:
            continue
        assert found is None or len(found[0]) == len(found[1])


@given(st.data())
def test_an_event_with_one_part_replaced_is_tokens_or_a_model_error(data: st.DataObject) -> None:
    sources = [vllm_event((4,), [-1.0], reason="stop", echo=[5, 6, 7]), llama_event([4], 1, stop=True, stop_type="eos")]
    for make, source in zip((vllm, llama), sources, strict=True):
        event = json.loads(source)
        place: Any = event
        while True:
            key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else list(range(len(place)))))
            if not place[key] or not isinstance(place[key], dict | list) or data.draw(st.booleans()):
                break
            place = place[key]
        place[key] = data.draw(JSON)
        reader = make()
        try:
            found = reader.read(json.dumps(event).encode())
            reader.finish()
        except ModelError:
            continue
        assert found is None or found[0] == [] or all(type(each) is int and each >= 0 for each in found[0])


def test_a_llama_answer_is_read_as_it_came() -> None:
    events = [llama_event([57], 1), llama_event([2], 2), llama_event([], 2, stop=True, stop_type="eos")]
    assert read(llama(), *events) == ([57, 2], [-1.5, -1.5], Finish(STOP))


@pytest.mark.parametrize(("stop_type", "finish"), [("eos", STOP), ("word", STOP), ("limit", LENGTH)])
def test_llama_s_ends(stop_type: str, finish: FinishReason) -> None:
    assert read(llama(), llama_event([], 0, stop=True, stop_type=stop_type))[2] == Finish(finish)


SCORED = [{"id": 4, "logprob": -1.0, "top_logprobs": [TOP]}]
DRAFTED = [{"id": 4, "logprob": 0.0, "top_logprobs": []}]
"""As the server writes a token that it accepted from a draft."""


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (llama_event([4], 2), "not token-exact"),
        (llama_event([], 1, stop=True, stop_type="eos"), "not token-exact"),
        (llama_event([4], 1, evaluated=9), "prompt of 9"),
        (llama_event([4], 1, completion_probabilities=[{"id": 5, "logprob": -1.0}]), "logprobs of others"),
        (llama_event([4], 1, completion_probabilities=[]), "1 ids with 0 logprobs: .*llama.cpp.*n_probs"),
        (llama_event([4, 5], 2, completion_probabilities=SCORED), "2 ids with 1 logprobs: .*llama.cpp.*n_probs"),
        (llama_event([4], 1, completion_probabilities=DRAFTED), "without their logprobs: .*--model-draft"),
        (llama_event([4], 1, index=1), "several continuations"),
        (llama_event([4], 1, completion_probabilities=[{"id": 4, "prob": 0.5}]), "cannot be read"),
        (llama_event([], 0, stop=True, stop_type="none"), "ended the generation with"),
        (b'{"error": {"message": "slot gone", "code": 500}}', "slot gone"),
    ],
)
def test_a_llama_answer_that_is_not_exact_is_refused(event: bytes, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        llama().read(event)


def test_a_llama_stream_without_an_end_was_cut() -> None:
    with pytest.raises(ModelError, match="ended before") as caught:
        read(llama(), llama_event([4], 1))
    assert caught.value.retryable
    with pytest.raises(ModelError, match="went on after"):
        read(llama(), llama_event([], 0, stop=True, stop_type="eos"), llama_event([], 0))


def test_an_error_beside_an_empty_list_is_an_error() -> None:
    event = json.dumps({"choices": [], "error": {"message": "out of memory", "code": 400}}).encode()
    with pytest.raises(ModelError, match="out of memory"):
        vllm().read(event)
