"""What a rollout says and does, told to the log as it happens; nothing is made where nobody listens."""

import logging

from agentkit.actors._record import Record
from agentkit.actors.events import Broadcast, Event, Observed, Sampled
from agentkit.logs import ROLLOUT_ENDED, TRANSCRIPT
from agentkit.protocols import Action, FinishReason, Message, RolloutKey, Trajectory

logger = logging.getLogger(TRANSCRIPT)


def told(record: Record, broadcast: Broadcast) -> Broadcast:
    """The broadcast for the loop of a rollout: one that tells the log as well, where it listens."""
    return _Told(record, broadcast) if logger.isEnabledFor(logging.DEBUG) else broadcast


def tell_end(trajectory: Trajectory) -> None:
    """An attempt has come to its end."""
    if not logger.isEnabledFor(logging.DEBUG):
        return
    grade = trajectory.grade
    parts = [str(trajectory.exit_reason)]
    parts += [f"blame {trajectory.blame}"] if trajectory.blame is not None else []
    parts += [f"grade {grade.status}"] if grade is not None else []
    parts += [f"score {grade.value}"] if grade is not None and grade.value is not None else []
    parts += [f"stuck {', '.join(trajectory.stuck)}"] if trajectory.stuck else []
    text = f"ends: {', '.join(parts)}, after {len(trajectory.turns)} turns and {trajectory.timings.total_s:.1f} s"
    path = trajectory.path()
    if path and path[-1].finish is FinishReason.ABORTED:
        text += f"\ncut short: {path[-1].action.text}"
    for fault in (trajectory.error, None if grade is None else grade.error):
        text += "" if fault is None else f"\n{fault.rstrip()}"
    logger.debug("%s", text)


def tell_closed(key: RolloutKey, outcome: str) -> None:
    """Nothing follows in this attempt."""
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s", outcome, extra={ROLLOUT_ENDED: key})


class _Told(Broadcast):
    """Passes events on, and tells them, and each message of the history once."""

    def __init__(self, record: Record, broadcast: Broadcast) -> None:
        super().__init__()
        self._inner = broadcast
        self._record = record
        self._told: list[Message] = []
        self._observed: list[Message] = []
        self._catch_up(len(record.history))

    def __bool__(self) -> bool:
        return True

    def publish(self, event: Event) -> None:
        """Tell the log, then everybody else."""
        if isinstance(event, Sampled):
            history = self._record.history
            self._catch_up(len(history) - 1)
            self._told.append(history[-1])
            logger.debug("turn %d, the policy (%s): %s", event.turn, event.action.finish, _said(event.action))
        elif isinstance(event, Observed):
            for observation in event.observations:
                who = observation.name or "env"
                logger.debug("turn %d, %s (%s): %s", event.turn, who, observation.status, observation.content)
                self._observed.append(observation.message())
        self._inner.publish(event)

    def _catch_up(self, stop: int) -> None:
        """Tell the messages that came since: those of the user, of an env, and of the loop."""
        history, told = self._record.history, self._told
        if len(told) > len(history) or (told and history[len(told) - 1] is not told[-1]):
            pairs = enumerate(zip(told, history, strict=False))
            del told[next((at for at, (old, new) in pairs if old is not new), min(len(told), len(history))) :]
            if told:
                logger.debug("the conversation goes back to after message %d", len(told))
            else:
                logger.debug("the history was rewritten, to %d messages", len(history))
        for message in history[len(told) : stop]:
            if message in self._observed:
                self._observed.remove(message)
            elif message.content or not message.tool_calls:
                logger.debug("%s: %s", message.role, message.content)
            told.append(message)


def _said(action: Action) -> str:
    calls = [f"{call.name}({dict(call.arguments)!r})" for call in action.calls]
    # Sampled text holds its calls as the policy wrote them; the text of an API answer does not.
    return action.text if action.text != action.content else "\n".join([action.text, *calls])
