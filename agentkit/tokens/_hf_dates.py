"""Chat templates that read the clock, with the hands of the clock held."""

import json
import re
from datetime import datetime
from functools import lru_cache

from agentkit.errors import ConfigError

_CALL = re.compile(r"""\bstrftime_now\(\s*(?:"([^"\\]*)"|'([^'\\]*)')\s*\)""")
_ANY_CALL = re.compile(r"\bstrftime_now\s*\(")


@lru_cache(maxsize=64)  # asked once for each rollout
def reads_clock(source: str) -> bool:
    """Whether a template's source asks for the time."""
    return _ANY_CALL.search(source) is not None


def at(source: str, now: datetime) -> str:
    """The source with every question for the time answered.

    Raises:
        ConfigError: it asks in a format that is worked out while rendering.
    """
    held = _CALL.sub(lambda found: json.dumps(now.strftime(found.group(1) or found.group(2) or "")), source)
    if reads_clock(held):
        raise ConfigError(
            "the chat template reads the clock in a format that it works out itself, so its date cannot be held for a "
            "trajectory: pass chat_template=... with the format written out, or with a date"
        )
    return held
