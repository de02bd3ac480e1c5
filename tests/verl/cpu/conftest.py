import pytest

from tests.verl.rig.model import cached, make_model


@pytest.fixture(scope="session")
def model_folder():
    return cached("random", make_model)


@pytest.fixture
def load_model(model_folder):
    """Makes the model anew, with weights that a test may change."""
    import torch
    from transformers import AutoModelForCausalLM

    return lambda: AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()


@pytest.fixture
def model(load_model):
    return load_model()
