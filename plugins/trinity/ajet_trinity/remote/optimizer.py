"""AdamW with the learning rate of each update, and gradients added up over the chunks of a mini-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

_rate = 0.0


def set_rate(rate: float) -> None:
    """Set the learning rate of the optimizer step that follows in this process; 0: its gradients are kept for the next one."""
    global _rate
    _rate = rate


class AdamW(torch.optim.AdamW):
    """AdamW that clips gradients to the norm ``max_grad_norm`` itself, once they are those of a whole mini-batch. It adds a line
    to the file ``norms`` for each step taken: the norm before clipping."""

    def __init__(
        self, params: Iterable[torch.Tensor], *, max_grad_norm: float, norms: str, **settings: Any
    ) -> None:
        super().__init__(params, **settings)
        self._max_grad_norm = max_grad_norm
        self._norms = norms
        self._collecting = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, except between the chunks of a mini-batch."""
        if not self._collecting:
            super().zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Take the step that `set_rate` has announced, or keep the gradients."""
        self._collecting = not _rate
        if self._collecting:
            return
        for group in self.param_groups:
            group["lr"] = _rate
        trained = [p for group in self.param_groups for p in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(trained, self._max_grad_norm)
        whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of all ranks: a collective
        super().step(closure)
        if torch.distributed.get_rank() == 0:
            with open(self._norms, "a", encoding="ascii") as file:
                file.write(f"{whole.item()!r}\n")
