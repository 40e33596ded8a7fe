"""Our optimizer, which also writes gradients down, for a test that compares them."""

from __future__ import annotations

import os
from typing import Any

import torch

from ajet_trinity.remote import optimizer


class AdamW(optimizer.AdamW):
    """Writes the gradients of each step, in the order of the model's parameters, to ``$AJET_TRINITY_GRADIENTS``."""

    def step(self, closure: Any = None) -> Any:
        if optimizer._rate:
            gradients = [p.grad.full_tensor() for group in self.param_groups for p in group["params"]]
            path = os.environ["AJET_TRINITY_GRADIENTS"]
            if torch.distributed.get_rank() == 0:
                earlier = torch.load(path) if os.path.exists(path) else []
                torch.save([*earlier, [g.clone() for g in gradients]], path)
        return super().step(closure)
