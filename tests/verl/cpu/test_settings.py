"""What has to be set for a run on CPUs; imports neither torch nor verl."""

import subprocess
import sys

import pytest
from agentkit_verl.cpu import PLUGIN, environment, overrides


def test_the_plugin_comes_first_and_once():
    name = "VERL_USE_EXTERNAL_MODULES"
    assert environment({})[name] == PLUGIN
    assert environment({name: "mine,yours"})[name] == f"{PLUGIN},mine,yours"
    assert environment({name: f"mine,{PLUGIN}"})[name] == f"{PLUGIN},mine"
    assert environment({"A": "b", "OMP_NUM_THREADS": "3"}).items() >= {"A": "b", "OMP_NUM_THREADS": "3"}.items()


def test_the_overrides_are_of_verls_configuration():
    from pathlib import Path

    import verl
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer/config"), version_base=None):
        config = compose("ppo_trainer", overrides=overrides(workers=2))
    assert config.trainer.n_gpus_per_node == config.ray_kwargs.ray_init.num_gpus == 2
    assert config.actor_rollout_ref.rollout.name == "agentkit_cpu"
    assert config.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype == "fp32"
    with pytest.raises(ValueError, match="workers is 0"):
        overrides(workers=0)


def test_the_package_itself_is_light():
    heavy = "import agentkit_verl.cpu, sys; print(*{'torch', 'ray', 'verl'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True).stdout == "\n"
