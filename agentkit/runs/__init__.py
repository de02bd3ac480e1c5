"""A whole run: what is asked, by whom it is answered, and what is kept."""

from agentkit.runs.config import PoolLimits as PoolLimits
from agentkit.runs.config import RunConfig as RunConfig
from agentkit.runs.config import load_config as load_config
from agentkit.runs.dataset import Dataset as Dataset
from agentkit.runs.dataset import Survey as Survey
from agentkit.runs.folder import RunFolder as RunFolder
from agentkit.runs.info import RunInfo as RunInfo
from agentkit.runs.info import Sitting as Sitting
from agentkit.runs.info import SittingEnd as SittingEnd
