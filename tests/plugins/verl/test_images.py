"""Rows with images: each field is what verl's own agent loop computes for the same messages, and verl's forward pass over them gives
the logprobs of the backbone local."""

from __future__ import annotations

import asyncio
import types
from typing import Any

import numpy as np
import pytest
import torch
import verl.trainer.ppo.v1.agent_loop_tq as agent_loop
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.utils import hf_processor
from verl.utils import tensordict_utils as tu
from verl.utils.model import extract_multi_modal_inputs
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.rollout.replica import TokenOutput

from ajet.chat.images import Images, open_image
from ajet.chat.messages import images_of, normalise
from ajet.learning.batch import Learnable, TokenSelection
from ajet.rollout.episode import Episode, Plan
from ajet.types import AjetError, GenerateRequest, Sampling, Task, WorkflowOutput
from ajet_local.engine import LocalEngine
from ajet_verl.engine import VerlEngine
from ajet_verl.images import INPUTS, VisionTower, seen, sees, unexpanded, vision_of
from ajet_verl.rows import GroupRows, group_rows, padding
from ajet_verl.workers import Trees
from tests.plugins.local.test_images import model_of, pictures
from tests.processors import part, picture
from tests.processors import seen as shown
from tests.tracker.harness import U2, S, Script, U, tool

FAMILY = "qwen2_5_vl"
RED, BLUE, GREEN = picture("red"), picture("blue", (64, 96)), picture("green", (40, 80))
REWARD = 0.5
CALL = {"id": "c1", "type": "function", "function": {"name": "zoom", "arguments": "{}"}}
CHATS: list[tuple[list[Any], str, list[Any], str]] = [
    ([S, shown("Which colours?", RED, BLUE)], "red and blue", [U2], "twice"),
    ([S, shown("Which colour?", RED)], "red", [shown("And these?", GREEN, RED)], "green and red"),
    ([S, U], "two", [{**tool([part(BLUE)], "c1"), "role": "user"}], "blue"),
    ([S, U], "none", [U2], "none"),
]
"""Messages, the answer, further messages, the last answer: a picture in the prompt, one that comes later and one that comes back, one
that only a later message has, and none."""


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Qwen2.5-VL's, prepared by verl. `AutoProcessor` itself needs torchvision."""
    made, folder = model_of(FAMILY), tmp_path_factory.mktemp("model")
    made.config.save_pretrained(folder)
    with pytest.MonkeyPatch.context() as patch:
        own = made.ajet_vision.processor
        patch.setattr("transformers.AutoProcessor.from_pretrained", lambda *_, **__: own)
        found = hf_processor(str(folder))
    assert found is own
    return found


@pytest.fixture(scope="module")
def member(processor: Any) -> Learnable:
    """An episode of several timelines, as capture records it."""
    script = Script(FAMILY)
    for first, answer, then, last in CHATS:
        reply = script.call(first, answer)
        script.call([*first, reply, *then], last)
    episode = Episode(Plan("e", "e", Task("t"), 0, 0), 0, WorkflowOutput(), script.record, reward=REWARD)
    found = TokenSelection().learnable(episode)
    assert found is not None and len(found.lines) == len(CHATS)
    return found


@pytest.fixture(scope="module")
def rows(processor: Any, member: Learnable) -> GroupRows:
    """Its rows."""
    return group_rows("uid", [member], 1.0, vision_of(types.SimpleNamespace(processor=processor)))


def reference(processor: Any) -> list[dict[str, Any]]:
    """What verl's agent loop puts into its queue for the same messages: its own code but for the calls of a model."""
    worker_class = agent_loop.AgentLoopWorkerTQ.__ray_metadata__.modified_class
    worker = object.__new__(worker_class)
    worker.processor, worker.tokenizer = processor, processor.tokenizer
    worker.mm_processor_kwargs = {}
    worker.reward_loop_worker_handles, worker.distillation_enabled = None, False
    outputs = [output_of(processor, *chat) for chat in CHATS]
    put: dict[str, Any] = {}

    async def keep(**call: Any) -> None:
        put.update(call)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent_loop, "list_of_dict_to_tensordict", list)
        patch.setattr(agent_loop.tq, "async_kv_batch_put", keep)
        ids = {"uid": "uid", "session_id": 0, "global_steps": 1}
        asyncio.run(worker._agent_loop_postprocess(outputs, False, **ids))
    found: list[dict[str, Any]] = put["fields"]
    return found


