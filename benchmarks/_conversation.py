"""What `tokenize.py` measures: a long conversation, turn by turn, in several model families.

A turn is about 400 sampled and 800 observed tokens; no two are alike. Measured as CPU time, all side by side in each
round, in an order that changes from round to round:

- ours: the first prompt, then for each turn the sampled ids into the ledger, the bridge, its ids into the ledger
- limit: encoding each new text once with the bare tokenizer, which finds control tokens in what tools return
- full re-render: `apply_chat_template` of everything, at every tenth turn, and the turns between reckoned from those
- verl 0.9.1: its builder of continuous tokens for that family, with the response mask and log-probabilities it aligns

    TOKENIZERS_PARALLELISM=false taskset -c 1 .venv/bin/python benchmarks/tokenize.py
"""

import argparse
import gc
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from _report import ROOT, heading, row
from _turns import OPENING, TOOLS, Turn, turns, wire, wire_tools
from attrs import field, frozen

from agentkit import ToolSpec
from agentkit.protocols import SpanKind
from agentkit.tokens import HFTemplate, Ledger, TemplateRenderer

sys.path.insert(0, str(ROOT))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_NOW = datetime(2026, 11, 30, 12)
_SLOW = 0.1
"""Seconds a turn above which a way is gone once only."""


@frozen
class Subject:
    """A specimen of `tests/vocabularies`, what ends a turn that calls a tool, and verl's name for the family.

    `talks` is False where the template drops or moves what is said beside calls.
    """

    name: str
    stop: str
    verl: str
    tools: tuple[ToolSpec, ...] = TOOLS
    talks: bool = True


SUBJECTS = (
    Subject("qwen3-training", "<|im_end|>", "qwen3"),
    Subject("qwen3", "<|im_end|>", "qwen3"),
    Subject("llama3.1", "<|eot_id|>", "default", talks=False),
    Subject("deepseek-v3.1", "<｜end▁of▁sentence｜>", "deepseek", ()),  # its template shows no tools
    Subject("gpt-oss", "<|call|>", "gptoss"),
    Subject("glm-4.6", "<|observation|>", "glm47"),
    Subject("mistral-small-3.2", "</s>", "default", talks=False),
    Subject("gemma4", "<|tool_response>", "gemma4", talks=False),
)


@frozen
class Conversation:
    """A conversation, and what is needed to hold it in each of the ways."""

    subject: Subject
    hf: Any
    renderer: TemplateRenderer
    turns: Sequence[Turn]
    opening: str
    kwargs: Mapping[str, object]

    @staticmethod
    def of(subject: Subject, count: int, sampled: int, observed: int) -> "Conversation":
        """`count` turns; the renderer keeps history where the template would rewrite it."""
        from agentkit_hf import hf_renderer

        from tests.vocabularies import load, specimen_named

        hf, kwargs = load(subject.name), dict(specimen_named(subject.name).kwargs)
        renderer = hf_renderer(hf, keep_history=True, **kwargs).dated(_NOW)
        made = turns(hf, count, sampled, observed, subject.stop, kwargs, tools=subject.tools, talks=subject.talks)
        opening = hf.apply_chat_template(
            [wire(message) for message in OPENING],
            tools=wire_tools(subject.tools),
            add_generation_prompt=True,
            tokenize=False,
            **kwargs,
        )
        return Conversation(subject, hf, renderer, made, opening, kwargs)


@frozen
class Costs:
    """CPU seconds of each turn; the first prompt's count as the first turn's. `ids` are those of the whole chain."""

    turns: list[float] = field(factory=list)
    ids: list[int] = field(factory=list)


def ours(said: Conversation) -> Costs:
    """The renderer and the ledger."""
    renderer, tools, costs, ledger = said.renderer, said.subject.tools, Costs(), Ledger()
    started = time.process_time()
    chain = ledger.open(renderer.prompt(OPENING, tools))
    for number, turn in enumerate(said.turns):
        ledger.sample(chain, turn.sampled, turn.logprobs, turn=number)
        close, tail = renderer.bridge(turn.said, (turn.result,), tools, sampled=turn.sampled)
        if close:
            ledger.append(chain, close, SpanKind.CLOSE, turn=number)
        ledger.append(chain, tail, SpanKind.OBSERVATION, turn=number)
        costs.turns.append(-started + (started := time.process_time()))
    costs.ids.extend(ledger.view(chain))
    return costs


def limit(said: Conversation) -> Costs:
    """Each new text once, encoded and nothing else."""
    encode, costs = said.hf.backend_tokenizer.encode, Costs()
    started = time.process_time()
    costs.ids.extend(encode(said.opening, add_special_tokens=False).ids)
    for turn in said.turns:
        ids = encode(turn.tail, add_special_tokens=False).ids
        costs.turns.append(-started + (started := time.process_time()))
        costs.ids.extend((*turn.sampled, *ids))
        started = time.process_time()
    return costs


