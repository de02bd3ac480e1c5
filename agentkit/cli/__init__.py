"""What a person types."""

from agentkit.cli.main import main as main
