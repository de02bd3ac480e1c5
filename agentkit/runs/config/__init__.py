"""A run from a YAML file, by the same classes as in Python."""

from agentkit.runs.config.load import load_config as load_config
from agentkit.runs.config.settings import LogSettings as LogSettings
from agentkit.runs.config.settings import PoolLimits as PoolLimits
from agentkit.runs.config.settings import RunConfig as RunConfig
