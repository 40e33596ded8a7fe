"""A tiny random model behind `LocalService`, which the real client of Tinker talks to."""

from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tinker")

from transformers import AutoModelForCausalLM  # noqa: E402

from ajet.testing.backbones import BackboneSubject  # noqa: E402
from ajet_local.starter.calculator import Calculator  # noqa: E402
from tests.plugins.tinker.local_service import LocalService  # noqa: E402

torch.set_num_threads(1)
KEY = "tml-a-key-of-the-tests"
NAME = "tiny/calculator"


@pytest.fixture(scope="session")
def base():
    """A model with the tokenizer of the starter recipes and random weights."""
    tokenizer = Calculator().tokenizer(0)[0]
    config = Calculator().architecture(tokenizer)
    config.hidden_size, config.intermediate_size = 64, 96
    config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads = 2, 2, 2
    config.layer_types = config.layer_types[:2]
    config.max_position_embeddings = 160
    config.tie_word_embeddings = False  # merging a LoRA of a tied head would change the embedding
    config.initializer_range = 0.2  # distributions with some shape, so that wrong tokens are noticed
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval(), tokenizer


@pytest.fixture(scope="session")
def folder(base, tmp_path_factory):
    """A folder with the model's tokenizer and config.json, as a user would have it."""
    path = tmp_path_factory.mktemp("tokenizer")
    model, tokenizer = base
    tokenizer.save_pretrained(path)
    model.config.save_pretrained(path)
    return path


@contextmanager
def served(model):
    """The running service, with the key in the environment."""
    with (
        pytest.MonkeyPatch.context() as patch,
        LocalService(model, NAME, KEY, context_length=161) as running,
    ):
        patch.setenv("TINKER_API_KEY", KEY)
        yield running


def section_of(service):
    """The keys of `backbone.tinker` that lead to a service."""
    return {"base_model": NAME, "base_url": service.url, "rank": 4, "timeout": 60, "probe": False}


@pytest.fixture
def service(base):
    """A service of the test's own."""
    with served(base[0]) as running:
        yield running


@pytest.fixture
def section(service):
    """The keys of `backbone.tinker` that lead to the service."""
    return section_of(service)


@pytest.fixture
def subject(folder, section, tmp_path):
    """Small jobs of two steps on the service."""
    return BackboneSubject("tinker", str(folder), tmp_path, section)
