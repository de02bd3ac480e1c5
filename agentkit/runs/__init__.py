"""A whole run: what is asked, by whom it is answered, and what is kept."""

from agentkit.runs.config import PoolLimits as PoolLimits
from agentkit.runs.config import RunConfig as RunConfig
from agentkit.runs.config import load_config as load_config
from agentkit.runs.dataset import Dataset as Dataset
from agentkit.runs.dataset import Survey as Survey
from agentkit.runs.execution import NotBegun as NotBegun
from agentkit.runs.execution import OnProgress as OnProgress
from agentkit.runs.execution import RunResult as RunResult
from agentkit.runs.execution import execute as execute
from agentkit.runs.execution import resume as resume
from agentkit.runs.folder import RunFolder as RunFolder
from agentkit.runs.info import RunInfo as RunInfo
from agentkit.runs.info import Sitting as Sitting
from agentkit.runs.info import SittingEnd as SittingEnd
from agentkit.runs.origin import Origin as Origin
from agentkit.runs.progress import Progress as Progress
from agentkit.runs.stop import Stop as Stop
from agentkit.runs.stop import StopLevel as StopLevel
