"""Two families of vision-language processors, with small tokenizers, built here: no hub, no torchvision.

Both are Hugging Face's own classes. Qwen2.5-VL's writes one run of placeholders, as many as the picture is large; Idefics3's cuts
a picture into tiles and writes a run for each, with markers between them.
"""

from __future__ import annotations

import base64
import functools
import io
from typing import Any

from PIL import Image as Pillow
from transformers import PreTrainedTokenizerFast
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from ajet.chat.vision import Vision
from ajet_local.processors import images_only
from tests.tokenizers import byte_level

QWEN_TEMPLATE = (
    "{% set image_count = namespace(value=0) %}{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' or 'image' in content %}"
    "{% set image_count.value = image_count.value + 1 %}{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The layout of Qwen2.5-VL's chats."""
IDEFICS_TEMPLATE = (
    "<|begin_of_text|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'] and message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""The layout of Idefics3's and SmolVLM's chats, whose contents are lists only."""
FAMILIES = ("qwen2_5_vl", "idefics3")


@functools.cache
def vision(family: str) -> Vision:
    """The vision of a family; its processor has the tokenizer."""
    return Vision({"qwen2_5_vl": _qwen, "idefics3": _idefics}[family]())


def _qwen() -> Any:
    control = (
        *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unknown|>", "<|vision_start|>", "<|vision_end|>"),
        *("<|image_pad|>", "<|video_pad|>"),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(control),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|unknown|>",
        chat_template=QWEN_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    images = Qwen2VLImageProcessorPil(
        patch_size=8,
        merge_size=2,
        temporal_patch_size=2,
        size={"shortest_edge": 16 * 16, "longest_edge": 128 * 128},
    )
    return images_only(Qwen2_5_VLProcessor)(images, tokenizer, chat_template=QWEN_TEMPLATE)


def _idefics() -> Any:
    control = (
        *(
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|unknown|>",
            "<end_of_utterance>",
            "<fake_token_around_image>",
            "<image>",
        ),
        *("<global-img>", *(f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7))),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(control),
        bos_token="<|begin_of_text|>",
        eos_token="<end_of_utterance>",
        pad_token="<|end_of_text|>",
        unk_token="<|unknown|>",
        chat_template=IDEFICS_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    images = Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    return Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=IDEFICS_TEMPLATE)


def picture(color: str = "red", size: tuple[int, int] = (48, 32), form: str = "PNG") -> bytes:
    """The file of a picture of one colour."""
    out = io.BytesIO()
    Pillow.new("RGB", size, color).save(out, form)
    return out.getvalue()


def url(data: bytes, kind: str = "png") -> str:
    """A data URL."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def part(data: bytes | None = None) -> dict[str, Any]:
    """A picture as a part of a chat completions message."""
    return {"type": "image_url", "image_url": {"url": url(data or picture())}}


def seen(text: str, *images: bytes, role: str = "user") -> dict[str, Any]:
    """A message with pictures before its text."""
    return {"role": role, "content": [*map(part, images or (picture(),)), {"type": "text", "text": text}]}
