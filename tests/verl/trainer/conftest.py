"""One Ray with verl's store of rows for the tests of the trainers."""

from collections.abc import Iterator

import pytest

from tests.verl.rig.ray import local_ray


@pytest.fixture(scope="module")  # one process may run the modules of others next, which start a Ray of their own
def transfer_queue() -> Iterator[None]:
    """The TransferQueue as `main_ppo` sets it up, with one storage unit instead of eight."""
    import transfer_queue as tq
    from omegaconf import OmegaConf

    with local_ray(cpus=4):
        tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
        yield
        tq.close()
