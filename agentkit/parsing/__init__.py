"""What the policy asked for: one parser a file, by model family. Sans-IO, total on any text, linear in its length."""

from agentkit.parsing.hermes import HermesParser as HermesParser
from agentkit.parsing.qwen3_coder import Qwen3CoderParser as Qwen3CoderParser
from agentkit.parsing._session import parse as parse
