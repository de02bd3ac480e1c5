"""vLLM's engine in this process, as a token-level model.

Needs the extra `vllm`; imported without it, it says so only where it is used.
"""

from agentkit_vllm.model import VLLMModel as VLLMModel
