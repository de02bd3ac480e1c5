"""What `run.json` says, as values."""

import json
from datetime import UTC, datetime
from enum import StrEnum

import cattrs
from attrs import evolve, field, frozen

from agentkit.errors import ConfigError

FORMAT = 1
"""The version of `run.json` that is written, and the newest that is read."""


class SittingEnd(StrEnum):
    """Why a sitting ended."""

    FINISHED = "finished"
    """Every rollout of the run is sealed."""
    DRAINED = "drained"
    """It was asked to begin no more, and what had begun has ended."""
    CANCELLED = "cancelled"
    """It was asked to end at once."""
    FAILED = "failed"
    """An error ended it."""


@frozen
class Sitting:
    """A run goes on in sittings, one for each process. `ended` is None while it goes on, and where it was killed."""

    started: datetime
    ended: datetime | None = None
    why: SittingEnd | None = None
    agentkit: str = ""
    """The version of agentkit."""


@frozen(kw_only=True)
class RunInfo:
    """What a run set out to do, and when it was at work. `tasks` is None as long as nobody has counted them.

    `changes` are those of the command line, `path=value`, as they were given; `base` is the folder of the
    configuration file, from which its relative paths count. The digests tell whether tasks and file are the same.
    """

    name: str
    created: datetime
    group_size: int = 1
    tasks: int | None = None
    dataset_sha256: str | None = None
    base: str | None = None
    config_sha256: str | None = None
    changes: tuple[str, ...] = ()
    sittings: tuple[Sitting, ...] = field(default=())

    @property
    def expected(self) -> int | None:
        """How many rollouts the run is to have, replacements aside; None as long as the tasks are not counted."""
        return None if self.tasks is None else self.tasks * self.group_size

    def begin_sitting(self, *, version: str) -> "RunInfo":
        """With one more sitting, from now on."""
        return evolve(self, sittings=(*self.sittings, Sitting(now(), agentkit=version)))

    def end_sitting(self, why: SittingEnd) -> "RunInfo":
        """With the last sitting ended, now."""
        *before, last = self.sittings
        return evolve(self, sittings=(*before, evolve(last, ended=now(), why=why)))


def now() -> datetime:
    """The time of day, to the second, in UTC."""
    return datetime.now(UTC).replace(microsecond=0)


def encode_info(info: RunInfo) -> str:
    """`info` as the text of `run.json`."""
    return json.dumps({"format": FORMAT, **_converter().unstructure(info)}, indent=2, ensure_ascii=True) + "\n"


def decode_info(text: str, *, where: str) -> RunInfo:
    """The value of `encode_info`; `where` names the file in errors.

    Raises:
        ConfigError: the text is no `run.json`, or was written by a newer version.
    """
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or not isinstance(found.get("format"), int):
            raise ConfigError(f"{where} is damaged: it has no format number")
        if found.pop("format") > FORMAT:
            raise ConfigError(f"{where} was written by a newer agentkit: this one reads up to format {FORMAT}")
        return _converter().structure(found, RunInfo)
    except ConfigError:
        raise
    except Exception as error:  # whatever cattrs makes of a damaged file
        raise ConfigError(f"{where} is damaged: {'; '.join(cattrs.transform_error(error))}") from error


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    converter.register_unstructure_hook(datetime, lambda value: value.isoformat())
    converter.register_structure_hook(datetime, lambda value, _: datetime.fromisoformat(value))
    return converter
