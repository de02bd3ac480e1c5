"""What `import verl` does with agentkit beside it, each in a process of its own."""

import subprocess
import sys

import pytest

PREAMBLE = """
import os, sys
os.environ["VERL_USE_EXTERNAL_PLUGINS"] = "none"
os.environ["VERL_USE_EXTERNAL_MODULES"] = "agentkit_verl.plugin"
"""


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", PREAMBLE + script], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_importing_verl_alone_loads_neither_registry_nor_ours() -> None:
    said = run(
        "import verl\n"
        "print([name for name in sys.modules if name.startswith('agentkit_verl') or name.startswith('verl.trainer')])"
    )
    assert "agentkit_verl.plugin" in said
    assert "agentkit_verl.trainer" not in said
    assert "agentkit_verl.credit" not in said
    assert "verl.trainer" not in said


def test_names_are_known_as_soon_as_a_registry_is() -> None:
    said = run(
        "import importlib.util\n"
        "print(importlib.util.find_spec('verl.trainer.ppo.core_algos').name)  # asked for, not imported\n"
        "print('agentkit_verl.credit.registered' in sys.modules)\n"
        "from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn\n"
        "print(get_adv_estimator_fn('agentkit_grpo').__module__, get_policy_loss_fn('agentkit_action').__module__)\n"
        "print('verl.trainer.ppo.v1' in sys.modules)\n"
        "from verl.trainer.ppo.v1 import get_trainer_cls\n"
        "modes = ('sync', 'colocate_async', 'separate_async')\n"
        "print([issubclass(get_trainer_cls('agentkit_' + m), get_trainer_cls(m)) for m in modes])\n"
    )
    assert "verl.trainer.ppo.core_algos\nFalse\nagentkit_verl.credit" in said
    assert "\nFalse\n[True, True, True]" in said


@pytest.mark.parametrize("first", ["agentkit_verl.trainer", "agentkit_verl.credit.registered"])
def test_the_order_of_imports_does_not_matter(first: str) -> None:
    said = run(
        f"import {first}\n"
        "import agentkit_verl.plugin\n"
        "from verl.trainer.ppo.core_algos import get_adv_estimator_fn\n"
        "print(get_adv_estimator_fn('agentkit_grpo').__name__)\n"
        "if 'verl.trainer.ppo.v1' in sys.modules:\n"
        "    from verl.trainer.ppo.v1 import get_trainer_cls\n"
        "    print(get_trainer_cls('agentkit_sync').__name__)\n"
    )
    assert ("AgentKitSync" in said) == (first == "agentkit_verl.trainer")
    assert "failed" not in said


def test_another_release_and_what_fails_there_are_named_and_break_nothing() -> None:
    said = run(
        "import agentkit_verl.version as ours\n"
        "ours.SUPPORTED_VERL = '0.0.1'\n"
        "sys.modules['agentkit_verl.trainer'] = None\n"
        "from verl.trainer.ppo.v1 import get_trainer_cls\n"
        "print(get_trainer_cls('sync').__name__)\n"
        "try:\n"
        "    get_trainer_cls('agentkit_sync')\n"
        "except ValueError as error:\n"
        "    print(error)\n"
        "from verl.trainer.ppo.core_algos import get_adv_estimator_fn\n"
        "print(get_adv_estimator_fn('agentkit_grpo').__module__)\n"
    )
    assert said.count("written against verl 0.0.1, found verl 0.9.1") == 1
    assert "PPOTrainerSync" in said
    assert "register_trainers failed: verl will not know these names: ModuleNotFoundError" in said
    assert "Unknown trainer 'agentkit_sync'" in said
    assert "agentkit_verl.credit" in said
