"""Hugging Face: tokenizers for the renderers, and a `transformers` model in this process.

Needs the extra `hf`; imported without it, it says so only where it is used.
"""
