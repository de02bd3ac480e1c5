"""What the `verl` section of an agent's entry may say."""

from collections.abc import Mapping
from typing import Literal

from attrs import field, frozen

from agentkit.errors import ConfigError
from agentkit.tokens.weights import SCHEMES, WeightScheme

Credit = Literal["outcome", "turn", "token"]
LostGroup = Literal["auto", "drop", "fail"]
Overflow = Literal["move", "drop"]


@frozen(kw_only=True)
class VerlSettings:
    """How rollouts become rows of verl's batches.

    `credit` is what `rm_scores` hold: the scalar on a row's last token, or what the reward said of turns or tokens.
    `weights` is the scheme of each row's weight, `kinds` tells reasoning, text, calls and arguments apart; the trainers
    `agentkit_*` apply both. Of a training group fewer than `min_group` sessions are not trained on: one that is left
    alone has no baseline. What becomes of such a group is `on_lost_group`: `drop` leaves no rows, `fail` has verl treat
    the group as failed and fetch another, and `auto` fails where the trainer is configured to refill failed groups.

    `batch_s` seconds after its first rollout began, a step's rollouts end, with what they have. `journal` is a folder
    in which each worker process keeps a journal. `tools_kwargs` are defaults over which a row's are laid. An opening
    that is longer than verl's `prompt_length` goes on in the response (`move`), or its rollout is dropped.
    `verl_tools` gives the agent the tools of `rollout.multi_turn`, too.
    """

    credit: Credit = "outcome"
    weights: WeightScheme = "session-balanced"
    kinds: bool = False
    min_group: int = 2
    on_lost_group: LostGroup = "auto"
    batch_s: float | None = None
    journal: str | None = None
    tools_kwargs: Mapping[str, object] = field(factory=dict)
    prompt_overflow: Overflow = "move"
    verl_tools: bool = True

    def __attrs_post_init__(self) -> None:
        choices: Mapping[str, tuple[str, ...]] = {
            "credit": ("outcome", "turn", "token"),
            "weights": SCHEMES,
            "on_lost_group": ("auto", "drop", "fail"),
            "prompt_overflow": ("move", "drop"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ConfigError(f"verl.{name} must be one of {', '.join(known)}, found {getattr(self, name)!r}")
        if isinstance(self.min_group, bool) or self.min_group < 1:
            raise ConfigError(f"verl.min_group must be at least 1, found {self.min_group!r}")
        if self.batch_s is not None and not self.batch_s > 0:
            raise ConfigError(f"verl.batch_s must be a number of seconds > 0, found {self.batch_s!r}")
