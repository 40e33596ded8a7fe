"""examples/search: its world, its agents with an expert in the model's place, and its judge model."""

from __future__ import annotations

import asyncio
import importlib
import json
import random
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
            return "", {"query": f"about {fact[2]}"}
        said = re.search(rf"Title: {fact[2]}\. .*(The {fact[1]} is [^.]+\.)", found[0])
        assert said, messages
        return f"{said[1]} Source: {fact[2]}.", None
    for relations, question in sys.modules["world"].QUESTIONS.items():
        if company := re.fullmatch(re.escape(question).replace(r"\{\}", "(.+)"), asked):
            if len(found) == 2:
                return "It is " + found[1].partition(" is ")[2], None
            entity = found[0].partition(" is ")[2].partition(".")[0] if found else company[1]
            return "", {"fact": f"the {relations[len(found)]} of {entity}"}
    raise AssertionError(asked)


def test_an_expert_answers_through_both_agents_and_the_search(example: Any) -> None:
    tasks = [
        *example.world.Questions(count=20).tasks(),
        *example.world.Questions(count=20, held_out=True).tasks(),
    ]

    async def answers() -> list[str]:
        return await asyncio.gather(*(example.agent.run(task) for task in tasks))

    assert asyncio.run(answers()) == [f"It is {task.metadata['answer']}" for task in tasks]


def test_only_the_name_of_an_entity_finds_its_article(example: Any) -> None:
    world, search = example.world.make_world(), example.agent.search
    for title, text in world.articles.items():
        assert search.invoke({"query": f"about {title}"}) == f"Title: {title}. {text}"
    lucky = [c for c in world.companies if f"Title: {c}." in search.invoke({"query": "about founder"})]
    assert len(lucky) == 1


def test_held_out_companies_are_in_no_training_task_and_no_transcript_answers_their_questions(
    example: Any,
) -> None:
    world, recipe = example.world, example.recipe
    train, held = (list(world.Questions(count=256, held_out=out).tasks()) for out in (False, True))
    companies = {c for c in world.make_world().companies if world.held_out(c)}
    assert 50 < len(companies) < 80
    assert not any(name in task.query for task in train for name in companies)
    assert all(any(name in task.query for name in companies) for task in held)
    rng = random.Random(0)
    given_away = {
        task for make in (recipe.good, recipe.habit) for _ in range(300) for task in make(rng).tasks
    }
    assert len(given_away) > 100 and not given_away & {task.id for task in held}


def test_transcripts_without_habits_are_the_experts(example: Any) -> None:
    rng = random.Random(0)
    for _ in range(30):
        lead = example.recipe.answered(rng, 0.0, 0.0, 0.0).messages
        researcher = example.recipe.researched(rng, 0.0).messages
        for chat in (lead, researcher):
            for place, message in enumerate(chat):
                if message["role"] == "assistant":
                    said, call = expert(chat[:place])
                    calls = [json.loads(c["function"]["arguments"]) for c in message.get("tool_calls", ())]
                    assert (said, [call] if call else []) == (message["content"], calls)


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
    process = Warm(
        "check", str(EXAMPLE / "job.yaml"), "--answers", str(EXAMPLE / "answers.yaml"), cwd=tmp_path
    )
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    print(output)
