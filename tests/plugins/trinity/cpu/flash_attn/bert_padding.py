"""Removes the padding of a batch and adds it again."""

from __future__ import annotations

from typing import Any

import torch


def index_first_axis(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The rows of these indices."""
    return x[indices]


def rearrange(x: torch.Tensor, pattern: str, **_: Any) -> torch.Tensor:
    """einops' function, for the one pattern that verl uses besides those of attention."""
    if pattern.replace(" ", "") != "bs...->(bs)...":
        raise ValueError(pattern)
    return x.flatten(0, 1)


def unpad_input(
    hidden: torch.Tensor, mask: torch.Tensor, unused_mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """Tokens [N, ...], their indices [N] in the batch, the starts of the rows [B + 1], the longest row, all lengths [B]."""
    lengths = mask.sum(-1, dtype=torch.int32)
    indices = torch.nonzero(mask.flatten()).flatten()
    starts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden.flatten(0, 1)[indices], indices, starts, int(lengths.max()), lengths


def pad_input(hidden: torch.Tensor, indices: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    """The batch [B, S, ...] from its tokens [N, ...]."""
    padded = hidden.new_zeros(batch * length, *hidden.shape[1:])
    padded[indices] = hidden
    return padded.view(batch, length, *hidden.shape[1:])
