"""vLLM with images: the prompt that it computes is ours, and its logprobs are those of the local engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip(
    "torchvision", reason="vLLM's models that see import torchvision, which fits no CPU build of torch here"
)

from ajet.capture.portal import Portal
from ajet.chat.images import Images
from ajet.interfaces.progress import Silent
from ajet.types import GenerateRequest, Sampling
from tests.processors import picture

from .conftest import START_SECONDS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random LLaVA, whose processor needs no torchvision."""
    import torch
    import transformers

    from tests import processors

    control = ("<s>", "</s>", "<|unknown|>", "<image>")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=processors.byte_level(control),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        unk_token="<|unknown|>",
    )
    images = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    processor = transformers.LlavaProcessor(
        images,
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlavaConfig(
        text_config={
            **sizes,
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "initializer_range": 0.2,
        },
        vision_config={
            **sizes,
            "model_type": "clip_vision_model",
            "num_hidden_layers": 3,
            "image_size": 32,
            "patch_size": 8,
            "projection_dim": 64,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=16,
    )
    model = transformers.LlavaForConditionalGeneration(config).eval()
    made = tmp_path_factory.mktemp("llava")
    model.save_pretrained(made)
    processor.save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[tuple[Any, Portal]]:
    from ajet_vllm.plugin import VLLMEnginePlugin

    portal = Portal()
    plugin = VLLMEnginePlugin(
        dtype="float32", kv_cache_gib=0.1, options={"enforce_eager": True, "block_size": 32}
    )
    made = plugin.build(str(folder), 0, Silent())
    portal.submit(made.start()).result(START_SECONDS)
    yield made, portal
    portal.submit(made.close()).result(START_SECONDS)
    portal.close()


def test_sampled_logprobs_are_those_of_the_local_engine_and_depend_on_the_picture(
    engine: tuple[Any, Portal], folder: Path
) -> None:
    from ajet_local.engine import LocalEngine
    from ajet_local.modeling import load_model

    vllm, portal = engine
    model, tokenizer = load_model(folder, "cpu")
    local = LocalEngine(model, tokenizer)
    images = Images()
    found = []
    for colour in ("red", "blue"):
        image = images.add(picture(colour), "x")
        ids = np.array([20, 21, *vllm.vision.see(image).ids.tolist(), 30, 31], np.int32)
        request = GenerateRequest(ids, Sampling(max_tokens=8, seed=1), ("e", len(found)), images=(image,))
        generation = portal.submit(vllm.generate(request)).result(START_SECONDS)
        whole = np.concatenate([ids, generation.token_ids])
        scored = asyncio.run(local.score(whole, images=(image,)))[len(ids) :]
        np.testing.assert_allclose(generation.logprobs, scored, atol=1e-3)
        found.append(generation.logprobs)
    assert not np.allclose(found[0], found[1], atol=1e-3)
