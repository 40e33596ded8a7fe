"""The critic: a head on the model that predicts, for each token, the reward that is still to come."""

from __future__ import annotations

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
