"""Rows as the public datasets have them, and recipes made into a configuration without starting anything."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[3] / "integrations" / "verl" / "recipes"
ROWS = Path(__file__).parent / "rows"
# Stands in for the interpreter that a recipe starts: says what it was called with.
ECHO = f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n"


@pytest.fixture(scope="session")
def recipes() -> Path:
    return RECIPES


@pytest.fixture(scope="session")
def rows() -> Path:
    return ROWS


@pytest.fixture(scope="session")
def called(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[list[str], dict[str, str]]]:
    """What a recipe's script, with these variables and arguments, would call: its arguments and its environment."""
    echo = tmp_path_factory.mktemp("echo") / "python"
    echo.write_text(ECHO)
    echo.chmod(0o755)

    def call(script: str, *arguments: str, **variables: str) -> tuple[list[str], dict[str, str]]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        ended = subprocess.run(
            ["bash", str(RECIPES / script), *arguments],
            env={**kept, "PYTHON": str(echo), **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )
        if ended.returncode != 0:
            raise AssertionError(ended.stderr)
        argv, environment = json.loads(ended.stdout)
        return argv, environment

    return call
