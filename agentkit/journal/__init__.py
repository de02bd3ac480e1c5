"""What is kept: trajectories and turns in one file per run."""

from agentkit.journal.codec import Codec as Codec
from agentkit.journal.database import SCHEMA_VERSION as SCHEMA_VERSION
from agentkit.journal.database import journal_path as journal_path
from agentkit.journal.errors import JournalError as JournalError
from agentkit.journal.journal import Journal as Journal
from agentkit.journal.opaque import Opaque as Opaque
from agentkit.journal.reader import JournalReader as JournalReader
from agentkit.journal.reader import Summary as Summary
from agentkit.journal.reader import Unfinished as Unfinished
