"""Trains the very same agent with verl: the agent loop that a YAML file names, credit beyond one scalar, metrics.

What needs verl, torch or Ray is imported on first use, so that tasks can be prepared and files checked without them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from agentkit.extras import require
from agentkit_verl.rows import RowInfo as RowInfo
from agentkit_verl.settings import VerlSettings as VerlSettings
from agentkit_verl.version import SUPPORTED_VERL as SUPPORTED_VERL
from agentkit_verl.version import check_verl_version as check_verl_version

if TYPE_CHECKING:
    from agentkit_verl.loop import AgentKitLoop as AgentKitLoop
    from agentkit_verl.loop import close_workers as close_workers

_LATER = {"AgentKitLoop": "agentkit_verl.loop", "close_workers": "agentkit_verl.loop"}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require("verl", extra="verl", purpose=f"agentkit_verl.{name}")
    return getattr(import_module(_LATER[name]), name)
