"""Agent loop, credit assignment and recipes for verl. No loop is here yet, only the check of verl's version.

The package exists so that its import name, its extra (`agentkit-rl[verl]`) and its place in the layers are fixed.
"""

from agentkit_verl.version import SUPPORTED_VERL as SUPPORTED_VERL
from agentkit_verl.version import check_verl_version as check_verl_version
