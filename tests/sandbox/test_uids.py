import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.sandbox import uids
from agentkit.sandbox.uids import Uids


@given(st.lists(st.one_of(st.none(), st.integers(0, 20)), max_size=60))
def test_no_two_that_live_share_a_user(steps: list[int | None]) -> None:
    """None takes one for either of two holders in turn, a number gives that one back."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(uids, "SIZE", 4)  # so that a block is used up
        holders = (Uids(), Uids())
        live: list[tuple[Uids, int]] = []
        for turn, step in enumerate(steps):
            if step is None:
                taken = holders[turn % 2].take()
                assert taken not in [uid for _, uid in live]
                assert uids.FIRST <= taken < uids.FIRST + uids.BLOCKS * 4
                live.append((holders[turn % 2], taken))
            elif step < len(live):
                holder, uid = live.pop(step)
                holder.give_back(uid)
                holder.give_back(uid)
        for holder, uid in live:
            holder.give_back(uid)


def test_the_longest_unused_is_next() -> None:
    holder = Uids()
    kept, first = holder.take(), holder.take()
    holder.give_back(first)
    assert holder.take() not in (kept, first)
    for number in range(3):
        holder.give_back(kept + number)


def test_a_block_is_claimed_while_it_is_used_and_no_longer() -> None:
    holder = Uids()
    uid = holder.take()
    name = f"\0agentkit-uids-{(uid - uids.FIRST) // uids.SIZE}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        with pytest.raises(OSError, match="in use"):
            other.bind(name)
        holder.give_back(uid)
        other.bind(name)


def test_a_forked_child_has_users_of_its_own() -> None:
    holder = Uids()
    uid = holder.take()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, str(holder.take() - uid).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as file:
        assert abs(int(file.read())) >= uids.SIZE - 1
    os.waitpid(pid, 0)
    holder.give_back(uid)


def test_no_more_users_is_an_error_and_not_a_shared_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uids, "BLOCKS", 1)
    monkeypatch.setattr(uids, "SIZE", 2)
    holder, other = Uids(), Uids()
    taken = [holder.take(), holder.take()]
    with pytest.raises(OSError, match="taken"):
        other.take()
    for uid in taken:
        holder.give_back(uid)
