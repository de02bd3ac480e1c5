"""Logging of a run, and redaction: which rollout said what, without secrets, with nothing that could forge a line."""

from agentkit.logs.configure import configure as configure
from agentkit.logs.context import current_rollout as current_rollout
from agentkit.logs.context import enter_rollout as enter_rollout
from agentkit.logs.context import rollout_name as rollout_name
from agentkit.logs.context import within_rollout as within_rollout
from agentkit.logs.faults import error_text as error_text
from agentkit.logs.files import rollout_file as rollout_file
from agentkit.logs.intake import LogWriter as LogWriter
from agentkit.logs.lines import ROLLOUT_ENDED as ROLLOUT_ENDED
from agentkit.logs.lines import TRANSCRIPT as TRANSCRIPT
from agentkit.logs.lines import escape as escape
from agentkit.logs.redaction import MASK as MASK
from agentkit.logs.redaction import redact as redact
from agentkit.logs.redactor import Redactor as Redactor
from agentkit.logs.redactor import environment_secrets as environment_secrets
from agentkit.logs.sink import RedactingSink as RedactingSink
