"""What a trajectory says, apart from how long it took and where in the code its errors arose."""

from hashlib import sha256

from agentkit.protocols import Trajectory


def fingerprint(trajectory: Trajectory) -> str:
    """A digest that two runs of the same rollout share: alone or among others, on asyncio or on trio.

    It covers messages, tokens, log-probabilities, turns, ends, grades, attempts and sub-agents; of an error, the line
    that says what was raised. It leaves out seconds, and tracebacks, which hold frames of the event loop.
    """
    return sha256(repr(_facts(trajectory)).encode("utf-8", "surrogatepass")).hexdigest()


def _facts(trajectory: Trajectory) -> tuple[object, ...]:
    grade = trajectory.grade
    return (
        trajectory.key,
        trajectory.prompt,
        [(c.id_bytes, c.mask_bytes, c.logprob_bytes, c.spans, c.parent) for c in trajectory.chains],
        [(t.index, t.action, t.observations, t.chain, t.start, t.stop) for t in trajectory.turns],
        trajectory.exit_reason,
        trajectory.blame,
        None if grade is None else (grade.status, grade.score, grade.blame, _last_line(grade.error)),
        trajectory.outcome,
        [(a.number, a.exit_reason, _last_line(a.error)) for a in trajectory.attempts],
        sorted(_facts(child).__repr__() for child in trajectory.children),
        sorted(trajectory.stuck),
        _last_line(trajectory.error),
        trajectory.replaces,
    )


def _last_line(error: str | None) -> str | None:
    return None if error is None else error.rstrip().rpartition("\n")[2]
