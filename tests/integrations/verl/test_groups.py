"""Siblings: who waits for whom, what is kept of a group, what is replaced, and what verl hears."""

from collections.abc import Sequence

import anyio
import pytest
from agentkit_verl.groups import Group, GroupRules, Groups, Verdict

from agentkit.protocols import Outcome

TRAIN, MASK, DROP = Outcome.TRAIN, Outcome.MASK, Outcome.DROP
RULES = GroupRules()
FAILS = GroupRules(fails=True)


async def verdicts(
    outcomes: Sequence[Outcome], rules: GroupRules = RULES, *, validate: bool = False, order: Sequence[int] = ()
) -> list[Verdict]:
    """What each session of a group hears; they settle a second apart, in `order`."""
    groups = Groups()
    joined = [groups.join("g") for _ in outcomes]
    assert len(set(map(id, joined))) == 1
    heard: dict[int, Verdict] = {}

    async def session(number: int, after_s: float) -> None:
        await anyio.sleep(after_s)
        joined[number].settle(outcomes[number])
        heard[number] = await joined[number].verdict(rules, validate=validate)
        assert len(joined[number].outcomes) == len(outcomes)  # nobody goes on before the last has settled
        groups.leave("g", joined[number])

    async with anyio.create_task_group() as tasks:
        for after_s, number in enumerate(order or range(len(outcomes))):
            tasks.start_soon(session, number, float(after_s))
    assert not groups._open
    return [heard[number] for number in range(len(outcomes))]


@pytest.mark.parametrize(
    ("outcomes", "kept"),
    [
        ([TRAIN, TRAIN], True),
        ([TRAIN, DROP], False),  # GRPO would take its raw reward for the advantage
        ([TRAIN, MASK], True),  # the other one's score is its baseline
        ([MASK, MASK], False),  # nothing to train on
        ([MASK, MASK, TRAIN, DROP], True),
        ([DROP, DROP, DROP], False),
        ([TRAIN, DROP, DROP, TRAIN], True),
        ([TRAIN], True),  # a group of one has no baseline by choice
        ([MASK], True),
        ([DROP], True),
        ([TRAIN, Outcome.REPLACE], False),
    ],
)
async def test_a_group_is_kept_where_it_can_teach(outcomes: list[Outcome], kept: bool) -> None:
    for order in (range(len(outcomes)), range(len(outcomes) - 1, -1, -1)):
        assert await verdicts(outcomes, order=order) == ["keep" if kept else "drop"] * len(outcomes)
    assert await verdicts(outcomes, validate=True) == ["keep"] * len(outcomes)


@pytest.mark.parametrize(("least", "kept"), [(1, True), (2, True), (3, False), (9, False)])
async def test_how_many_must_be_left_is_configured(least: int, kept: bool) -> None:
    rules = GroupRules(min_group=least)
    assert await verdicts([TRAIN, TRAIN, DROP], rules) == ["keep" if kept else "drop"] * 3
    assert await verdicts([TRAIN, TRAIN, TRAIN], GroupRules(min_group=9)) == ["keep"] * 3  # no more than there are


async def test_a_lost_group_fails_once() -> None:
    assert sorted(await verdicts([TRAIN, DROP, DROP], FAILS)) == ["drop", "drop", "fail"]
    assert await verdicts([TRAIN, TRAIN, DROP], FAILS) == ["keep"] * 3
    assert await verdicts([TRAIN, DROP], FAILS, validate=True) == ["keep"] * 2
    assert await verdicts([DROP], FAILS) == ["keep"]


async def test_nobody_is_replaced_without_siblings_that_still_run_and_none_too_often() -> None:
    group = Group(0)
    group.joined = 3
    assert group.take_replacement(2)
    group.settle(TRAIN)
    assert group.take_replacement(2)
    assert not group.take_replacement(2)  # of the whole group
    assert group.replaced == 2
    group.settle(TRAIN)
    assert group.running == 1
    assert not group.take_replacement(9)  # the others have ended: they would wait for it alone
    assert group.replaced == 2
    single = Group(1)
    single.joined = 1
    assert single.take_replacement(1)
    assert not single.take_replacement(1)
    assert not Group(2).take_replacement(0)


async def test_the_same_prompt_in_the_next_epoch_is_another_group() -> None:
    groups = Groups()
    first, again = groups.join("g"), groups.join("g")
    assert first is again
    assert groups.join("h") is not first
    first.settle(TRAIN)
    assert groups.join("g") is first  # one still runs
    first.settle(TRAIN)
    first.settle(TRAIN)
    later = groups.join("g")  # before the others have left
    assert later is not first
    assert later.number != first.number
    for _ in range(3):
        groups.leave("g", first)
    assert groups.join("g") is later


async def test_who_stops_waiting_leaves_the_others_their_verdict() -> None:
    group = Group(0)
    group.joined = 2
    group.settle(TRAIN)
    with anyio.move_on_after(1) as scope:
        await group.verdict(RULES, validate=False)
    assert scope.cancelled_caught
    group.settle(TRAIN)
    assert await group.verdict(RULES, validate=False) == "keep"
    assert group.told() == "2 train"


def test_why_sessions_were_lost_is_told() -> None:
    group = Group(0)
    for why in ("finished; no score: KeyError: 'answer'", "env_dead", "finished; no score: KeyError: 'answer'"):
        group.settle(DROP, why)
    assert group.told() == "2 drop (finished; no score: KeyError: 'answer'), 1 drop (env_dead)"
