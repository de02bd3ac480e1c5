"""Sandboxes that SWE-ReX starts."""

from agentkit_swerex.backend import SwerexBackend as SwerexBackend
from agentkit_swerex.sandbox import SwerexSandbox as SwerexSandbox
