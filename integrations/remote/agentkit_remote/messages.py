"""Values as JSON, and back again with everything checked: the other side may be hostile.

An error crosses as its kind, its message and whether to try again; never with a traceback.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from agentkit.errors import AgentkitError, ConfigError, SandboxDead, SandboxError
from agentkit.protocols.sandbox import ExecResult, OutputCap
from agentkit.protocols.sandbox_spec import Allow, Capabilities, Limits, Network, SandboxSpec
from agentkit_remote.frames import WireError

MESSAGE_LETTERS = 4000
LONGEST_S = 10 * 365 * 86_400.0
_LIMITS = tuple(one.name for one in attrs.fields(Limits))


class Fields:
    """The fields of an object that came, each asked for with its type."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body

    def text(self, name: str, default: str | None = None) -> str:
        """A string.

        Raises:
            WireError: it is missing or something else; so do the others.
        """
        found: str = self._check(
            name, self._body.get(name, default), isinstance(self._body.get(name, default), str), "text"
        )
        return found

    def optional_text(self, name: str) -> str | None:
        """A string or None."""
        return None if self._body.get(name) is None else self.text(name)

    def flag(self, name: str) -> bool:
        """True or false; false where it is missing."""
        value = self._body.get(name, False)
        found: bool = self._check(name, value, isinstance(value, bool), "true or false")
        return found

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 0."""
        value = self._body.get(name, default)
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
        found: int = self._check(name, value, fits, "a whole number")
        return found

    def seconds(self, name: str) -> float | None:
        """Seconds, at least 0, or None."""
        value = self._body.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = value is None or (number and math.isfinite(value) and value >= 0)
        found: float | None = self._check(
            name, None if value is None or not fits else min(float(value), LONGEST_S), fits, "seconds"
        )
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """Strings; none where they are missing."""
        value = self._body.get(name, [])
        fits = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return tuple(self._check(name, value, fits, "a list of texts"))

    def table(self, name: str) -> dict[str, str]:
        """Strings by strings; none where they are missing."""
        value = self._body.get(name, {})
        fits = isinstance(value, dict) and all(isinstance(one, str) for one in value.values())
        found: dict[str, str] = self._check(name, value, fits, "texts by name")
        return found

    def pairs(self, name: str) -> tuple[tuple[str, str], ...]:
        """Pairs of strings; none where they are missing."""
        value = self._body.get(name, [])
        fits = isinstance(value, list) and all(
            isinstance(one, list) and len(one) == 2 and all(isinstance(text, str) for text in one) for one in value
        )
        return tuple((one[0], one[1]) for one in self._check(name, value, fits, "pairs of texts"))

    def object(self, name: str) -> "Fields":
        """An object with fields of its own; empty where it is missing."""
        value = self._body.get(name, {})
        return Fields(self._check(name, value, isinstance(value, dict), "an object"))

    def raw(self, name: str) -> Any:
        """Whatever is there."""
        return self._body.get(name)

    def _check(self, name: str, value: Any, fits: bool, what: str) -> Any:
        if not fits:
            raise WireError(f"{name} must be {what}, found {self._body.get(name)!r:.80}")
        return value


def spec_to_json(spec: SandboxSpec) -> dict[str, Any]:
    """`spec` without its snapshot, which the other side knows by a number."""
    network = {"allow": list(spec.network.hosts)} if isinstance(spec.network, Allow) else spec.network
    limits = {name: getattr(spec.limits, name) for name in _LIMITS}
    return {
        "cwd": spec.cwd,
        "env": dict(spec.env),
        "network": network,
        "read_only": [list(pair) for pair in spec.read_only],
        "read_limit_bytes": spec.read_limit_bytes,
        "image": spec.image,
        "rootfs": spec.rootfs,
        "limits": {name: value for name, value in limits.items() if value is not None},
        "lifetime_s": spec.lifetime_s if spec.lifetime_s is None else min(spec.lifetime_s, LONGEST_S),
        "labels": dict(spec.labels),
    }


def spec_from_json(fields: Fields) -> SandboxSpec:
    """The spec that `spec_to_json` wrote.

    Raises:
        WireError: it is none.
        ConfigError: it holds what no spec may.
    """
    limits = fields.object("limits")
    cpus = limits.seconds("cpus")  # a number of at least 0
    counts = {name: limits.whole(name) for name in _LIMITS if name != "cpus" and limits.raw(name) is not None}
    return SandboxSpec(
        cwd=fields.text("cwd"),
        env=fields.table("env"),
        network=_network(fields),
        read_only=fields.pairs("read_only"),
        read_limit_bytes=fields.whole("read_limit_bytes"),
        image=fields.optional_text("image"),
        rootfs=fields.optional_text("rootfs"),
        limits=Limits(cpus=cpus, **counts),
        lifetime_s=fields.seconds("lifetime_s"),
        labels=fields.table("labels"),
    )


def _network(fields: Fields) -> Network:
    value = fields.raw("network")
    if isinstance(value, dict):
        return Allow(fields.object("network").texts("allow"))
    known: dict[object, Literal["none", "host"]] = {"none": "none", "host": "host"}
    if not isinstance(value, str) or value not in known:
        raise WireError(f"network must be none, host or hosts to allow, found {value!r:.80}")
    return known[value]


def capabilities_to_json(capabilities: Capabilities) -> dict[str, Any]:
    """All of them."""
    found: dict[str, Any] = {}
    for one in attrs.fields(Capabilities):
        value = getattr(capabilities, one.name)
        found[one.name] = sorted(value) if isinstance(value, frozenset) else value
    return found


def capabilities_from_json(fields: Fields) -> Capabilities:
    """What `capabilities_to_json` wrote.

    Raises:
        WireError: they are none.
    """
    sets = {name: frozenset(fields.texts(name)) for name in ("networks", "limits")}
    flags = [one.name for one in attrs.fields(Capabilities) if one.name not in sets]
    values: dict[str, Any] = {**{name: fields.flag(name) for name in flags}, **sets}
    return Capabilities(**values)


def cap_from_json(fields: Fields) -> OutputCap:
    """The cap of a command.

    Raises:
        WireError: it is none.
    """
    return OutputCap(fields.whole("head_bytes"), fields.whole("tail_bytes"))


def result_to_json(result: ExecResult) -> dict[str, Any]:
    """All but the output, which goes as DATA."""
    return {one.name: getattr(result, one.name) for one in attrs.fields(ExecResult) if one.name != "output"}


def result_from_json(fields: Fields, output: bytes) -> ExecResult:
    """What `result_to_json` wrote, and the output that came before it.

    Raises:
        WireError: it is none.
    """
    return ExecResult(
        fields.whole("exit_code"),
        output,
        fields.whole("total_bytes"),
        fields.flag("truncated"),
        fields.flag("timed_out"),
        fields.flag("died"),
        fields.seconds("duration_s") or 0.0,
    )


def error_to_json(error: AgentkitError) -> dict[str, Any]:
    """`error` for the other side."""
    kind = "config" if isinstance(error, ConfigError) else "dead" if isinstance(error, SandboxDead) else "error"
    retryable = isinstance(error, SandboxError) and error.retryable
    return {"type": kind, "message": str(error)[:MESSAGE_LETTERS], "retryable": retryable}


def error_from_json(fields: Fields) -> AgentkitError:
    """What `error_to_json` wrote.

    Raises:
        WireError: it is none.
    """
    message = fields.text("message")[:MESSAGE_LETTERS]
    match fields.text("type"):
        case "config":
            return ConfigError(message)
        case "dead":
            return SandboxDead(message)
        case _:
            return SandboxError(message, retryable=fields.flag("retryable"))


def argv_to_json(argv: Sequence[str]) -> list[str]:
    """`argv` as a list of texts.

    Raises:
        SandboxError: it is none.
    """
    if isinstance(argv, str) or not all(isinstance(word, str) for word in argv):
        raise SandboxError(f"argv must be a sequence of texts, found {argv!r:.80}")
    return list(argv)
