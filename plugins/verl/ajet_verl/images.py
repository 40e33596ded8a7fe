"""Images in verl: what its servers and workers get of tokens with images, as from verl's own agent loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ajet import AjetError
from ajet.interfaces.engine import Image

if TYPE_CHECKING:
    from ajet.interfaces.vision import Vision

INPUTS = "multi_modal_inputs"
"""The field of a row with the arguments for the vision tower; and in the tag of a row that has this field."""
COORDINATES = 4
"""Coordinates of a position: the token's index in the row, and time, height and width of M-RoPE."""
TOWERS = ("qwen2_vl", "qwen2_5_vl")
"""Types of models whose vision tower verl calls for micro-batches without images, too, as if it returned only a tensor."""


class RowImages(NamedTuple):
    """What verl's workers get of a row of T tokens."""

    token_ids: list[int]
    """T ids, with the model's placeholder for each token of an image."""
    position_ids: torch.Tensor
    """int64[4, T]."""
    inputs: dict[str, torch.Tensor]
    """The image processor's arrays, of all images one after the other; and ``images_seqlens``, int64[images], their patches.
    Empty without images."""


def sees(model: Any) -> bool:
    """Whether verl has loaded a processor of images with multimodal rotary positions, such as Qwen2.5-VL's, for its configuration of
    a model."""
    return all(hasattr(model.processor, name) for name in ("image_token", "get_rope_index"))


def vision_of(model: Any) -> Vision | None:
    """How a model sees images, for verl's configuration of it; None if it does not. See `sees`."""
    if not sees(model):
        return None
    from ajet.interfaces.vision import Vision

    return Vision(model.processor)


def unexpanded(vision: Vision, ids: Sequence[int], images: Iterable[Image]) -> tuple[list[int], list[Image]]:
    """`Vision.unexpanded`. Raises AjetError if verl would take other tokens for an image: it counts runs of placeholders."""
    shortened, order = vision.unexpanded(ids, images)
    if shortened.count(vision.placeholder) != len(order):
        raise AjetError(f"a row has {vision.token} without an image, so verl would mix up its images")
    if any(a == b == vision.placeholder for a, b in pairwise(shortened)):
        raise AjetError(
            "a row has two images without a token between them, which verl would take for one; change the chat template"
        )
    return shortened, order


def seen(vision: Vision, ids: Sequence[int], images: Iterable[Image]) -> RowImages:
    """A row's ids and images for the workers. Raises AjetError as `unexpanded`."""
    _, order = unexpanded(vision, ids, images)
    arrays = [vision.see(image).inputs for image in order]
    inputs = {
        name: torch.from_numpy(np.concatenate([array[name] for array in arrays]))
        for name in (arrays[0] if arrays else ())
    }
    grid = inputs.get("image_grid_thw")
    if grid is not None:
        inputs["images_seqlens"] = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
    plain = vision.plain(list(ids))
    tokens = torch.tensor([plain])
    places, _ = vision.processor.get_rope_index(
        input_ids=tokens,
        attention_mask=torch.ones_like(tokens),
        image_grid_thw=grid,
        video_grid_thw=None,
        mm_token_type_ids=(tokens == vision.placeholder).long(),
    )
    return RowImages(plain, torch.cat([torch.arange(len(plain))[None], places[:, 0]]), inputs)


class VisionTower:
    """A mixin before verl's FSDP engine of language models.

    verl adds 0 times the features of an empty picture to a micro-batch without images, so that all ranks compute the same modules.
    In transformers 5 the tower returns an object, of which verl 0.9.1 takes the mean there, which fails. Elsewhere verl takes
    either.
    """

    def _build_module(self) -> Any:
        module = super()._build_module()  # type: ignore[misc]
        if module.config.model_type in TOWERS:
            module.model.visual.register_forward_hook(lambda tower, given, output: output.pooler_output)
        return module
