"""Sandboxes in Volcengine's veFaaS."""
