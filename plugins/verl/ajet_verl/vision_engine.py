"""verl's FSDP engine over models that see images."""

from __future__ import annotations

from typing import Any

TOWERS = ("qwen2_vl", "qwen2_5_vl")
"""Types of models whose vision tower verl calls for micro-batches without images, too, as if it returned only a tensor."""


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
