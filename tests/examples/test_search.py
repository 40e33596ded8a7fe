"""examples/search: its world, its agents with an expert in the model's place, and its judge model."""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

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
    message = {"role": "assistant", "content": expert(json.loads(request.get_data())["messages"])}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "expert", "choices": [choice]}
    return Response(json.dumps(answer), content_type="application/json")


def expert(messages: list[dict[str, Any]]) -> str:
    """What the expert says: as a lead, given the question and the reports; as a researcher, given the request and the
    article."""
    asked, *found = (m["content"] for m in messages if m["role"] == "user")
    if request := re.fullmatch(r"Find the (\w+) of (.+)\.", asked):
        relation, entity = request.groups()
        if not found:
            return f"Search {entity}"
        fact = re.search(rf"Title: {entity}\. .*(It has the {relation} [^.]+\.)", found[0])
        assert fact, messages
        return f"{fact[1]} Source: {entity}."
    for relations, question in sys.modules["world"].QUESTIONS.items():
        if company := re.fullmatch(re.escape(question).replace(r"\{\}", "(.+)"), asked):
            if len(found) == 2:
                return "It is " + value(found[1])
            entity = value(found[0]).partition(".")[0] if found else company[1]
            return f"Find the {relations[len(found)]} of {entity}."
    raise AssertionError(asked)


def value(report: str) -> str:
    """What a report says after its relation."""
    return report.split(maxsplit=4)[-1]


@pytest.mark.whole
def test_an_expert_answers_through_both_agents_and_the_search(example: Any) -> None:
    tasks = [
        *example.world.Questions(count=6).tasks(),
        *example.world.Questions(count=6, held_out=True).tasks(),
    ]

    async def answers() -> list[str]:
        return await asyncio.gather(*(example.agent.run(task) for task in tasks))

    assert asyncio.run(answers()) == [f"It is {task.metadata['answer']}" for task in tasks]


def test_only_the_name_of_an_entity_finds_its_article(example: Any) -> None:
    world, agent = example.world.make_world(), example.agent
    for title, text in world.articles.items():
        assert agent.best(agent.encyclopedia, f"Search {title}") == f"Title: {title}. {text}"
    other = agent.best(agent.encyclopedia, "Search founder")
    assert sum(f"Title: {company}." in other for company in world.companies) == 1
    assert agent.best(agent.encyclopedia, "").startswith("Title: ")


@pytest.mark.whole
def test_held_out_companies_are_in_no_training_task_and_no_transcript_answers_their_questions(
    example: Any,
) -> None:
    world, recipe = example.world, example.recipe
    train, held = (list(world.Questions(count=64, held_out=out).tasks()) for out in (False, True))
    companies = {c for c in world.make_world().companies if world.held_out(c)}
    assert 50 < len(companies) < 80
    assert not any(name in task.query for task in train for name in companies)
    assert all(any(name in task.query for name in companies) for task in held)
    rng = random.Random(0)
    given_away = {
        task for make in (recipe.good, recipe.habit) for _ in range(100) for task in make(rng).tasks
    }
    assert len(given_away) > 60 and not given_away & {task.id for task in held}


@pytest.mark.whole
def test_transcripts_without_habits_are_the_experts(example: Any) -> None:
    rng = random.Random(0)
    for _ in range(30):
        lead = example.recipe.answered(rng, 0.0, 0.0, 0.0).messages
        researcher = example.recipe.researched(rng, 0.0).messages
        for chat in (lead, researcher):
            for place, message in enumerate(chat):
                assert message["role"] != "assistant" or message["content"] == expert(chat[:place])


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


@pytest.mark.whole
@pytest.mark.e2e
def test_each_call_of_the_researcher_is_a_chat_of_its_own_and_every_chat_merges(
    command: Callable[..., str],
) -> None:
    output = command("check", str(EXAMPLE / "job.yaml"), "--answers", str(EXAMPLE / "answers.yaml"))
    assert "by agent: lead 28, query 12, report 12" in output
    assert "0.40 (0.2 to 1); 4 of 16 succeeded" in output
    assert "1.8 an episode, at most 3" in output
    assert "breaks: none" in output
