"""The one tree of errors, split by who must act.

`ConfigError` is the caller's to mend, a `BoundaryError` came from a model, sandbox, tool, env or grader (and says
whether trying again may help), `BudgetExceeded` is a limit doing its work, `InvariantError` is our bug. All pickle.
"""


class AgentkitError(Exception):
    """Root of every error raised by agentkit."""


class ConfigError(AgentkitError):
    """What the caller composed cannot work: the message names the field, what was found and what to do."""


class MissingExtraError(ConfigError):
    """An optional dependency is not installed; the message names the extra to install."""


class BudgetExceeded(AgentkitError):
    """A limit did its work and there is no trajectory to say so on."""


class InvariantError(AgentkitError):
    """Something that must always hold does not: a bug in agentkit."""


class RolloutEnded(AgentkitError):
    """The rollout has reached its end; nothing can be sampled, called or recorded any more (invariant B6)."""


class NotAppendable(AgentkitError):
    """The chat template rewrites what it already rendered, so the chain cannot be extended in place."""


class BoundaryError(AgentkitError):
    """A fault on the far side of a Protocol.

    `retryable` says whether the same request may succeed later.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class ModelError(BoundaryError):
    """The model could not sample."""


class ContextOverflow(ModelError):
    """The prompt leaves no room in the model's context window; ends the rollout as `token_limit`."""


class SandboxError(BoundaryError):
    """The sandbox refused or failed one request; the sandbox itself lives."""


class SandboxDead(SandboxError):
    """The sandbox is gone. Never an observation: ends the rollout as `env_dead`."""


class ToolError(BoundaryError):
    """A tool failed in a way the policy should read: the message becomes the observation."""
