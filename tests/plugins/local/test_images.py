"""Vision-language models: what is sampled is what is trained, as rows and as trees, on two families."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ajet.chat.images import Images  # noqa: E402
from ajet.interfaces.progress import Silent, reporting_to  # noqa: E402
from ajet.types import AjetError, GenerateRequest, Image, Sample, Sampling, Span  # noqa: E402
from ajet_local.engine import LocalEngine  # noqa: E402
from ajet_local.modeling import load_model  # noqa: E402
from ajet_local.rows import trained_tokens  # noqa: E402
from ajet_local.sight import ATTRIBUTE, Sight, check_sight, places, tree_places  # noqa: E402
from ajet_local.trees import enable_trees, tree_tokens  # noqa: E402
from ajet_trees.models import ComputedTree  # noqa: E402
from ajet_trees.packing import pack  # noqa: E402
from tests.processors import FAMILIES, picture, vision  # noqa: E402
from tests.tiers import thinned  # noqa: E402

families = pytest.mark.parametrize("family", FAMILIES)
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def model_of(family: str) -> Any:
    """A random model of a family."""
    import transformers

    seeing = vision(family)
    tokenizer = seeing.processor.tokenizer
    of = tokenizer.convert_tokens_to_ids
    text = TEXT | {"vocab_size": len(tokenizer)}
    torch.manual_seed(0)
    if family == "qwen2_5_vl":
        config = transformers.Qwen2_5_VLConfig(
            text_config=text
            | {"rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1e4}},
            vision_config={
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_heads": 2,
                "patch_size": 8,
                "window_size": 32,
                "fullatt_block_indexes": [1],
                "out_hidden_size": 64,
            },
            image_token_id=of("<|image_pad|>"),
            video_token_id=of("<|video_pad|>"),
            vision_start_token_id=of("<|vision_start|>"),
            vision_end_token_id=of("<|vision_end|>"),
        )
    else:
        config = transformers.Idefics3Config(
            text_config=text | {"model_type": "llama"},
            vision_config={
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 32,
                "patch_size": 8,
            },
            image_token_id=of("<image>"),
            scale_factor=2,
            pad_token_id=0,
        )
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    setattr(model, ATTRIBUTE, seeing)
    return model


def pictures() -> list[Image]:
    images = Images()
    return [
        images.add(picture(colour, size), "x")
        for colour, size in (("red", (48, 32)), ("blue", (64, 64)), ("green", (48, 32)))
    ]


def requests(family: str) -> list[GenerateRequest]:
    """Prompts that share their beginning, with a picture, and go on with others, with the same twice, and with none."""
    rng = np.random.default_rng(0)
    red, blue, green = pictures()
    seen = {image.ref: vision(family).see(image).ids.tolist() for image in (red, blue, green)}

    def text(n: int) -> list[int]:
        return [int(i) for i in rng.integers(20, 200, n)]

    head = [*text(5), *seen[red.ref], *text(4)]
    prompts = [
        ([*head, *seen[blue.ref], *text(3)], (red, blue)),
        ([*head, *seen[green.ref], *text(3)], (red, green)),
        ([*head, *seen[red.ref], *seen[red.ref], *text(2)], (red,)),
        ([*head, *text(6)], (red,)),
        (text(7), ()),
    ]
    return [
        GenerateRequest(
            np.array(ids, np.int32), Sampling(max_tokens=6, seed=n, temperature=0.8), images=images
        )
        for n, (ids, images) in enumerate(prompts)
    ]


@cache
def sampled(family: str, **options: Any) -> Sequence[Sample]:
    """What the engine samples, sent twice: the second time from its cache, with equal results."""

    async def run() -> list[Sample]:
        engine = LocalEngine(model_of(family), vision(family).processor.tokenizer, **options)
        await engine.start()
        asked = requests(family)
        first = await asyncio.gather(*map(engine.generate, asked))
        again = await asyncio.gather(*map(engine.generate, asked))
        for one, other in zip(first, again, strict=True):
            assert one.token_ids.tolist() == other.token_ids.tolist()
        found = []
        for request, generation in zip(asked, first, strict=True):
            ids = np.concatenate([request.prompt_ids, generation.token_ids])
            scored = await engine.score(ids, 0.8, images=request.images)
            start = len(request.prompt_ids)
            np.testing.assert_allclose(scored[start:], generation.logprobs, atol=1e-3)
            assert np.isnan(scored[ids < 0]).all()
            mask = np.arange(len(ids)) >= start
            logprobs = np.full(len(ids), np.nan, np.float32)
            logprobs[start:] = generation.logprobs
            ones = np.ones(len(ids), np.float32)
            span = Span(start, len(ids), 0, "a", "t", 0.8)
            found.append(Sample(ids, mask, logprobs, ones, ones, (span,), images=request.images))
        await engine.close()
        return found

    return asyncio.run(run())


def gradients(model: Any, loss: Any) -> dict[str, Any]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.whole
@thinned
@families
@pytest.mark.parametrize("options", [{}, {"prefill_tokens": 7}])
def test_training_gives_sampled_tokens_the_logprobs_that_the_engine_recorded(
    family: str, options: Any
) -> None:
    model = model_of(family)
    tokens = trained_tokens(model, sampled(family, **options))
    assert (tokens.new - tokens.old).abs().max() < 1e-3


@pytest.mark.whole
@families
def test_a_tree_gives_the_logprobs_and_gradients_of_its_rows(family: str) -> None:
    model = model_of(family)
    samples = sampled(family)
    of_rows = trained_tokens(model, samples).new
    expected = gradients(model, of_rows.sum())
    assert any("vis" in name and g.abs().max() > 0 for name, g in expected.items()), "the vision tower learns"
    assert enable_trees(model) == ""
    tree = ComputedTree(pack(samples))
    assert len(tree.token_ids) < sum(len(s.token_ids) for s in samples)
    of_tree = tree_tokens(model, tree).new
    assert (of_tree - of_rows).abs().max() < 1e-5
    for name, gradient in gradients(model, of_tree.sum()).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-4, rtol=1e-4, msg=name)


@families
def test_logprobs_depend_on_the_picture(family: str) -> None:
    model = model_of(family)
    (sample, *_) = sampled(family)
    red, blue = sample.images
    other = pictures()[2]
    ids = np.where(sample.token_ids == red.token, other.token, sample.token_ids)
    changed = replace(sample, token_ids=ids, images=(other, blue))
    one, two = (trained_tokens(model, [s]).new for s in (sample, changed))
    assert (one - two).abs().max() > 1e-4


def test_positions_are_those_of_the_model_itself() -> None:
    model = model_of("qwen2_5_vl")
    sight = Sight.of(model)
    assert sight is not None and sight.mrope
    # The model itself takes no two pictures without text between them.
    one, two, _, three, _ = requests("qwen2_5_vl")
    for request in (one, two, three):
        ids = request.prompt_ids
        found = places(ids, sight.placed(request.images), True).positions
        plain = torch.tensor([sight.vision.plain(ids.tolist())])
        order = _in_order(ids, request.images, sight)
        grids = torch.as_tensor(np.concatenate([sight.vision.see(i).inputs["image_grid_thw"] for i in order]))
        kinds = (plain == sight.vision.placeholder).int()
        expected, _ = model.model.get_rope_index(plain, mm_token_type_ids=kinds, image_grid_thw=grids)
        assert found.tolist() == expected[:, 0].tolist()


def _in_order(ids: Any, images: Sequence[Image], sight: Sight) -> list[Image]:
    """The images in the order of the placeholders, one entry for each time."""
    found, at = [], 0
    while at < len(ids):
        if ids[at] < 0:
            found.append(next(i for i in images if i.token == ids[at]))
            at += sight.vision.see(found[-1]).count
        else:
            at += 1
    return found


@families
def test_places_in_a_tree_are_those_of_the_rows(family: str) -> None:
    model = model_of(family)
    sight = Sight.of(model)
    assert sight is not None
    samples = sampled(family)
    placed = sight.placed(pictures())
    tree = pack(samples)
    found = tree_places(tree.token_ids, tree.parents, placed, sight.mrope)
    for sample, positions in zip(samples, tree.positions, strict=True):
        row = places(sample.token_ids, placed, sight.mrope)
        assert found.positions[:, positions].tolist() == row.positions[:, sample.mask].tolist()


def test_a_model_whose_images_are_not_computed_from_left_to_right_is_refused(monkeypatch: Any) -> None:
    def others(sight: Sight, images: Sequence[Image]) -> dict[int, Any]:
        return {image.token: torch.ones(sight.vision.see(image).count, 64) for image in images}

    monkeypatch.setattr(Sight, "features", others)
    with pytest.raises(AjetError, match="cannot compute the images of 'qwen2_5_vl'"):
        check_sight(model_of("qwen2_5_vl"))


def test_a_placeholder_without_its_image_is_an_error_in_one_line() -> None:
    model = model_of("qwen2_5_vl")
    (sample, *_) = sampled("qwen2_5_vl")
    with pytest.raises(AjetError, match="an image of a recorded episode is missing"):
        trained_tokens(model, [replace(sample, images=())])


@pytest.mark.whole
def test_a_saved_model_sees_again_and_one_without_its_processor_reads_text(tmp_path: Path) -> None:
    model = model_of("qwen2_5_vl")
    seeing = vision("qwen2_5_vl")
    model.save_pretrained(tmp_path)
    seeing.processor.tokenizer.save_pretrained(tmp_path)
    told: list[str] = []

    class Told(Silent):
        def say(self, text: str) -> None:
            told.append(text)

    with reporting_to(Told()):
        loaded, tokenizer = load_model(tmp_path)
    (line,) = told
    assert "used for text only: requests with images are refused" in line
    engine = LocalEngine(loaded, tokenizer)
    assert engine.vision is None
    request = GenerateRequest(np.arange(1, 9, dtype=np.int32), Sampling(max_tokens=6, temperature=0))

    async def answered(engine: LocalEngine) -> list[int]:
        await engine.start()
        found: list[int] = (await engine.generate(request)).token_ids.tolist()
        await engine.close()
        return found

    with_images = LocalEngine(model, tokenizer)
    assert with_images.vision
    assert asyncio.run(answered(engine)) == asyncio.run(answered(with_images))
    seeing.processor.save_pretrained(tmp_path)
    loaded, _ = load_model(tmp_path)
    (image, *_) = pictures()
    assert getattr(loaded, ATTRIBUTE).see(image).ids.tolist() == seeing.see(image).ids.tolist()


def test_a_processor_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    model_of("qwen2_5_vl").save_pretrained(tmp_path)
    vision("qwen2_5_vl").processor.tokenizer.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(AjetError, match="its image processor cannot be loaded"):
        load_model(tmp_path)
