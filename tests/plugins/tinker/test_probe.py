"""What a service with Tinker's API does otherwise is found before a run, and is done another way or refused by name."""

import numpy as np
import pytest

import ajet
from ajet_tinker import ajet_doctor
from ajet_tinker.probe import averages
from ajet_tinker.service import TinkerService
from tests.plugins.tinker.conftest import NAME
from tests.plugins.tinker.test_training import job

LAYERS = {"train_mlp": True, "train_attn": True, "train_unembed": False}


@pytest.fixture
def client(service):
    made = TinkerService(service.url, 60)
    yield made
    made.close()


@pytest.mark.parametrize(("other", "averaged"), [(set(), False), ({"averaged"}, True)], ids=str)
def test_how_a_service_sums_the_gradients_of_a_sequence_is_found(client, service, other, averaged):
    service.other |= set(other)
    assert averages(client, NAME, rank=4, **LAYERS) == averaged


@pytest.mark.parametrize(
    ("other", "fails", "named"),
    [
        ({"no logprobs"}, "", "gives no logprobs of sampled tokens"),
        ({"fixed logprobs"}, "", "gives no logprobs of sampled tokens (those of a reply are "),
        (
            ("averaged", "one loss"),
            "",
            "gives no gradient of a loss that is computed here (neither cross_entropy nor importance_sampling",
        ),
        (set(), "create_model", "creates no LoRA (Tinker: creating a LoRA over tiny/calculator failed: no"),
        (
            set(),
            "forward",
            "gives no logprobs of trained tokens (forward, cross_entropy) (Tinker: forward failed",
        ),
        (set(), "optim_step", "gives no gradient of a loss that is computed here (Tinker: optim_step failed"),
        (set(), "save_weights", "saves no checkpoint (Tinker: save_state failed: no."),
    ],
    ids=str,
)
def test_what_it_does_not_answer_is_named_in_one_line(client, service, other, fails, named):
    service.other |= set(other)
    service.fail[fails, 1] = ("no", "user")
    with pytest.raises(ajet.ConfigError) as raised:
        averages(client, NAME, rank=4, **LAYERS)
    assert f"{service.url} {named}"[:-1] in str(raised.value) and "\n" not in str(raised.value)


def test_doctor_tries_the_service_of_the_environment(service, monkeypatch):
    monkeypatch.setenv("TINKER_BASE_URL", service.url)
    assert list(ajet_doctor())[1].found == f"does all that a job needs, tried with {NAME}"
    service.other.add("no logprobs")
    [_, finding] = ajet_doctor()
    assert "gives no logprobs of sampled tokens" in finding.found and finding.remedy and not finding.optional


@pytest.mark.whole
def test_a_run_is_refused_before_its_first_step(folder, service, section, tmp_path):
    service.other.add("no logprobs")
    with pytest.raises(ajet.ConfigError, match="gives no logprobs of sampled tokens"):
        ajet.run(**job(folder, section | {"probe": True}, tmp_path), steps=1)
    assert not service.steps


@pytest.mark.whole
def test_an_averaging_service_takes_the_steps_of_a_summing_one(folder, service, section, tmp_path):
    def metrics(**keys):
        given = job(folder, section | keys, tmp_path, **{"rollout.concurrency": 1})
        return ajet.run(**given, steps=3, seed=3).metrics

    summed = metrics()
    service.other.add("averaged")
    averaged = metrics(probe=True)
    for name in ("reward", "loss", "logprob_diff_max"):
        assert np.allclose([m[name] for m in summed], [m[name] for m in averaged], atol=1e-3), name
