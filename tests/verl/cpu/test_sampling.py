"""Sampling against a slow, obvious account of it."""

import math
import random

import pytest
import torch
from agentkit_verl.cpu.sampling import Sampling, sample

ENDS = frozenset({9})


def read(**params):
    return Sampling.of(params, default_limit=40, room=100, ends=ENDS)


def draw(logits, rows, *, times=1, seed=0, vocabulary=None):
    shared = torch.Generator().manual_seed(seed)
    batch = torch.tensor([logits] * times) if times > 1 else torch.tensor(logits)
    rows = rows * times if times > 1 else rows
    return sample(batch, rows, [None] * len(rows), shared, vocabulary)


def allowed(logits, temperature, top_k, top_p):
    """Which tokens may be sampled, with their shares: sorted, cut to the top k, then to the fewest that reach top_p."""
    scaled = [x / temperature for x in logits]
    order = sorted(range(len(logits)), key=lambda i: -scaled[i])
    if top_k > 0:
        order = order[:top_k]
    total = sum(math.exp(scaled[i]) for i in order)
    kept, mass = [], 0.0
    for i in order:
        if mass >= top_p:
            break
        kept.append(i)
        mass += math.exp(scaled[i]) / total
    left = sum(math.exp(scaled[i]) for i in kept)
    return {i: math.exp(scaled[i]) / left for i in kept}


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, -1, 1.0), (0.7, -1, 1.0), (1.0, 3, 1.0), (1.3, -1, 0.6), (0.9, 4, 0.7), (1.0, 0, 0.05), (1.0, 50, 0.999)],
)
def test_tokens_come_as_often_as_their_shares_say(temperature, top_k, top_p):
    logits = [2.0, 1.1, 0.3, -0.5, 1.9, -2.0]
    times = 20_000
    row = Sampling(limit=1, temperature=temperature, top_k=top_k, top_p=top_p)
    tokens, logprobs = draw(logits, [row], times=times)
    shares = allowed(logits, temperature, top_k, top_p)
    assert set(tokens) <= set(shares)
    for token, share in shares.items():
        # five standard deviations of a count
        assert tokens.count(token) / times == pytest.approx(
            share, abs=5 * math.sqrt(share * (1 - share) / times) + 1e-9
        )
    whole = allowed(logits, temperature, -1, 1.0)  # as the trainer computes it again: before anything was cut
    assert logprobs[:50] == pytest.approx([math.log(whole[token]) for token in tokens[:50]], abs=1e-5)


def test_rows_of_a_batch_are_sampled_each_in_its_own_way():
    rng = random.Random(1)
    logits = [[rng.uniform(-3, 3) for _ in range(12)] for _ in range(4)]
    rows = [
        Sampling(limit=1, temperature=0.0),
        Sampling(limit=1, top_k=1),
        Sampling(limit=1, top_p=1e-6),
        Sampling(limit=1, temperature=2.0, top_k=2),
    ]
    best = [max(range(12), key=row.__getitem__) for row in logits]
    second = sorted(range(12), key=logits[3].__getitem__)[-2:]
    for seed in range(20):
        tokens, _ = draw(logits, rows, seed=seed)
        assert tokens[:3] == best[:3]
        assert tokens[3] in second


def test_a_seeded_row_is_sampled_the_same_whatever_else_is_there():
    torch.manual_seed(0)
    logits = torch.randn(1, 50)
    row = Sampling(limit=1, seed=5)

    def tokens(others):
        generators = [torch.Generator().manual_seed(5)] + [None] * others
        shared = torch.Generator().manual_seed(others)
        batch = torch.cat([logits, torch.randn(others, 50)])
        return sample(batch, [row] + [Sampling(limit=1)] * others, generators, shared)[0]

    assert len({tokens(others)[0] for others in range(5)}) == 1


def test_tokens_beyond_the_tokenizer_are_never_sampled():
    tokens, _ = draw([0.0, 0.0, 50.0, 60.0], [Sampling(limit=1)], times=200, vocabulary=2)
    assert set(tokens) == {0, 1}
    tokens, _ = draw([[0.0, 1.0, 50.0, 60.0]], [Sampling(limit=1, temperature=0.0)], vocabulary=2)
    assert tokens == [1]


def test_what_a_request_asks_for():
    assert read() == Sampling(limit=40, stops=ENDS)
    assert read(max_tokens=7).limit == 7
    assert read(max_new_tokens=8).limit == 8
    assert read(max_tokens=1000).limit == 100
    assert read(max_tokens=0).limit == 1  # as vLLM under verl: no request samples nothing
    assert read(max_tokens=None, max_new_tokens=3).limit == 3
    assert read(stop_token_ids=[3, 4]).stops == {3, 4, 9}
    assert read(stop_token_ids=[3], ignore_eos=True).stops == {3}
    assert read(temperature=0, top_p=0.5, top_k=3) == Sampling(limit=40, stops=ENDS, temperature=0, top_p=0.5, top_k=3)
    assert [read(logprobs=x).logprobs for x in (True, False, None, 0, 1)] == [True, False, False, True, True]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1: it cannot be negative"),
        ({"top_p": 0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
    ],
)
def test_values_that_make_no_sense(params, message):
    with pytest.raises(ValueError, match=message):
        read(**params)


def test_what_would_change_the_sample_and_is_not_known_is_said_once(caplog, monkeypatch):
    monkeypatch.setattr("agentkit_verl.cpu.sampling._warned", set())
    read(repetition_penalty=1.0, min_p=0.0, n=1, stop=[], guided="x")
    assert not caplog.records
    read(repetition_penalty=1.2)
    read(repetition_penalty=1.2)
    assert [record.getMessage() for record in caplog.records] == [
        "the rollout server for CPUs does not know the sampling parameter 'repetition_penalty': ignored"
    ]
