"""How servers spell a token-level request and its answer. Pure: bytes in, values out."""

from agentkit_openai.dialects.dialect import Dialect as Dialect
from agentkit_openai.dialects.dialect import Reader as Reader
from agentkit_openai.dialects.llamacpp import LlamaCppDialect as LlamaCppDialect
from agentkit_openai.dialects.vllm import VLLMDialect as VLLMDialect
