"""The critic: a head on the model that predicts, for each token, the reward that is still to come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class ValueHead(torch.nn.Module):
    """A linear function of the last hidden state, 0 at first. It is computed in float32 where the model is less precise."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(size))
        self.bias = torch.nn.Parameter(torch.zeros(()))

    @classmethod
    def on(cls, model: Any) -> ValueHead:
        """A head for a model, on its device."""
        return cls(model.config.get_text_config().hidden_size).to(model.device)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """float[…, H] hidden states -> float32[…] values."""
        return (states.float() * self.weight).sum(
            -1
        ) + self.bias  # a matrix product would be rounded by autocast


def predictions(
    model: Any, head: ValueHead | None, **inputs: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The logits of a pass of ``model``, float[…, V], and, with a head, the values at the same positions, float32[…]."""
    if head is None:
        return model(**inputs).logits, None
    with _last_states(model) as states:
        logits = model(**inputs).logits
    return logits, head(states[-1])


@contextmanager
def _last_states(model: Any) -> Iterator[list[torch.Tensor]]:
    """A block that collects what the model's output layer receives: the last hidden states of the positions with logits."""
    found: list[torch.Tensor] = []
    handle = model.get_output_embeddings().register_forward_pre_hook(
        lambda layer, inputs: found.append(inputs[0])
    )
    try:
        yield found
    finally:
        handle.remove()
