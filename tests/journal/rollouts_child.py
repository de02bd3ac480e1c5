"""Rolls out until it is killed: `python rollouts_child.py RUN TASKS BACKEND CANCELLED`; prints what was acknowledged.

CANCELLED is the share of rollouts that end as `cancelled`, which the next run is to repeat.

Tokens are a function of the rollout and the turn, so that whoever reads the journal knows what must be in it.
"""

import random
import sys

import anyio

from agentkit.journal import Journal
from agentkit.protocols import (
    Action,
    Chain,
    ChainDelta,
    ExitReason,
    RolloutKey,
    Span,
    SpanKind,
    Trajectory,
    Turn,
)

INDICES = 2
TURNS = 5


def chain_after(key: RolloutKey, turns: int) -> Chain:
    """The chain of attempt `key` after so many turns."""
    ids: list[int] = [key.index]
    mask, logprobs, spans = [0], [0.0], [Span(0, 1, SpanKind.PROMPT)]
    for turn in range(turns):
        dice = random.Random(f"{key} {key.attempt} {turn}")
        sampled = [dice.randrange(150_000) for _ in range(dice.randrange(1, 40))]
        middle, stop = len(ids) + len(sampled), len(ids) + len(sampled) + 3
        spans += [
            Span(len(ids), middle, SpanKind.SAMPLED, turn, key.attempt),
            Span(middle, stop, SpanKind.OBSERVATION, turn),
        ]
        ids += [*sampled, 1, turn, 2]
        mask += [1] * len(sampled) + [0] * 3
        logprobs += [-dice.random() for _ in sampled] + [0.0] * 3
    return Chain.of(ids, mask, logprobs, tuple(spans))


def turn_of(key: RolloutKey, number: int) -> Turn:
    """A turn of the attempt."""
    return Turn(number, Action(f"{key} {key.attempt} {number}"), chain=0)


def trajectory_of(key: RolloutKey, turns: int, reason: ExitReason) -> Trajectory:
    """What the attempt is sealed with."""
    made = tuple(turn_of(key, number) for number in range(turns))
    return Trajectory(key, (), (chain_after(key, turns),), made, reason)


def delta_of(key: RolloutKey, number: int) -> ChainDelta:
    """The tokens of a turn; those of the first turn include the prompt."""
    whole = chain_after(key, number + 1)
    start = 0 if number == 0 else len(chain_after(key, number))
    spans = tuple(
        Span(s.start - start, s.stop - start, s.kind, s.turn, s.policy_version) for s in whole.spans if s.start >= start
    )
    return ChainDelta(
        0, start, Chain(whole.id_bytes[4 * start :], whole.mask_bytes[start:], whole.logprob_bytes[4 * start :], spans)
    )


def acknowledge(*words: object) -> None:
    """One line, whole even if we are killed next."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def roll(journal: Journal, task_id: str, index: int, turns: int) -> None:
    """One rollout."""
    key = RolloutKey(task_id, index, journal.next_attempt(task_id, index))
    await journal.begin(key)
    acknowledge("begin", *key_words(key))
    for number in range(turns):
        await journal.append(key, turn_of(key, number), [delta_of(key, number)])
        acknowledge("append", *key_words(key), number)
        await anyio.sleep(random.random() / 100)
    reason = ExitReason.FINISHED if turns == TURNS else ExitReason.CANCELLED
    await journal.seal(trajectory_of(key, turns, reason))
    acknowledge("seal", *key_words(key), reason)


def key_words(key: RolloutKey) -> tuple[str, int, int]:
    """The key as words of a line."""
    return key.task_id, key.index, key.attempt


async def main(run: str, tasks: int, cancelled: float) -> None:
    """All rollouts that are not done yet, 16 at a time."""
    async with Journal.open(run) as journal:
        sealed, permits = journal.sealed(), anyio.Semaphore(16)

        async def limited(task_id: str, index: int) -> None:
            async with permits:
                turns = random.randrange(TURNS) if random.random() < cancelled else TURNS
                await roll(journal, task_id, index, turns)

        async with anyio.create_task_group() as group:
            for rollout in [(f"task-{n}", index) for n in range(tasks) for index in range(INDICES)]:
                if rollout not in sealed:
                    group.start_soon(limited, *rollout)
    acknowledge("done")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], int(sys.argv[2]), float(sys.argv[4]), backend=sys.argv[3])
