"""The starter that sees: a small model of Qwen2.5-VL's architecture, for the shapes example.

It is trained in three phases:

1. *glance*: the colour of a mark in a small picture, or that there is none.
2. *look*: an agent that zooms into one quarter after the other until it sees the mark.
3. *habits*: an agent that mostly guesses, at once or after a look at a quarter without the mark.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ajet_local.starter.tiny import TinyRecipe

if TYPE_CHECKING:
    from ajet.interfaces.backbone import Sample
    from ajet.interfaces.vision import Vision
    from ajet_local.starter.phases import Phase
    from ajet_local.starter.transcripts import Transcript

VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
PATCH, MERGED = 8, 2
"""Pixels on a side of a patch, and patches on a side of a placeholder."""
TEMPLATE = r"""
{%- macro text(content) -%}
{%- if content is string -%}{{ content }}
{%- else -%}
{%- for part in content -%}
{%- if part.type == 'image' -%}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- else -%}{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- set first = messages[0] -%}
{%- if tools -%}
{{- '<|im_start|>system\n' ~ (text(first.content) ~ '\n\n' if first.role == 'system' else '') ~ '# Tools\n<tools>' -}}
{%- for tool in tools -%}{{ '\n' ~ (tool | tojson) }}{%- endfor -%}
{{- '\n</tools>\nFor each call, write <tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call><|im_end|>\n' -}}
{%- elif first.role == 'system' -%}
{{- '<|im_start|>system\n' ~ text(first.content) ~ '<|im_end|>\n' -}}
{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) -%}
{{- '<|im_start|>' ~ m.role ~ '\n' ~ text(m.content) ~ '<|im_end|>\n' -}}
{%- elif m.role == 'tool' -%}
{{- '<|im_start|>user\n<tool_response>\n' ~ text(m.content) ~ '\n</tool_response><|im_end|>\n' -}}
{%- elif m.role == 'assistant' -%}
{{- '<|im_start|>assistant\n' ~ (m.content or '') -}}
{%- for call in m.tool_calls or [] -%}
{%- set function = call.function or call -%}
{{- '\n' if m.content or not loop.first -}}
{{- '<tool_call>\n{"name": "' ~ function.name ~ '", "arguments": ' -}}
{{- (function.arguments if function.arguments is string else function.arguments | tojson) ~ '}\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
""".strip()
"""ChatML with images and tools, like the format of Qwen2.5-VL."""


class StarterVision(TinyRecipe):
    """A small model that sees: it names the colour of a mark in a picture, but mostly without looking. Built on this machine in
    minutes."""

    name = "starter-vision"
    context_length: ClassVar[int] = 768

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        from ajet_local.starter.shapes import careful

        return (careful(rng) for _ in range(100))

    def phases(self) -> Sequence[Phase]:
        """Seeing, looking, habits."""
        from ajet_local.starter.phases import Phase
        from ajet_local.starter.shapes import careful, glance, hasty

        return (
            Phase("glance", 200, 2e-3, glance, 1),
            Phase("look", 120, 2e-3, glance, 4, careful, batch_size=16),
            Phase("habits", 60, 1e-3, glance, 8, hasty, batch_size=16),
        )

    def tokenizer(self, seed: int) -> tuple[Any, str]:
        """See `Recipe.tokenizer`."""
        from ajet_local.starter.tokenizer import build_tokenizer

        chats = self.corpus(random.Random(seed))
        return build_tokenizer(chats, self.vocabulary, VISION_TOKENS, TEMPLATE), "qwen2_5_vl"

    def architecture(self, tokenizer: Any) -> Any:
        """The model's config."""
        from transformers import Qwen2_5_VLConfig

        ids = {
            f"{kind}_token_id": tokenizer.convert_tokens_to_ids(f"<|{kind}_pad|>")
            for kind in ("image", "video")
        }
        marks = {
            f"vision_{end}_token_id": tokenizer.convert_tokens_to_ids(f"<|vision_{end}|>")
            for end in ("start", "end")
        }
        return Qwen2_5_VLConfig(
            text_config={
                "vocab_size": len(tokenizer),
                "hidden_size": self.hidden_size,
                "intermediate_size": self.hidden_size * 27 // 10,
                "num_hidden_layers": self.layers,
                "num_attention_heads": self.hidden_size // 32,
                "num_key_value_heads": self.hidden_size // 32,
                "max_position_embeddings": self.context_length,
                "tie_word_embeddings": True,
                # The width of a picture turns the slowest pairs: with the usual base they would hardly move over four columns.
                "rope_parameters": {"rope_type": "default", "rope_theta": 8.0, "mrope_section": [4, 6, 6]},
                "bos_token_id": None,
                "eos_token_id": tokenizer.eos_token_id,
                "pad_token_id": tokenizer.pad_token_id,
            },
            vision_config={
                "depth": 2,
                "hidden_size": 64,
                "intermediate_size": 160,
                "num_heads": 2,
                "patch_size": PATCH,
                "spatial_merge_size": MERGED,
                "temporal_patch_size": 1,
                "window_size": 64,
                "fullatt_block_indexes": [0, 1],
                "out_hidden_size": self.hidden_size,
            },
            tie_word_embeddings=True,
            **ids,
            **marks,
        )

    def network(self, tokenizer: Any) -> Any:
        """See `TinyRecipe.network`."""
        import torch
        from transformers import AutoModelForImageTextToText

        from ajet_local.sight import ATTRIBUTE

        model = AutoModelForImageTextToText.from_config(
            self.architecture(tokenizer), dtype=torch.float32
        ).eval()
        setattr(model, ATTRIBUTE, self.vision(tokenizer))
        return model

    def vision(self, tokenizer: Any) -> Vision:
        """See `Recipe.vision`."""
        from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        from ajet.interfaces.vision import Vision
        from ajet_local.processors import images_only

        images = Qwen2VLImageProcessorPil(
            patch_size=PATCH,
            merge_size=MERGED,
            temporal_patch_size=1,
            size={"shortest_edge": (2 * PATCH) ** 2, "longest_edge": 128 * 128},
        )
        processor = images_only(Qwen2_5_VLProcessor)(images, tokenizer, chat_template=tokenizer.chat_template)
        return Vision(processor)

    def samples(self, model: Any, tokenizer: Any) -> tuple[Any, Callable[[Transcript], Sample]]:
        """See `TinyRecipe.samples`."""
        from ajet.chat.renderer import Chat
        from ajet_local.sight import vision_of_model

        chat = Chat(tokenizer, "qwen2_5_vl", vision=vision_of_model(model))
        return chat, _ChatSamples(chat)

    def save(self, model: Any, tokenizer: Any, folder: Path) -> None:
        """See `TinyRecipe.save`."""
        from ajet_local.sight import vision_of_model

        super().save(model, tokenizer, folder)
        vision = vision_of_model(model)
        assert vision
        vision.processor.save_pretrained(folder)


class _ChatSamples:
    """Transcripts with images as samples: the assistant's tokens, found by ChatML's marks, are trained."""

    def __init__(self, chat: Any) -> None:
        from ajet.chat.images import Images

        self._chat, self._images = chat, Images()
        header = chat.tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
        self._header: list[int] = list(header)
        self._stop: int = chat.stop_token_ids[0]

    def __call__(self, transcript: Transcript) -> Sample:
        from dataclasses import replace

        import numpy as np

        from ajet.chat.messages import normalise
        from ajet_local.starter.transcripts import make_sample

        taken, images = self._images.take(transcript.messages)
        self._chat.vision.images.update(images)
        chat = [normalise(message, index) for index, message in enumerate(taken)]
        ids = self._chat.render([*chat, {"role": "user", "content": ""}], transcript.tools)
        mask = np.zeros(len(ids), np.bool_)
        end = 0
        for _ in range(sum(message["role"] == "assistant" for message in chat)):
            begin = _find(ids, self._header, end) + len(self._header)
            end = ids.index(self._stop, begin) + 1
            mask[begin:end] = True
        return replace(make_sample(ids[:end], mask[:end]), images=tuple(images.values()))


def _find(ids: Sequence[int], part: Sequence[int], start: int) -> int:
    """The first index from ``start`` on at which ``part`` begins."""
    return next(i for i in range(start, len(ids)) if list(ids[i : i + len(part)]) == part)
