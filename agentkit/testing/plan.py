"""Which faults happen where: a seed and rates, and nothing else decides.

Each decision is a pure function of the seed, the rollout, its attempt, and the number of the event within it. So a
rollout meets the same faults alone as among ten thousand, on either event loop, and whatever its siblings do.
"""

from hashlib import blake2b
from typing import Self

import attrs
from attrs import field, frozen

from agentkit.errors import ConfigError
from agentkit.protocols import RolloutKey


def _rate(instance: object, attribute: "attrs.Attribute[float]", value: float) -> None:
    del instance
    given: object = value
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1:
        raise ConfigError(f"fault_plan.{attribute.name} is a rate from 0 to 1, found {value!r}")


def _fault() -> float:
    rate: float = field(default=0.0, validator=_rate)
    return rate


@frozen(kw_only=True, repr=False)
class FaultPlan:
    """Rates from 0 to 1: how likely each fault is, each time that it could happen. `seed` chooses where it does.

    A generation may fail with a retryable `server_error` before its first token, be refused for good (`bad_request`),
    break off after some chunks (`partial_stream`), answer no more (`stall`), or be late (`slow`, up to `slow_s`).
    Chunks may come twice (`duplicate_chunk`) or when their generation is over (`late_chunk`). An env may fail to start
    (`failed_start`), or never (`hung_start`), die under a call (`dead_sandbox`), or refuse to close (`failed_close`,
    `hung_close`). A tool may raise (`tool_error`), hang (`hung_tool`) or swallow its cancellation (`stubborn_tool`); a
    reward may raise or hang (`failed_reward`, `hung_reward`). User code may raise what nobody expects (`crash`): in the
    loop, and in the model in mid-stream. `deaths` is how often the host process dies at once, and is started again.
    """

    seed: int = 0
    server_error: float = _fault()
    bad_request: float = _fault()
    partial_stream: float = _fault()
    stall: float = _fault()
    slow: float = _fault()
    duplicate_chunk: float = _fault()
    late_chunk: float = _fault()
    failed_start: float = _fault()
    hung_start: float = _fault()
    dead_sandbox: float = _fault()
    failed_close: float = _fault()
    hung_close: float = _fault()
    tool_error: float = _fault()
    hung_tool: float = _fault()
    stubborn_tool: float = _fault()
    failed_reward: float = _fault()
    hung_reward: float = _fault()
    crash: float = _fault()
    deaths: int = field(default=0, validator=attrs.validators.ge(0))
    slow_s: float = 20.0
    """Seconds that something `slow` takes at most."""

    @classmethod
    def everything(cls, rate: float, *, seed: int = 0, deaths: int = 0) -> Self:
        """Every fault at the same rate."""
        return cls(seed=seed, deaths=deaths, **dict.fromkeys(faults(), rate))

    def strikes(self, fault: str, key: RolloutKey, event: object) -> bool:
        """Whether `fault` happens at `event` of the attempt `key`."""
        rate: float = getattr(self, fault)
        return rate > 0 and self.draw(fault, key, event) < rate

    def draw(self, what: str, key: RolloutKey, event: object) -> float:
        """A number in [0, 1) that depends on the seed and these alone."""
        text = f"{self.seed}\0{what}\0{key.task_id}\0{key.index}\0{key.attempt}\0{event}"
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=7).digest()
        return int.from_bytes(digest, "big") / 2**56

    def __repr__(self) -> str:
        given = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in attrs.fields(FaultPlan)
            if each.name == "seed" or getattr(self, each.name) != each.default
        ]
        return f"FaultPlan({', '.join(given)})"


def faults() -> tuple[str, ...]:
    """The names of the faults that have a rate."""
    return tuple(each.name for each in attrs.fields(FaultPlan) if each.validator is _rate)