def output_of(processor: Any, first: list[Any], answer: str, then: list[Any], last: str) -> AgentLoopOutput:
    """The output of an agent loop of verl, whose tokens are those that the processor makes of the whole chat."""
    said = [{"role": "assistant", "content": text} for text in (answer, last)]
    whole = [*first, said[0], *then, said[1]]

    def ids(messages: list[Any], opened: bool) -> tuple[list[int], list[Any]]:
        taken, images = Images().take(messages)
        plain = [normalise(message, index) for index, message in enumerate(taken)]
        files = [open_image(images[ref]) for message in plain for ref in images_of(message)]
        text = processor.tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=opened)
        made = processor(text=[text.rstrip("\n") if not opened else text], images=files or None)
        return list(made["input_ids"][0]), files

    prompt, _ = ids(first, True)
    closed, _ = ids([*first, said[0]], False)
    asked, _ = ids([*first, said[0], *then], True)
    tokens, files = ids(whole, False)
    assert (
        tokens[: len(prompt)] == prompt and tokens[: len(closed)] == closed and tokens[: len(asked)] == asked
    )
    mask = np.zeros(len(tokens), np.int64)
    mask[len(prompt) : len(closed)] = mask[len(asked) :] = 1
    return AgentLoopOutput(
        prompt_ids=prompt,
        response_ids=tokens[len(prompt) :],
        response_mask=mask[len(prompt) :].tolist(),
        multi_modal_data={"images": files} if files else {},
        reward_score=REWARD,
        num_turns=2,
        metrics=AgentLoopMetrics(),
        extra_fields={"reward_extra_info": {}},
    )


def test_every_field_is_that_of_verls_own_agent_loop(processor: Any, rows: GroupRows) -> None:
    expected = reference(processor)
    assert len(rows.fields) == len(expected) == len(CHATS)
    names = ("prompts", "responses", "input_ids", "position_ids", "response_mask", "loss_mask", "rm_scores")
    for ours, theirs in zip(rows.fields, expected, strict=True):
        for name in names:
            torch.testing.assert_close(ours[name], theirs[name], atol=0, rtol=0, msg=name)
        assert ours[INPUTS].keys() == theirs[INPUTS].keys()
        for name, value in theirs[INPUTS].items():
            torch.testing.assert_close(ours[INPUTS][name], value, atol=0, rtol=0, msg=name)
    counts = [len(fields[INPUTS].get("image_grid_thw", ())) for fields in rows.fields]
    assert counts == [2, 3, 1, 0]
    assert {"pixel_values", "image_grid_thw", "images_seqlens"} == rows.fields[0][INPUTS].keys()
    assert all(len(fields["position_ids"]) == 4 for fields in rows.fields)


def test_only_sampled_tokens_are_trained_and_no_id_is_below_0(member: Learnable, rows: GroupRows) -> None:
    for line, fields in zip(member.lines, rows.fields, strict=True):
        first = int(line.mask.argmax())
        assert fields["response_mask"].tolist() == line.mask[first:].astype(int).tolist()
        text = line.token_ids >= 0
        assert fields["input_ids"].numpy()[text].tolist() == line.token_ids[text].tolist()
        assert (fields["input_ids"] >= 0).all()


def test_padding_beside_images_has_none_and_the_same_fields(rows: GroupRows) -> None:
    fill, tag = padding(7, rows.tags[0])
    assert fill.keys() == rows.fields[0].keys() and tag.keys() - {"is_padding"} == rows.tags[0].keys()
    assert fill[INPUTS] == {} and fill["position_ids"].shape == (4, 2)


