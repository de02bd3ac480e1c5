"""A journal's trajectories in the formats that others read: JSON lines, numpy, Parquet, fine-tuning conversations."""

from agentkit.journal.export.selection import Exported as Exported
from agentkit.journal.export.selection import Selection as Selection
from agentkit.journal.export.jsonl import export_jsonl as export_jsonl
from agentkit.journal.export.npz import export_npz as export_npz
from agentkit.journal.export.parquet import export_parquet as export_parquet
from agentkit.journal.export.parquet import parquet_schema as parquet_schema
from agentkit.journal.export.sft import export_sft as export_sft
from agentkit.journal.export.sft import SUCCESSES as SUCCESSES
from agentkit.journal.export.conversation import Conversation as Conversation
from agentkit.journal.export.conversation import conversation as conversation
from agentkit.journal.export.files import appearing as appearing
from agentkit.journal.export.text import to_json as to_json
