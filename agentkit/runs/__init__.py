"""A whole run: what is asked, by whom it is answered, and what is kept."""

from agentkit.runs.folder import RunFolder as RunFolder
from agentkit.runs.info import RunInfo as RunInfo
from agentkit.runs.info import Sitting as Sitting
from agentkit.runs.info import SittingEnd as SittingEnd
