"""Sandboxes in Modal's cloud."""

from agentkit_modal.backend import ModalBackend as ModalBackend
