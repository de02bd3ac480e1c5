"""Sandboxes in Volcengine's veFaaS."""

from agentkit_vefaas.backend import VefaasBackend as VefaasBackend
