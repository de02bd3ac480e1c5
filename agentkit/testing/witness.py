"""What faulty parts saw, to hold against what was recorded."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from hashlib import blake2b

from attrs import define, field

from agentkit.logs import current_rollout, rollout_name
from agentkit.protocols import Chain, RolloutKey, SpanKind, TokenRequest, Trajectory


@define
class Asked:
    """One request to a token-level model: a digest of its prompt, and the ids that were pushed."""

    prompt_length: int
    prompt_digest: bytes
    room: int
    pushed: "array[int]" = field(factory=lambda: array("i"))

    def push(self, token_ids: Sequence[int]) -> None:
        """These ids are about to be pushed; what finds no more room is not taken."""
        self.pushed.extend(array("i", token_ids)[: self.room - len(self.pushed)])


@define(eq=False)
class Witness:
    """Notes of the faulty parts that share it: which faults struck, what was sampled, which envs are open."""

    struck: Counter[str] = field(factory=Counter)
    """How often each fault happened."""
    asked: dict[RolloutKey, list[Asked]] = field(factory=lambda: defaultdict(list))
    open: dict[int, str] = field(factory=dict)
    """The envs that were started and not closed, named by their rollouts."""
    problems: list[tuple[RolloutKey, str]] = field(factory=list)
    """What a part saw that must never happen."""
    _events: Counter[tuple[RolloutKey, str]] = field(factory=Counter)

    def event(self, key: RolloutKey, kind: str) -> int:
        """The number of the next event of this kind in the attempt."""
        number = self._events[key, kind]
        self._events[key, kind] = number + 1
        return number

    def ask(self, key: RolloutKey, request: TokenRequest) -> Asked:
        """A request begins."""
        prompt = array("i", request.prompt_ids)
        asked = Asked(len(prompt), _digest(prompt), request.max_tokens)
        self.asked[key].append(asked)
        return asked

    def opened(self, env: object, key: RolloutKey) -> None:
        """An env was made, and has to be closed."""
        self.open[id(env)] = f"env of {rollout_name(key)}"

    def closed(self, env: object, key: RolloutKey) -> None:
        """An env was asked to close."""
        if self.open.pop(id(env), None) is None:
            self.problems.append((key, "its env was closed twice"))

    def verify(self, trajectory: Trajectory) -> list[str]:
        """What is wrong with a trajectory, and nothing where nothing is: T1, T2, T3, T6, B1 and B2 of its chains."""
        wrong = [problem for number, chain in enumerate(trajectory.chains) for problem in _of_chain(number, chain)]
        wrong += _of_turns(trajectory)
        asked = self.asked.get(trajectory.key)
        if asked is not None and trajectory.chains:
            wrong += _of_samples(trajectory, asked)
        return wrong


def running_rollout() -> RolloutKey:
    """The attempt that runs; code outside of rollouts shares one name."""
    return current_rollout() or RolloutKey("", 0)


def _digest(ids: "array[int]") -> bytes:
    return blake2b(ids.tobytes(), digest_size=16).digest()


def _of_chain(number: int, chain: Chain) -> list[str]:
    at = 0
    for span in chain.spans:
        if span.start != at or span.stop < span.start:
            return [f"chain {number}: its spans do not tile it at token {at}"]
        at = span.stop
        sampled = span.kind is SpanKind.SAMPLED
        length = span.stop - span.start
        if chain.mask_bytes[span.start : span.stop] != (b"\1" if sampled else b"\0") * length:
            return [f"chain {number}: the response mask of its {span.kind} span at {span.start} is wrong"]
        if not sampled and any(chain.logprobs[span.start : span.stop]):
            return [f"chain {number}: a token at {span.start} that nobody sampled has a log-probability"]
    return [] if at == len(chain) else [f"chain {number}: its spans end at {at}, its tokens at {len(chain)}"]


def _of_turns(trajectory: Trajectory) -> list[str]:
    wrong: list[str] = []
    for number, chain in enumerate(trajectory.chains):
        sampled = [t for t in range(len(chain)) if chain.mask_bytes[t]]
        turns = [t for turn in trajectory.turns if turn.chain == number for t in range(turn.start, turn.stop)]
        if sampled != turns:
            wrong.append(f"chain {number}: {len(sampled)} tokens have mask 1, its turns hold {len(turns)}")
    wrong += [
        f"turn {turn.index}: {len(turn.observations)} answers to {len(turn.action.attempts)} calls"
        for turn in trajectory.turns
        if turn.action.attempts and len(turn.observations) not in (0, len(turn.action.attempts))
    ]
    return wrong


def _of_samples(trajectory: Trajectory, asked: Sequence[Asked]) -> list[str]:
    """Each turn holds what was pushed for one request, in order, after exactly the prompt that was sent."""
    pushes = iter([each for each in asked if each.pushed])
    for turn in trajectory.turns:
        if turn.stop == turn.start:
            continue
        each = next(pushes, None)
        if each is None:
            return [f"turn {turn.index} was sampled, but nothing was pushed for it"]
        ids = array("i", trajectory.chains[turn.chain].ids)
        if each.prompt_length != turn.start or _digest(ids[: turn.start]) != each.prompt_digest:
            return [f"turn {turn.index}: what is before it in the chain is not the prompt that was sent"]
        if ids[turn.start : turn.stop] != each.pushed:
            return [f"turn {turn.index}: its tokens are not those that were pushed"]
    left = sum(1 for _ in pushes)
    return [f"what was pushed for {left} requests is in no turn"] if left else []
