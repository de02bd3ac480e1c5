"""Hugging Face: tokenizers for the renderers, and a `transformers` model in this process.

Needs the extra `hf`, and for models `torch`; imported without them, it says so only where they are used.
"""

from agentkit_hf.model import HFModel as HFModel
from agentkit_hf.media import MediaProcessor as MediaProcessor
from agentkit_hf.params import SamplingParams as SamplingParams
from agentkit_hf.processor import ProcessorRenderer as ProcessorRenderer
from agentkit_hf.processor import processor_renderer as processor_renderer
from agentkit_hf.renderer import certify as certify
from agentkit_hf.renderer import hf_renderer as hf_renderer
