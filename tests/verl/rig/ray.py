"""Ray for tests: local, in a folder of its own, and ended with its test."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def local_ray(*, cpus: int = 8, env: dict[str, str] | None = None) -> Iterator[None]:
    """A Ray of one's own, whose CPUs need not exist; `env` is what its workers find in their environment."""
    import ray

    if ray.is_initialized():  # Ray starts one by itself where an earlier test of this process asked for what needs it
        ray.shutdown()
    # sockets lie in it: their paths may have 107 bytes
    with tempfile.TemporaryDirectory(prefix="ak-ray-", ignore_cleanup_errors=True) as folder:
        before = dict(os.environ)
        os.environ.update(env or {})
        try:
            ray.init(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                _temp_dir=folder,
                object_store_memory=200 << 20,
                log_to_driver=False,
                runtime_env={"env_vars": env or {}},
            )
            yield
        finally:
            ray.shutdown()
            os.environ.clear()
            os.environ.update(before)
