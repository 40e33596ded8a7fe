"""In separate_async, all mini-batches of a step compute their old logprobs with the weights that began the step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transfer_queue import KVBatchMeta
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync

from ajet_verl.credit import Credit, Learned, _Update

EMPTY = KVBatchMeta(keys=[], tags=[], partition_id="train", extra_info={})


class Workers:
    """verl's worker in this process, with one weight."""

    def __init__(self) -> None:
        self.worker: Any = object.__new__(DetachActorWorker)
        self.weight = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.weight.weight)
        self.worker.actor = SimpleNamespace(engine=SimpleNamespace(module=self.weight))
        self.worker.config = SimpleNamespace(actor=SimpleNamespace(strategy="fsdp"))
        # verl's own functions alias the weights of a CPU and need a process group.
        self.worker._strategy_handlers = (
            lambda module: {name: value.clone() for name, value in module.state_dict().items()},
            lambda module, state: module.load_state_dict(state),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)

    def value(self) -> float:
        return self.weight.weight.item()


class Trainer(Credit, PPOTrainerSeparateAsync):
    """verl's trainer with our credit, whose workers are in this process."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(algorithm={})
        self.actor_rollout_wg = Workers()
        self.learned = Learned()

    scores_before = True  # type: ignore[assignment]

    def step(self, advantages: list[bool]) -> list[float]:  # type: ignore[override]
        """The weights with which a step computes its old logprobs; each mini-batch says whether it has advantages."""
        self.learned, self.used = Learned(), list[float]()
        for number, has_advantage in enumerate(advantages):
            self.local_trigger_step = number  # as verl's `step` does
            self._update = _Update(int(has_advantage), 1)
            self._compute_old_log_prob(EMPTY, {})
            if has_advantage:
                with torch.no_grad():
                    self.actor_rollout_wg.weight.weight += 1
                self.learned.update(
                    {"tokens_trained": 1.0, "loss": 1.0, "grad_norm": 1.0}, self._update, 1, 1
                )
        return self.used


@pytest.mark.parametrize(
    "advantages", [(True, True, True), (False, True, True), (False, False, True), (True, False, True)]
)
def test_old_logprobs_are_those_of_the_steps_first_weights(
    advantages: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def computed(self: Any, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self.used.append(self.actor_rollout_wg.value())
        return batch

    monkeypatch.setattr(PPOTrainer, "_compute_old_log_prob", computed)
    trainer = Trainer()
    trainer.step([True, True, True])
    assert trainer.actor_rollout_wg.value() == 3

    used = trainer.step(list(advantages))

    assert used == [3.0] * sum(advantages)
    assert trainer.actor_rollout_wg.value() == 3 + sum(advantages), "the update began with other weights"
