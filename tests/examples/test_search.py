"""examples/search: its world, its agents with an expert in the model's place, and its judge model."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tests.warm import Warm

pytest.importorskip("bm25s")
EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE = EXAMPLES / "search"
MODULES = ("agent", "recipe", "world")


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    """The modules of the example, whose agents ask the model at ``example.server``."""
    before = {name: sys.modules.pop(name, None) for name in MODULES}
    with pytest.MonkeyPatch.context() as patch, HTTPServer() as server:
        server.expect_request("/v1/chat/completions").respond_with_handler(respond)
        patch.setenv("OPENAI_BASE_URL", server.url_for("/v1"))
        patch.syspath_prepend(str(EXAMPLE))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name, module in before.items():
        sys.modules.pop(name)
        if module:
            sys.modules[name] = module


def respond(request: Request) -> Response:
    """A chat completion of the expert."""
    body = json.loads(request.get_data())
    text, call = expert(body["messages"])
    function = {"name": body["tools"][0]["function"]["name"], "arguments": json.dumps(call)}
    calls = {"tool_calls": [{"id": "call", "type": "function", "function": function}]} if call else {}
    message = {"role": "assistant", "content": text, **calls}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "expert", "choices": [choice]}
    return Response(json.dumps(answer), content_type="application/json")


def expert(messages: list[dict[str, Any]]) -> tuple[str, dict[str, str] | None]:
    """What the expert says, or the arguments of its tool call. As a lead it looks at the question and the reports, as a
    researcher at the fact and the articles."""
    asked, found = messages[1]["content"], [m["content"] for m in messages if m["role"] == "tool"]
    if fact := re.fullmatch(r"the (\w+) of (.+)", asked):
        if not found:
            return "", {"query": fact[2]}
        return re.search(rf"The {fact[1]} of {fact[2]} is [^.]+\.", found[0])[0], None  # type: ignore[index]
    for (first, second), question in sys.modules["world"].QUESTIONS.items():
        if company := re.fullmatch(re.escape(question).replace(r"\{\}", "(.+)"), asked):
            entities = [company[1], *(report.strip(".").partition(" is ")[2] for report in found)]
            if len(found) == 2:
                return f"{entities[2]}. Source: {entities[1]}.", None
            return "", {"fact": f"the {(first, second)[len(found)]} of {entities[-1]}"}
    raise AssertionError(asked)


def test_an_expert_answers_through_both_agents_and_the_search(example: Any) -> None:
    tasks = [
        *example.world.Questions(count=20).tasks(),
        *example.world.Questions(count=20, held_out=True).tasks(),
    ]

    async def answers() -> list[str]:
        return await asyncio.gather(*(example.agent.run(task) for task in tasks))

    assert asyncio.run(answers()) == [task.metadata["answer"] for task in tasks]


def test_the_name_of_an_entity_finds_its_article_and_other_words_do_not(example: Any) -> None:
    world = example.world.make_world()
    for relation, entity in world.facts:
        assert world.sentence(relation, entity) in example.agent.search.invoke({"query": entity})
    lucky = [
        world.sentence("founder", company) in example.agent.search.invoke({"query": "founder"})
        for company in world.companies
    ]
    assert sum(lucky) <= 3


def test_held_out_companies_are_in_no_training_task_and_in_no_transcript(example: Any) -> None:
    world, recipe = example.world, example.recipe
    held = {c for c in world.make_world().companies if world.held_out(c)}
    assert 60 < len(held) < 140
    train = [task.query for task in world.Questions(count=1200).tasks()]
    assert not any(name in question for question in train for name in held)
    validation = list(world.Questions(count=256, held_out=True).tasks())
    assert all(any(name in task.query for name in held) for task in validation)
    assert 0 not in recipe.WORLDS


def test_transcripts_end_as_the_reports_say(example: Any) -> None:
    import random

    rng = random.Random(0)
    for _ in range(50):
        chat = example.recipe.answered(rng, 0.0, 0.0, 0.0).messages
        calls = [json.loads(m["tool_calls"][0]["function"]["arguments"]) for m in chat if m.get("tool_calls")]
        reports = [m["content"] for m in chat if m["role"] == "tool"]
        assert [expert(chat[: 2 + 2 * n])[1] for n in range(2)] == calls
        assert all(fact["fact"][4:] in report for fact, report in zip(calls, reports, strict=True))
        assert chat[-1]["content"] == expert(chat[:-1])[0]


@pytest.fixture(scope="module")
def judge_model() -> Any:
    return load("judge_model", EXAMPLES / "rubric" / "judge_model.py")


def load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"search_{name}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("response", "met"),
    [
        ("Old Galby. Source: Ada Belsen.", (True, True, False)),
        ("It is Old Galby.", (True, False, False)),
        ("Old Galbyn. Source: Ada Belsen.", (False, True, False)),
        ("Ada Belsen. Source: Zorbex Mills.", (False, False, False)),
        ("Old Galby or New Galby or Port Galby or Upper Galby or Lower Galby or Galby.", (True, False, True)),
    ],
)
def test_the_judge_model_reads_the_rubric_literally(
    judge_model: Any, response: str, met: tuple[bool, ...]
) -> None:
    criteria = yaml.safe_load((EXAMPLE / "rubric.yaml").read_text())["criteria"]
    reference = "Old Galby. Source: Ada Belsen."
    assert met == tuple(judge_model.meets(c["text"], response, "a question", reference) for c in criteria)


@pytest.mark.e2e
def test_each_agent_has_its_own_timelines_and_adapter(tmp_path: Path) -> None:
    process = Warm("check", str(EXAMPLE / "job.yaml"), "--answers", str(EXAMPLE / "answers.yaml"), cwd=tmp_path)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    print(output)
