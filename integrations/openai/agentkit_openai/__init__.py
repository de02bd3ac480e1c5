"""Client and gateway for OpenAI-compatible servers. Nothing usable is here yet.

The package exists so that its import name, its extra (`agentkit-rl[openai]`) and its place in the layers are fixed:
importing it works and brings nothing. Until a client is here, models are any object of the shape of
`agentkit.protocols.TokenModel` or `agentkit.protocols.MessageModel`.
"""

from agentkit_openai.chat import ChatModel as ChatModel
from agentkit_openai.chat import ChatUsage as ChatUsage
