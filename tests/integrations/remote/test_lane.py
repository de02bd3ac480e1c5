"""Every frame arrives once and in order, however connections break."""

import pytest
from agentkit_remote.frames import WireError
from agentkit_remote.lane import ACK_FRAMES, Lane
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule


class Connections(RuleBasedStateMachine):
    """Two sides; what is on the wire between them is lost whenever the connection breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = (Lane(), Lane())
        self.pushed: tuple[list[bytes], list[bytes]] = ([], [])
        self.arrived: tuple[list[bytes], list[bytes]] = ([], [])
        self.wire: tuple[list[bytes | int], list[bytes | int]] = ([], [])  # by who sent it

    @rule(side=st.integers(0, 1), size=st.integers(1, 5))
    def push(self, side: int, size: int) -> None:
        message = b"%d" % len(self.pushed[side]) + b"x" * size
        self.pushed[side].append(message)
        self.ends[side].push(message)

    @rule(side=st.integers(0, 1), most=st.integers(1, 40))
    def send(self, side: int, most: int) -> None:
        for _ in range(most):
            message = self.ends[side].pop()
            if message is None:
                return
            self.wire[side].append(message)

    @precondition(lambda self: any(self.wire))
    @rule(side=st.integers(0, 1), most=st.integers(1, 40))
    def deliver(self, side: int, most: int) -> None:
        far = self.ends[1 - side]
        for _ in range(min(most, len(self.wire[side]))):
            message = self.wire[side].pop(0)
            if isinstance(message, int):
                far.acknowledge(message)
                continue
            self.arrived[side].append(message)
            if far.receive(len(message)):
                self.wire[1 - side].append(far.acknowledged())

    @rule()
    def break_and_resume(self) -> None:
        for side in (0, 1):
            self.wire[side].clear()
        for side in (0, 1):
            self.ends[side].resume(self.ends[1 - side].received)

    @invariant()
    def in_order_and_once(self) -> None:
        for side in (0, 1):
            assert self.arrived[side] == self.pushed[side][: len(self.arrived[side])]
            kept = sum(map(len, self.pushed[side])) - self.ends[side].kept_bytes
            assert 0 <= kept <= sum(map(len, self.arrived[side])), "only what arrived is let go"

    def teardown(self) -> None:
        self.break_and_resume()
        for _ in range(3):
            for side in (0, 1):
                self.send(side, 10_000)
                self.deliver(side, 10_000)
        assert self.arrived == self.pushed
        for side in (0, 1):
            left = len(self.pushed[side]) and self.ends[side].kept_bytes
            assert left <= sum(map(len, self.pushed[side][-ACK_FRAMES:])), "an idle side keeps next to nothing"


TestConnections = Connections.TestCase
TestConnections.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("count", [-1, 3, 10**18])
def test_nobody_has_received_what_was_not_sent(count: int) -> None:
    lane = Lane()
    for _ in range(5):
        lane.push(b"x")
    lane.pop()
    lane.pop()
    with pytest.raises(WireError):
        lane.acknowledge(count)
    lane.acknowledge(2)
    with pytest.raises(WireError):
        lane.resume(1)