def full_renders(said: Conversation, every: int) -> Costs:
    """Everything rendered and encoded again; turns between two that are measured cost what the later one does not."""
    costs, messages = Costs(), [wire(message) for message in OPENING]
    as_text, last, tools = "▁" in said.subject.stop, 0.0, wire_tools(said.subject.tools)
    for number, turn in enumerate(said.turns):
        messages += [wire(turn.said, arguments_as_text=as_text), wire(turn.result)]
        if (number + 1) % every:
            continue
        started = time.process_time()
        ids = said.hf.apply_chat_template(
            messages, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False, **said.kwargs
        )
        cost = time.process_time() - started
        costs.turns.extend(last + (cost - last) * step / every for step in range(1, every + 1))
        last = cost
        costs.ids[:] = ids
    return costs


def verl(said: Conversation) -> Costs:
    """Verl's builder, which raises where it cannot go on."""
    from tests.vocabularies.peers import verl_continuous_token

    builder = verl_continuous_token().create_continuous_token_builder(
        said.hf, model_family=said.subject.verl, chat_template_kwargs=dict(said.kwargs)
    )
    costs, messages = Costs(), [wire(message) for message in OPENING]
    tools = wire_tools(said.subject.tools)
    as_text = "▁" in said.subject.stop
    more = [(wire(turn.said, arguments_as_text=as_text), wire(turn.result)) for turn in said.turns]
    started = time.process_time()
    ids = builder.build_initial_tokens(messages, tools=tools)
    mask: list[int] = []
    scores: list[float] | None = []
    for turn, (action, result) in zip(said.turns, more, strict=True):
        merged = builder.merge_assistant_tokens(ids, turn.sampled)
        mask, scores = builder.align_response_metadata(merged, mask, scores, assistant_logprobs=turn.logprobs)
        before, messages = [*messages, action], [*messages, action, result]
        merged = builder.merge_context_tokens(before, messages, merged.token_ids, tools=tools)
        mask, scores = builder.align_response_metadata(merged, mask, scores)
        ids = merged.token_ids
        costs.turns.append(-started + (started := time.process_time()))
    costs.ids.extend(ids)
    return costs


class CountingTokenizer:
    """A tokenizer that counts the characters that it is given to encode, alike otherwise."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.control = inner.control
        self.swallows = inner.swallows
        self.decode = inner.decode
        self.chars = 0

    def encode(self, text: str) -> list[int]:
        self.chars += len(text)
        return self._inner.encode(text)

    def encode_start(self, text: str) -> list[int]:
        self.chars += len(text)
        return self._inner.encode_start(text)


class CountingTemplate:
    """A template that counts the characters that it renders."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.chars = 0

    def __call__(self, messages: Any, tools: Any, *, generation_prompt: bool) -> str:
        text = self._inner(messages, tools, generation_prompt=generation_prompt)
        self.chars += len(text)
        return text


def touched(said: Conversation) -> list[tuple[int, int, int]]:
    """Turn by turn: characters of new text, characters encoded, characters rendered."""
    tokenizer = CountingTokenizer(said.renderer.tokenizer)
    template = CountingTemplate(HFTemplate(said.hf, **said.kwargs).dated(_NOW))
    renderer = TemplateRenderer(tokenizer, template, said.renderer.family, keep_history=True)
    tools, counts = said.subject.tools, []
    for turn in said.turns:
        tokenizer.chars = template.chars = 0
        renderer.bridge(turn.said, (turn.result,), tools, sampled=turn.sampled)
        counts.append((len(turn.tail), tokenizer.chars, template.chars))
    return counts


def wire_bytes(said: Conversation) -> list[tuple[int, int]]:
    """Turn by turn: bytes of JSON written for the request by the client's cache, and by `json.dumps` of the prompt."""
    from agentkit_openai.wire import PromptWire

    client, ledger, counts = PromptWire(), Ledger(), []
    chain, before = ledger.open(said.renderer.prompt(OPENING, said.subject.tools)), 0
    for number, turn in enumerate(said.turns):
        ledger.sample(chain, turn.sampled, turn.logprobs, turn=number)
        ledger.append(
            chain,
            said.renderer.bridge(turn.said, (turn.result,), said.subject.tools, sampled=turn.sampled)[1],
            SpanKind.OBSERVATION,
            turn=number,
        )
        prompt = ledger.view(chain)
        written = b"".join(client.pieces("one", prompt))
        whole = json.dumps(list(prompt), separators=(",", ":")).encode()
        if written != whole[1:-1]:
            raise SystemExit(f"{said.subject.name}: the wire form of turn {number} is not its prompt")
        counts.append((client.encoded_bytes - before, len(whole)))
        before = client.encoded_bytes
    return counts


