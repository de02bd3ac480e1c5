"""A pytest plugin for runs on planted defects: the first falsifying example is enough; nothing is shrunk or stored."""

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "mutants",
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
