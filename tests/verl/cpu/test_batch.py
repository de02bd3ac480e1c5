"""Rows that share a batch get what each would get alone."""

import random

import pytest
import torch
from agentkit_verl.cpu.batch import Batch, Row
from agentkit_verl.cpu.sampling import Sampling

VOCABULARY = 300


def prompt(rng, longest=60):
    return [rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, longest))]


@torch.inference_mode()
def greedy(model, tokens, limit, stops=frozenset()):
    """One request alone, without a cache: the whole context is computed for each token."""
    tokens, found = list(tokens), []
    while len(found) < limit and not (found and found[-1] in stops):
        logits = model(input_ids=torch.tensor([tokens])).logits[0, -1]
        found.append(int(logits[:VOCABULARY].argmax()))
        tokens.append(found[-1])
    return found


@torch.inference_mode()
def logprobs(model, prompt, sampled, temperature):
    """As a trainer computes them: one pass over everything."""
    logits = model(input_ids=torch.tensor([prompt + sampled])).logits[0].float() / temperature
    whole = torch.log_softmax(logits, dim=-1)
    return [float(whole[len(prompt) + i - 1, token]) for i, token in enumerate(sampled)]


def run(batch, arrivals, departures=()):
    """Steps to the end; rows arrive and depart at the steps given. What each was given: [(token, logprob)]."""
    found = {}
    step = 0
    while True:
        joins = [row for when, row in arrivals if when == step]
        leaves = [row for when, row in departures if when == step]
        sampled = batch.step(joins, leaves)
        for one in sampled:
            found.setdefault(id(one.row), []).append((one.token, one.logprob))
        step += 1
        if not sampled and not len(batch) and all(when < step for when, _ in arrivals):
            return found


@pytest.mark.parametrize("seed", range(6))
def test_greedy_rows_that_come_and_go_get_what_each_gets_alone(model, seed):
    rng = random.Random(seed)
    greedily = [
        (rng.randrange(6), Row.of(prompt(rng), Sampling(limit=rng.randint(1, 12), temperature=0.0))) for _ in range(9)
    ]
    alone = {id(row): greedy(model, row.tokens, row.sampling.limit) for _, row in greedily}
    gone = greedily[0][1]
    batch = Batch(model, VOCABULARY, most_rows=rng.choice([1, 3, 100]), most_tokens=rng.choice([1, 90, 8192]))
    found = run(batch, greedily, departures=[(3, gone)])
    for _, row in greedily:
        tokens = [token for token, _ in found.get(id(row), [])]
        if row is gone:
            assert tokens == alone[id(row)][: len(tokens)]
        else:
            assert tokens == alone[id(row)]


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_logprobs_are_those_of_one_pass_over_the_whole(model, temperature):
    rng = random.Random(temperature)
    sampling = Sampling(limit=25, temperature=temperature, top_k=200, top_p=0.98)
    arrivals = [(when, Row.of(prompt(rng), sampling)) for when in (0, 0, 2, 5, 5, 9)]
    prompts = {id(row): list(row.tokens) for _, row in arrivals}
    found = run(Batch(model, VOCABULARY, seed=3), arrivals)
    for _, row in arrivals:
        tokens = [token for token, _ in found[id(row)]]
        assert row.tokens == prompts[id(row)] + tokens
        assert [x for _, x in found[id(row)]] == pytest.approx(
            logprobs(model, prompts[id(row)], tokens, temperature), abs=1e-4
        )


def test_a_row_ends_at_a_token_that_stops_it(model):
    rng = random.Random(0)
    tokens = prompt(rng)
    whole = greedy(model, tokens, 20)
    stop = whole[7]
    row = Row.of(tokens, Sampling(limit=20, temperature=0.0, stops=frozenset({stop})))
    found = [token for token, _ in run(Batch(model, VOCABULARY), [(0, row)])[id(row)]]
    assert found == whole[: whole.index(stop) + 1]


def test_new_weights_hold_from_the_next_token_for_all_of_the_context(load_model):
    old, new = load_model(), load_model()
    with torch.no_grad():
        for value in new.parameters():
            value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(1)) * 0.3)
    rng = random.Random(2)
    arrivals = [(when, Row.of(prompt(rng), Sampling(limit=12, temperature=0.0))) for when in (0, 0, 3)]
    rows = [row for _, row in arrivals]
    prompts = [list(row.tokens) for row in rows]
    expected = []
    for when, (arrived, _) in enumerate(arrivals):
        before = greedy(old, prompts[when], 5 - arrived)
        expected.append(before + greedy(new, prompts[when] + before, 12 - len(before)))

    batch = Batch(load_model(), VOCABULARY, version=0)
    versions = {id(row): [] for row in rows}
    for step in range(30):
        if step == 5:
            batch.load(dict(new.state_dict()), 1)
        for one in batch.step([row for when, row in arrivals if when == step]):
            versions[id(one.row)].append(one.version)
    assert [row.tokens[len(before) :] for row, before in zip(rows, prompts, strict=True)] == expected
    assert [versions[id(row)].count(0) for row in rows] == [5, 5, 2]
    assert all(versions[id(row)] == sorted(versions[id(row)]) for row in rows)


def test_weights_that_are_not_the_models_change_nothing(model):
    batch = Batch(model, VOCABULARY, version=4)
    name, value = next(iter(model.state_dict().items()))
    before = value.clone()
    good = {name: torch.zeros_like(value)}
    with pytest.raises(ValueError, match=r"the model has no weight 'model\.other'"):
        batch.load(good | {"model.other": value}, 5)
    with pytest.raises(ValueError, match=r"is \[3\], the model's is"):
        batch.load(good | {"model.norm.weight": torch.zeros(3)}, 5)
    assert torch.equal(model.state_dict()[name], before)
    assert batch.version == 4