def show(said: Conversation, rounds: int, every: int) -> None:
    """Measure and print one family."""
    ways: dict[str, Callable[[Conversation], Costs]] = {"ours": ours, "limit": limit, "verl 0.9.1": verl}
    refused: dict[str, str] = {}
    firsts: dict[str, list[int]] = {}
    spent: dict[str, list[list[float]]] = {name: [] for name in ways}
    for name, way in list(ways.items()):  # also the warm-up
        try:
            warm = way(said)
        except Exception as error:
            refused[name] = f"{type(error).__name__}: {error}"
            del ways[name]
            continue
        firsts[name] = warm.ids
        if sum(warm.turns) > _SLOW * len(said.turns):  # once is enough
            spent[name].append(warm.turns)
            del ways[name]
    for turn in range(rounds):
        names = list(ways)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            gc.collect()
            spent[name].append(ways[name](said).turns)
    gc.collect()
    naive = full_renders(said, every)
    count = len(said.turns)
    print(f"\n{said.subject.name}: {len(firsts['ours']):,} tokens in the end")
    totals = {name: [sum(one) for one in runs] for name, runs in spent.items() if runs}
    for name, label in (
        ("ours", "ours, injection safe"),
        ("limit", "limit: new text encoded once"),
        ("verl 0.9.1",) * 2,
    ):
        if name in totals:
            row(label, [total / count * 1e3 for total in totals[name]], "ms a turn")
        else:
            print(f"  {label:<44} raises {refused[name]:.200}")
    measured = f"one turn in {every} measured" if every > 1 else "n=1"
    print(f"  {'full re-render of each turn':<44} {sum(naive.turns) / count * 1e3:,.1f} ms a turn  ({measured})")
    row("ours / limit (target: 1.3)", _ratios(totals["ours"], totals["limit"]), "times")
    row("full re-render / ours", [sum(naive.turns) / total for total in totals["ours"]], "times")
    if "verl 0.9.1" in totals:
        row("verl / ours", _ratios(totals["verl 0.9.1"], totals["ours"][: len(totals["verl 0.9.1"])]), "times")
    some = max(1, min(10, count // 2))
    row(
        f"last {some} turns / first {some} (target: 1.2)",
        [statistics.median(one[-some:]) / statistics.median(one[:some]) for one in spent["ours"]],
        "times",
    )
    _show_counts(said)
    same = {"full re-render": naive.ids, "encoded apart": firsts["limit"], "verl": firsts.get("verl 0.9.1", [])}
    agree = [name for name, ids in same.items() if ids == firsts["ours"]]
    print(f"  {'the same ids in the end as':<44} {', '.join(agree) or 'none of the others'}")


def _show_counts(said: Conversation) -> None:
    counts = touched(said)
    encoded = [more - new for new, more, _ in counts]
    rendered = [more - new for new, _, more in counts[2:]]  # the first two ask the template what it needs
    print(f"  {'characters encoded, less the new ones':<44} {max(encoded)} at most a turn, {encoded[-1]} in the last")
    print(
        f"  {'characters rendered, less the new ones':<44} {max(rendered)} at most a turn, {rendered[-1]} in the last"
    )
    sizes = wire_bytes(said)
    for name, column in (("bytes of JSON written a request", 0), ("the same without the client's cache", 1)):
        print(f"  {name:<44} {sizes[1][column]:,} in the second turn, {sizes[-1][column]:,} in the last")


def _ratios(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(ones, others, strict=True)]


def main() -> None:
    """Print the table."""
    logging.disable(logging.WARNING)  # transformers says that torch is missing, verl which builder it takes
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--sampled", type=int, default=400, help="tokens sampled a turn")
    parser.add_argument("--observed", type=int, default=800, help="tokens observed a turn")
    parser.add_argument("--repeat", type=int, default=7, help="rounds, each way once in each")
    parser.add_argument("--every", type=int, default=10, help="how often the full re-render is measured")
    parser.add_argument("--only", nargs="*", choices=[subject.name for subject in SUBJECTS], help="these families")
    given = parser.parse_args()
    if given.turns < 4 or given.turns % given.every:
        parser.error("--turns must be at least 4, and a multiple of --every")
    heading(f"CPU of {given.turns} turns of {given.sampled} sampled and {given.observed} observed tokens")
    for subject in SUBJECTS:
        if not given.only or subject.name in given.only:
            show(Conversation.of(subject, given.turns, given.sampled, given.observed), given.repeat, given.every)
