"""What is set for credit assignment under `algorithm.agentkit` in verl's configuration."""

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

from attrs import field, fields, frozen

from agentkit.errors import ConfigError
from agentkit_verl.kinds import KINDS

SECTION: Final = "agentkit"
TurnBaseline: TypeAlias = Literal["turn", "group"]
Weights: TypeAlias = Literal["none", "session-balanced", "session-per-token"]


def _no_kind_weights() -> Mapping[str, float]:
    return {}


@frozen(kw_only=True)
class CreditSettings:
    """What estimators and weights are set to.

    `gamma_turn` discounts by turns, not tokens. `turn_baseline` says which returns `agentkit_turn_grpo` compares: those
    of the same turn of the group's sessions, or those of all their turns. `outcome_weight` is the weight of the
    outcome's advantage in `agentkit_turn_grpo`, `step_weight` that of the steps' in `agentkit_gigpo`. `by_std` is
    verl's own `algorithm.norm_adv_by_std_in_grpo`. `weights` and `kind_weights` are those of `token_weights`.
    """

    gamma_turn: float = 0.95
    turn_baseline: TurnBaseline = "turn"
    outcome_weight: float = 1.0
    step_weight: float = 1.0
    weights: Weights = "none"
    kind_weights: Mapping[str, float] = field(factory=_no_kind_weights)
    by_std: bool = True

    @classmethod
    def of(cls, algorithm: Mapping[str, Any] | None) -> "CreditSettings":
        """The settings in verl's `algorithm` section, whether it is an OmegaConf dict, a dataclass of verl, or None.

        Raises:
            ConfigError: a key is unknown, or a value cannot be used.
        """
        if algorithm is None:
            return cls()
        section = algorithm.get(SECTION)
        given = _mapping(SECTION, section)
        known = [each.name for each in fields(cls) if each.name != "by_std"]
        if unknown := sorted(set(given) - set(known)):
            raise ConfigError(f"unknown key algorithm.{SECTION}.{unknown[0]}: expected one of {', '.join(known)}")
        values: dict[str, Any] = {"by_std": bool(algorithm.get("norm_adv_by_std_in_grpo", True))}
        for name in ("gamma_turn", "outcome_weight", "step_weight"):
            if name in given:
                values[name] = _number(name, given[name])
        if values.get("gamma_turn", 0.0) > 1.0:
            raise ConfigError(f"algorithm.{SECTION}.gamma_turn must be from 0 to 1, found {values['gamma_turn']!r}")
        for name, choices in (("turn_baseline", get_args(TurnBaseline)), ("weights", get_args(Weights))):
            if name in given:
                values[name] = _choice(name, given[name], choices)
        if "kind_weights" in given:
            values["kind_weights"] = _kind_weights(given["kind_weights"])
        return cls(**values)

    @property
    def applies_weights(self) -> bool:
        """Whether `token_weights` are anything but 1."""
        return self.weights != "none" or any(weight != 1.0 for weight in self.kind_weights.values())


def _mapping(name: str, found: object) -> dict[str, Any]:
    if found is None:
        return {}
    if not isinstance(found, Mapping) and not hasattr(found, "items"):
        raise ConfigError(f"algorithm.{name} must be a section of keys and values, found {found!r}")
    return {str(key): value for key, value in dict(found).items()}  # type: ignore[call-overload]


def _number(name: str, found: object) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found) or found < 0:
        raise ConfigError(f"algorithm.{SECTION}.{name} must be a number from 0, found {found!r}")
    return float(found)


def _choice(name: str, found: object, choices: tuple[str, ...]) -> str:
    if found is None and "none" in choices:
        return "none"
    if found not in choices:
        raise ConfigError(f"algorithm.{SECTION}.{name} must be one of {', '.join(choices)}, found {found!r}")
    return str(found)


def _kind_weights(found: object) -> dict[str, float]:
    given = _mapping(f"{SECTION}.kind_weights", found)
    if unknown := sorted(set(given) - set(KINDS)):
        raise ConfigError(
            f"unknown kind algorithm.{SECTION}.kind_weights.{unknown[0]}: expected one of {', '.join(KINDS)}"
        )
    return {kind: _number(f"kind_weights.{kind}", weight) for kind, weight in given.items()}
