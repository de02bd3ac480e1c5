"""Sandboxes in Modal's cloud."""
