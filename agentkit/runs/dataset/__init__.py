"""Tasks from files: JSONL and Parquet, read as they are asked for."""

from agentkit.runs.dataset.dataset import Dataset as Dataset
from agentkit.runs.dataset.dataset import Survey as Survey