def test_verls_forward_pass_gives_the_logprobs_of_the_backbone_local(
    member: Learnable, rows: GroupRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as qwen2_5
    from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2
    from verl.models.transformers.monkey_patch import apply_monkey_patch
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    model = model_of(FAMILY)
    local = asyncio.run(scored(model, member))
    for part_of, name in ((qwen2_5, "Qwen2_5_VL"), (qwen2, "Qwen2VL")):
        for kind in ("Model", "ForConditionalGeneration"):
            changed = getattr(part_of, name + kind)
            monkeypatch.setattr(changed, "forward", changed.forward)  # verl changes it for the whole process
    apply_monkey_patch(model, use_remove_padding=False)
    assert Built(model)._build_module() is model
    fill, _ = padding(1, rows.tags[0])
    for batch in ([*rows.fields, fill], [fill, *rows.fields[:1]], [rows.fields[3], fill]):
        columns = [{n: f[n] for n in ("input_ids", "position_ids", INPUTS)} for f in batch]
        micro_batch = list_of_dict_to_tensordict(columns)
        tu.assign_non_tensor(micro_batch, use_remove_padding=False, temperature=1.0)
        engine = object.__new__(FSDPEngineWithLMHead)
        engine.use_ulysses_sp = engine.pad_to_length = False
        inputs, more = engine.prepare_model_inputs(micro_batch)
        found = engine.prepare_model_outputs(model(**inputs, use_cache=False), more, micro_batch, None)
        model.zero_grad()
        found["log_probs"].values().sum().backward()
        tower = [p.grad for name, p in model.named_parameters() if "visual" in name]
        has_images = bool(extract_multi_modal_inputs(tu.get(micro_batch, INPUTS)))
        assert any(g is not None and g.abs().max() > 0 for g in tower) == has_images
        for fields, logprobs in zip(batch, found["log_probs"].unbind(), strict=True):
            if fields is fill:
                continue
            number = next(n for n, f in enumerate(rows.fields) if f is fields)
            mask = member.lines[number].mask
            ours = logprobs.detach().numpy()[:-1][mask[1:]]
            np.testing.assert_allclose(ours, local[number][mask], atol=1e-3)


class Model:
    """Stands for verl's engine, which builds this model."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def _build_module(self) -> Any:
        return self.model


class Built(VisionTower, Model):
    """With what AgentJet adds to it."""


async def scored(model: Any, member: Learnable) -> list[np.ndarray]:
    """The logprobs of each timeline by the backbone local's engine."""
    engine = LocalEngine(model, model.ajet_vision.processor.tokenizer)
    await engine.start()
    found = [await engine.score(line.token_ids, 1.0, images=line.images) for line in member.lines]
    await engine.close()
    return found


def test_a_placeholder_without_an_image_and_adjoining_images_are_refused(processor: Any) -> None:
    vision = vision_of(types.SimpleNamespace(processor=processor))
    assert vision is not None
    red, blue, _ = pictures()
    ids = {image.token: vision.see(image).ids.tolist() for image in (red, blue)}
    found, order = unexpanded(vision, [20, *ids[red.token], 21, *ids[blue.token], 22], [red, blue])
    assert found == [20, vision.placeholder, 21, vision.placeholder, 22] and order == [red, blue]
    with pytest.raises(AjetError, match="without an image"):
        seen(vision, [20, *ids[red.token], 21, vision.placeholder], [red])
    with pytest.raises(AjetError, match="two images without a token between them"):
        seen(vision, [20, *ids[red.token], *ids[blue.token]], [red, blue])


class Answering:
    """Servers that write down their calls, and say that they expand a prompt to these ids."""

    def __init__(self, prompt: list[int]) -> None:
        self.prompt = prompt
        self.calls: list[tuple[Any, ...]] = []

    async def generate(self, *call: Any) -> TokenOutput:
        self.calls.append(call)
        more = {"prompt_ids": [[i] for i in (*self.prompt[1:], 0)]} if "prompt_logprobs" in call[2] else {}
        first = len(self.calls) == 1
        return TokenOutput(
            token_ids=[21] if first else [22],
            log_probs=[-1.0],
            stop_reason="aborted" if first else "completed",
            extra_fields={"global_steps": 0, **more},
        )


def test_servers_get_one_placeholder_and_the_picture_and_the_first_prompt_is_compared(processor: Any) -> None:
    vision = vision_of(types.SimpleNamespace(processor=processor))
    assert vision is not None
    red, blue, _ = pictures()
    ids = [20, *vision.see(red).ids.tolist(), 21, *vision.see(blue).ids.tolist(), 22]
    request = GenerateRequest(np.array(ids, np.int32), Sampling(max_tokens=2), images=(red, blue))

    def asked(expanded: list[int]) -> list[tuple[Any, ...]]:
        servers: Any = Answering(expanded)
        engine = VerlEngine(servers, processor.tokenizer, FAMILY, 512, vision=vision)
        for _ in range(2):
            asyncio.run(engine.generate(request))
        calls: list[tuple[Any, ...]] = servers.calls
        return calls

    first, resumed, second = asked(vision.plain(ids))
    short = [20, vision.placeholder, 21, vision.placeholder, 22]
    assert [call[1] for call in (first, resumed, second)] == [short, [*short, 21], short]
    assert all([p.size for p in call[4]] == [(48, 32), (64, 64)] for call in (first, resumed, second))
    assert first[2]["prompt_logprobs"] == 0
    assert all("prompt_logprobs" not in call[2] for call in (resumed, second))
    with pytest.raises(AjetError, match="expands the prompt's images to other tokens"):
        asked(short)


def test_trees_are_refused_where_the_model_sees(processor: Any) -> None:
    engine = Trees()
    engine.model_config = types.SimpleNamespace(processor=processor)
    assert engine._find_obstacle() == "the model sees images, which verl's workers compute only as rows"


def test_a_model_whose_processor_verl_does_not_load_reads_only_text() -> None:
    assert not sees(types.SimpleNamespace(processor=None))
    assert vision_of(types.SimpleNamespace(processor=None)) is None
