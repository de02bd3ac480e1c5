"""What a rollout may still do: pure functions over counts."""

from agentkit.protocols import Action, Budget, ExitReason, FinishReason


def turn_end(budget: Budget, *, turns: int) -> ExitReason | None:
    """Why no further turn may begin after `turns` turns, or None."""
    return ExitReason.TURN_LIMIT if turns >= budget.max_turns else None


def count_format_errors(action: Action, *, valid: int, consecutive: int) -> int:
    """Consecutive turns without one valid call, after a turn with `valid` valid calls."""
    if valid:
        return 0
    cut = action.finish is FinishReason.LENGTH and not action.attempts
    return consecutive + 1 if action.attempts or cut else 0


def observation_end(budget: Budget, *, format_errors: int, tool_timeouts: int) -> ExitReason | None:
    """Why the rollout ends after its observations, or None. `max_tool_timeouts` time-outs are forgiven."""
    if tool_timeouts > budget.max_tool_timeouts:
        return ExitReason.TOOL_TIMEOUTS
    if format_errors >= budget.max_format_errors:
        return ExitReason.FORMAT_ERRORS
    return None
