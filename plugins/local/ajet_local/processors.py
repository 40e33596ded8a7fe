"""Loads the image processor of a vision-language model, without torchvision."""

from __future__ import annotations

import inspect
from typing import Any

import transformers
from transformers import AutoConfig
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES
from transformers.utils import has_file

from ajet import AjetError
from ajet.interfaces.progress import current_progress
from ajet.interfaces.vision import Vision

_FILES = ("processor_config.json", "preprocessor_config.json")


def vision_of(source: str, tokenizer: Any) -> Vision | None:
    """The vision of a model folder or Hugging Face id; None if the model reads only text, and, after one line that says so, if
    there is no processor. Its processor gets ``tokenizer``. Raises AjetError for a processor that cannot be loaded."""
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        if not hasattr(config, "vision_config"):
            return None
        if not any(has_file(source, name) for name in _FILES):
            current_progress().say(
                f"model {source}: there is no image processor, so the model is used for text only: requests with images are refused. "
                "For images, save the processor there with its method save_pretrained."
            )
            return None
        processor = images_only(_processor_class(config.model_type)).from_pretrained(
            source, backend="pil", trust_remote_code=False
        )
    except (OSError, ValueError, ImportError, TypeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise AjetError(
            f"model {source}",
            f"its image processor cannot be loaded: {reason}. Save the processor there: "
            f"processor.save_pretrained({source!r}).",
        ) from error
    processor.tokenizer = tokenizer
    return Vision(processor)


def images_only(processor: type[Any]) -> type[Any]:
    """A Hugging Face class of processors without its part for videos, which cannot be loaded without torchvision."""
    if "video_processor" not in inspect.signature(processor.__init__).parameters:
        return processor

    class ImagesOnly(processor):
        def __init__(
            self,
            image_processor: Any = None,
            tokenizer: Any = None,
            chat_template: str | None = None,
            **fields: Any,
        ) -> None:
            super().__init__(image_processor, tokenizer, None, chat_template=chat_template, **fields)

    ImagesOnly.__name__ = processor.__name__  # saved processors name their class
    return ImagesOnly


def _processor_class(model_type: str) -> type[Any]:
    name = PROCESSOR_MAPPING_NAMES.get(model_type)
    if name is None:
        raise ValueError(f"transformers has no processor for {model_type!r}")
    cls: type[Any] = getattr(transformers, name)
    return cls
