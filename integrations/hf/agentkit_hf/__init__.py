"""Hugging Face: tokenizers for the renderers, and a `transformers` model in this process.

Needs the extra `hf`, and for models `torch`; imported without them, it says so only where they are used.
"""

from agentkit_hf.model import HFModel as HFModel
from agentkit_hf.params import SamplingParams as SamplingParams
from agentkit_hf.renderer import certify as certify
from agentkit_hf.renderer import hf_renderer as hf_renderer
