"""The example with pictures: its tasks, its agent, its model's transcripts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ajet.interfaces.workflow import load_object
from ajet_local.starter.shapes import COLOURS, QUARTERS, Shape, careful, draw, glance, hasty, overview, zoomed
from ajet_local.starter.vision import StarterVision

EXAMPLE = Path(__file__).parents[2] / "examples" / "shapes"


def tasks(**fields: Any) -> list[Any]:
    return list(load_object(f"{EXAMPLE}/marks.py:Marks", "task.reader.type")(**fields).tasks())


def test_held_out_pictures_are_in_no_training_task_and_no_transcript() -> None:
    train, held = tasks(count=60), tasks(count=60, held_out=True)
    ids = {task.id for task in train}
    assert len(ids) == 60
    assert not ids & {task.id for task in held}
    rng = random.Random(0)
    given_away = {task for make in (glance, careful, hasty) for _ in range(60) for task in make(rng).tasks}
    assert not given_away & {task.id for task in held}


def test_only_the_quarter_with_the_mark_shows_its_colour_and_the_overview_shows_none() -> None:
    rng = random.Random(1)
    for _ in range(20):
        shape = draw(rng)
        picture = shape.picture()
        grey = np.asarray(overview(picture), np.int32)
        assert (grey[..., 0] == grey[..., 1]).all() and (grey[..., 1] == grey[..., 2]).all()
        for quarter in QUARTERS:
            part = np.asarray(zoomed(picture, quarter), np.int32)
            assert (part.max(-1) - part.min(-1) > 60).any() == (quarter == shape.quarter)


def test_the_colour_cannot_be_told_from_the_overview() -> None:
    """Each colour occurs as bright as the others: their ranges of grey overlap."""
    shape = Shape("square", "red", 60, 60, 24, 100)
    greys = {
        colour: [
            overview(replace(shape, colour=colour, light=light).picture()).getpixel((15, 15))[0]
            for light in (80, 120)
        ]
        for colour in COLOURS
    }
    assert max(low for low, _ in greys.values()) < min(high for _, high in greys.values())


@pytest.mark.whole
def test_transcripts_train_the_assistants_tokens_and_have_the_pictures() -> None:
    recipe = StarterVision()
    tokenizer, _ = recipe.tokenizer(0)
    model = recipe.network(tokenizer)
    _, to_sample = recipe.samples(model, tokenizer)
    transcript = careful(random.Random(3))
    sample = to_sample(transcript)
    said = [tokenizer.decode(sample.token_ids[s.start : s.end].tolist()) for s in sample.spans]
    calls = [m for m in transcript.messages if m.get("tool_calls")]
    assert len(said) == len(calls) + 1
    assert all(text.startswith("<tool_call>") and text.endswith("<|im_end|>") for text in said[:-1])
    assert said[-1].removesuffix("<|im_end|>") in COLOURS
    assert not sample.mask[sample.token_ids < 0].any()
    assert len(sample.images) == len({i for i in sample.token_ids.tolist() if i < 0})


@pytest.mark.whole
@pytest.mark.e2e
def test_the_agent_works_with_a_scripted_model(command: Callable[..., str], tmp_path: Path) -> None:
    script = tmp_path / "answers.yaml"
    zoom = {"turn": 0, "call": {"name": "zoom", "arguments": {"quarter": QUARTERS[0]}}}
    script.write_text(yaml.safe_dump([zoom, {"say": "red"}]))
    command("check", str(EXAMPLE / "job.yaml"), "--answers", str(script))
