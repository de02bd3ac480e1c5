"""Models behind OpenAI-compatible servers: `CompletionsModel` in token ids, `ChatModel` in messages."""

from agentkit_openai.completions import CompletionsModel as CompletionsModel
from agentkit_openai.capabilities import Capabilities as Capabilities
from agentkit_openai.chat import ChatModel as ChatModel
from agentkit_openai.chat import ChatUsage as ChatUsage
