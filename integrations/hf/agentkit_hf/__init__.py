"""Hugging Face: tokenizers for the renderers, and a `transformers` model in this process.

Needs the extra `hf`, and for models `torch`; imported without them, it says so only where they are used.
"""

from agentkit_hf.families import FAMILIES as FAMILIES
from agentkit_hf.families import find_family as find_family
from agentkit_hf.model import HFModel as HFModel
from agentkit_hf.params import SamplingParams as SamplingParams
from agentkit_hf.renderer import hf_renderer as hf_renderer
