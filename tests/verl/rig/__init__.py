"""What tests against verl have in common: a tiny model, Ray of their own, and a run of `main_ppo`."""

from tests.verl.rig.model import make_model as make_model
from tests.verl.rig.ray import local_ray as local_ray
from tests.verl.rig.trainer import MainRun as MainRun
from tests.verl.rig.trainer import run_main as run_main
from tests.verl.rig.trainer import write_tasks as write_tasks
