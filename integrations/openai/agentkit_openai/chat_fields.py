"""What is asked for beside the messages, in the words that the server at hand knows.

Servers differ in the name of the limit on the answer, in how large it may be, and in whether they count tokens in a
stream. Their refusals say so, and what one refusal taught holds for all later requests. Sans-IO.
"""

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

from attrs import frozen

from agentkit.errors import ConfigError, ContextOverflow, ModelError
from agentkit.protocols import Json
from agentkit_openai.faults import Refused

LimitField: TypeAlias = Literal["max_tokens", "max_completion_tokens"]

_OURS = frozenset(
    ("model", "messages", "tools", "stream", "stream_options", "max_tokens", "max_completion_tokens", "functions")
)
_TOO_LARGE = re.compile(
    r"too large|greater than|less than or equal|at most|maximum|fewer|exceed|out of range|<=", re.IGNORECASE
)
_USE_THE_OTHER = re.compile(
    r"unsupported|not supported|unexpected|unknown|unrecogni[sz]ed|not permitted|deprecated|instead", re.IGNORECASE
)
_COUNTS_THE_ANSWER = re.compile(r"max_(?:completion_|new_)?tokens|in the completion|output tokens", re.IGNORECASE)
_PROMPT_ALONE = re.compile(r"even without any output tokens|must be at least 1, got", re.IGNORECASE)


@frozen
class Asked:
    """What one request asks for: the field and the value of its limit, if it sends one, and whether tokens are counted.

    `is_users` says that the limit is the user's own, not the budget's.
    """

    field: LimitField | None
    limit: int
    is_users: bool
    counts: bool

    def wire(self) -> dict[str, Json]:
        """The fields of the request."""
        fields: dict[str, Json] = {} if self.field is None else {self.field: self.limit}
        if self.counts:
            fields["stream_options"] = {"include_usage": True}
        return fields


class Fields:
    """What the server at hand takes, as far as it is known.

    `max_tokens` is the user's limit on one answer, `window` the length of the server's context, if it says so.
    """

    def __init__(
        self, *, max_tokens: int | None, field: Literal["auto"] | LimitField, counts: bool, window: int | None = None
    ) -> None:
        if max_tokens is not None and (isinstance(max_tokens, bool) or max_tokens < 1):
            raise ConfigError(f"max_tokens must be >= 1 or None, found {max_tokens!r}")
        if field not in ("auto", "max_tokens", "max_completion_tokens"):
            raise ConfigError(f"max_tokens_field must be auto, max_tokens or max_completion_tokens, found {field!r}")
        self.window = window
        self._max_tokens = max_tokens
        self._field: LimitField = "max_tokens" if field == "auto" else field
        self._is_fixed = field != "auto"
        self._counts = counts
        self._sends_budget = True

    def ask(self, budget: int) -> Asked:
        """What to ask for with `budget` tokens left.

        A budget is the length of a whole conversation, and often far more than the server's window. It is sent only
        where it is the smaller of both: a server fills what is left of its window by itself.
        """
        users = self._max_tokens
        is_users = users is not None and users <= budget
        limit = users if users is not None and is_users else budget
        fits = self.window is None or limit < self.window
        sends = fits and (is_users or self._sends_budget)
        return Asked(self._field if sends else None, limit, is_users, self._counts)

    def learn(self, asked: Asked, fault: ModelError, budget: int) -> Asked | None:
        """What to ask for instead, where `fault` refuses how it was asked; None where it is about something else."""
        said = str(fault)
        if isinstance(fault, ContextOverflow):
            if asked.field is None or _PROMPT_ALONE.search(said) or not _COUNTS_THE_ANSWER.search(said):
                return None
            self._sends_budget = self._sends_budget and asked.is_users
            return Asked(None, asked.limit, asked.is_users, asked.counts)  # the user's own limit may fit the next time
        if not isinstance(fault, Refused) or fault.status not in (400, 422):
            return None
        if asked.counts and "stream_options" in said:
            self._counts = False
        elif asked.field is None or asked.field not in said:
            return None
        elif not self._is_fixed and asked.field == self._field and _USE_THE_OTHER.search(said):
            self._field = "max_completion_tokens" if asked.field == "max_tokens" else "max_tokens"
            self._is_fixed = True  # at most once: a server that refuses both is not asked for ever
        elif not asked.is_users and _TOO_LARGE.search(said):
            self._sends_budget = False
        now = self.ask(budget)
        return now if now != asked else None


def check_params(params: Mapping[str, Json], *, where: str) -> None:
    """Refuse what the client sets itself.

    Raises:
        ConfigError: a field of `params` is such; which, and what to do instead.
    """
    for name in params:
        if name == "n" and params[name] not in (1, None):
            raise ConfigError(f"{where}: n must be 1, found {params[name]!r}: a rollout has one answer a turn")
        if name in ("max_tokens", "max_completion_tokens"):
            raise ConfigError(
                f"{where}: {name} is set by the client: pass ChatModel(..., max_tokens=...), or lower budget.max_tokens"
            )
        if name in _OURS:
            raise ConfigError(f"{where}: {name} is set by the client: leave it out")
