"""How this program is called, for lines to paste."""

import shlex
import shutil
import sys
from pathlib import Path


def program() -> str:
    """What to type for this program: its name where the shell finds it, else the path that it was started by."""
    if shutil.which("agentkit"):
        return "agentkit"
    if Path(sys.argv[0]).name == "agentkit":
        return shlex.quote(sys.argv[0])
    return shlex.join([sys.executable, "-m", "agentkit"])
