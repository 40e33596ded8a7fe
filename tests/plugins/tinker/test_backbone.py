"""The backbone tinker keeps what every backbone promises."""

import pytest

from ajet.testing import backbones
from ajet.testing.backbones import BACKBONE_CHECKS
from tests.tiers import fast

ELSEWHERE = {
    backbones.check_what_it_declares_is_honoured: "a run for each key; below there is one with all of them",
    backbones.check_a_killed_run_goes_on_after_its_last_checkpoint: "test_failures.py has such a run",
}


@pytest.mark.whole
@pytest.mark.parametrize(
    "check",
    fast([n for n, check in enumerate(BACKBONE_CHECKS) if check not in ELSEWHERE], BACKBONE_CHECKS),
    ids=lambda check: check.__name__,
)
def test_it_keeps_to_the_contract_of_backbones(check, subject):
    check(subject)


@pytest.mark.whole
def test_a_run_may_ask_for_all_that_it_declares_at_once(subject):
    asked = {}
    for capability, keys in subject.optional().items():
        if subject.honours(capability):
            asked |= keys
    assert asked.keys() > {"train.kl", "rollout.fork.roots", "train.asynchronous"}
    assert subject.run({"train.steps": 1, **asked}).steps == 1
