"""Training with verl where there is no GPU: tiny models, real trainers, for trying out and for tests.

verl's own trainer, agent loops, FSDP engine and weight exchange run as they are. What a machine without a GPU lacks is
added from outside, by a module that verl loads in each of its processes:

    VERL_USE_EXTERNAL_MODULES=agentkit_verl.cpu.plugin python -m verl.trainer.main_ppo ...

It registers a platform, the engine, a process-group back end and a rollout server named `agentkit_cpu`, which samples
from a transformers model. `overrides` has the settings that such a run needs beside the usual ones.

Importing this package imports neither torch, Ray nor verl.
"""

from agentkit_verl.cpu.settings import PLUGIN as PLUGIN
from agentkit_verl.cpu.settings import ROLLOUT as ROLLOUT
from agentkit_verl.cpu.settings import environment as environment
from agentkit_verl.cpu.settings import overrides as overrides
