"""How judges ask their models: retries, deadlines, cost, keys, the cache, and what is refused."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import ValidationError

from ajet import AjetError, ConfigError
from ajet.services import llm_client as module
from ajet.services.llm_client import Endpoint, EndpointFailed, EndpointUsage, Unreadable
from ajet_judges.endpoint import Asker
from ajet_judges.questions import MalformedVerdict, Question, Verdict
from tests.patience import PATIENCE

from .judge_model import Asked, JudgeModel, serving


class Colour(Verdict):
    colour: Literal["red", "blue"]


GOOD = {"reason": "it is", "colour": "red"}


def question(text: str = "a rose", instructions: str = "Say its colour.") -> Question[Colour]:
    return Question(instructions, {"RESPONSE": text}, Colour)


def ask(
    model: JudgeModel, /, *questions: Question[Colour], **fields: Any
) -> list[tuple[Colour, EndpointUsage]]:
    async def run() -> list[tuple[Colour, EndpointUsage]]:
        async with model.endpoint(**fields).open() as asker:
            return list(await asyncio.gather(*(asker.ask(q) for q in questions or [question()])))

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.01)


def test_a_verdict_is_read_and_its_cost_counted() -> None:
    with serving(lambda asked: GOOD) as model:
        ((verdict, usage),) = ask(model, prompt_price=2.0, completion_price=10.0)
    assert verdict.colour == "red"
    assert usage == EndpointUsage(calls=1, prompt_tokens=100, completion_tokens=20, cost=0.0004)
    assert usage.metrics(2)["llm_prompt_tokens"] == 50


def test_what_is_sent_is_what_the_settings_say() -> None:
    with serving(lambda asked: GOOD) as model:
        ask(model, parameters={"temperature": 0.5, "max_tokens": 9})
    body = model.asked[0].body
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("scripted", 0.5, 9)
    assert model.asked[0].schema["additionalProperties"] is False
    assert model.asked[0].schema["required"] == ["reason", "colour"], "the reason before the verdict"
    assert "authorization" not in model.asked[0].headers


@pytest.mark.parametrize(("structured", "sent"), [("json_object", {"type": "json_object"}), ("none", None)])
def test_endpoints_that_know_no_schemas_are_told_the_form_in_words(structured: str, sent: Any) -> None:
    with serving(lambda asked: GOOD) as model:
        ask(model, structured=structured)
    assert model.asked[0].body.get("response_format") == sent
    assert '"enum": ["red", "blue"]' in model.asked[0].orders


# ------------------------------------------------------------------ what goes wrong


def test_passing_failures_are_tried_again_and_counted() -> None:
    answers: list[Any] = [(503, {}, "busy"), (429, {"retry-after": "0.05"}, "slow down"), "no JSON", GOOD]
    with serving(lambda asked: answers.pop(0)) as model:
        ((verdict, usage),) = ask(model, retries=3)
    assert verdict.colour == "red"
    assert (usage.retries, usage.calls) == (3, 2), "the unreadable answer was paid for, too"


def test_an_answer_that_was_paid_for_counts_even_if_the_next_attempt_is_refused() -> None:
    answers: list[Any] = ["no JSON", (403, {}, "no credit is left")]

    async def spent(endpoint: Endpoint) -> EndpointUsage:
        async with endpoint.calling() as client:
            with pytest.raises(EndpointFailed, match="no credit"):
                await client.chat(lambda: {"messages": []}, "key", _never_readable)
            return client.spent

    with serving(lambda asked: answers.pop(0)) as model:
        used = asyncio.run(spent(model.endpoint(retries=3, prompt_price=2.0)))
    assert used == EndpointUsage(calls=1, retries=1, prompt_tokens=100, completion_tokens=20, cost=0.0002)


def _never_readable(text: str) -> str:
    raise Unreadable(text)


def test_half_a_surrogate_pair_in_what_an_agent_says_is_sent() -> None:
    async def answered(endpoint: Endpoint) -> Any:
        async with endpoint.calling() as client:
            return await client.message({"messages": [{"role": "user", "content": "a rose \ud83c"}]})

    with serving(lambda asked: "red") as model:
        message, _ = asyncio.run(answered(model.endpoint()))
    assert message["content"] == "red" and model.asked[0].body["messages"][0]["content"] == "a rose \ud83c"


def test_an_endpoint_that_embeds_too_few_texts_is_named() -> None:
    async def embedded(endpoint: Endpoint) -> None:
        async with endpoint.calling() as client:
            await client.embed(["a", "b"], ["a", "b"])

    body = json.dumps({"data": [{"index": 0, "embedding": [1.0]}]})
    with (
        serving(lambda asked: (200, {}, body)) as model,
        pytest.raises(EndpointFailed, match="/embeddings: not a embedding"),
    ):
        asyncio.run(embedded(model.endpoint()))


def test_retry_after_is_waited_for() -> None:
    answers: list[Any] = [(429, {"retry-after": "0.4"}, ""), GOOD]
    started = time.monotonic()
    with serving(lambda asked: answers.pop(0)) as model:
        ask(model, retries=1)
    assert time.monotonic() - started > 0.4


def test_a_refusal_is_not_tried_again_and_shows_the_endpoints_words() -> None:
    with serving(lambda asked: (404, {}, "no model 'scripted'\nhere")) as model:
        with pytest.raises(EndpointFailed, match="HTTP 404: no model 'scripted' here"):
            ask(model, retries=3)
        assert len(model.asked) == 1


def test_an_unreachable_endpoint_is_named(free_port: int) -> None:
    model = JudgeModel(f"http://127.0.0.1:{free_port}/v1", lambda asked: GOOD)
    with pytest.raises(
        EndpointFailed, match=rf"127.0.0.1:{free_port}/v1/chat/completions: ConnectError.*running"
    ):
        ask(model, retries=1)


def test_an_answer_that_comes_too_late_is_named() -> None:
    with serving(lambda asked: GOOD, seconds=60.0) as model:
        started = time.monotonic()
        with pytest.raises(EndpointFailed, match=r"no answer within 0.1 s. Raise endpoint.timeout"):
            ask(model, timeout=0.1)
        assert time.monotonic() - started < 30


@pytest.mark.parametrize("body", ["<html>", "[]", '{"choices": []}', '{"choices": [{"message": null}]}'])
def test_what_is_no_completion_is_an_error_that_shows_it(body: str) -> None:
    with (
        serving(lambda asked: (200, {}, body)) as model,
        pytest.raises(EndpointFailed, match="not a chat completion"),
    ):
        ask(model)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("red", "answer: Invalid JSON"),
        ('{"colour": "red"}', "reason: Field required"),
        ('{"reason": "", "colour": "green"}', "colour: Input should be 'red' or 'blue'"),
        ('{"reason": "", "colour": "red", "score": 10}', "score: Extra inputs"),
        ('The verdict: {"reason": "", "colour": "red"}', "answer: Invalid JSON"),
        ('{"reason": "", "colour": "red"}{"reason": "", "colour": "blue"}', "answer: Invalid JSON"),
        ("", "answer: Invalid JSON"),
        ('<think>Hm.</think>{"reason": "", "colour": "red"}', "server with a reasoning parser"),
    ],
)
def test_a_malformed_verdict_is_an_error_that_shows_it(content: str, fault: str) -> None:
    with serving(lambda asked: content) as model, pytest.raises(MalformedVerdict, match=fault):
        ask(model)


def test_a_verdict_may_stand_in_a_code_block() -> None:
    with serving(lambda asked: f"```json\n{json.dumps(GOOD)}\n```") as model:
        assert ask(model)[0][0].colour == "red"


def test_an_answer_that_was_cut_is_malformed() -> None:
    cut = {"choices": [{"message": {"content": json.dumps(GOOD)}, "finish_reason": "length"}]}
    with (
        serving(lambda asked: (200, {}, json.dumps(cut))) as model,
        pytest.raises(MalformedVerdict, match="max_tokens"),
    ):
        ask(model)


# ------------------------------------------------------------------ keys


def test_the_key_is_sent_from_its_variable_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")

    def refuse(asked: Asked) -> Any:
        return (401, {}, f"wrong key {asked.headers['authorization']}")

    with serving(refuse) as model, pytest.raises(EndpointFailed) as raised:
        ask(model, api_key_env="MY_KEY")
    assert model.asked[0].headers["authorization"] == "Bearer sk-very-secret"
    assert "wrong key Bearer ***" in str(raised.value) and "secret" not in str(raised.value)
    assert "secret" not in repr(model.endpoint(api_key_env="MY_KEY"))


def test_a_key_that_is_not_set_is_an_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    with serving(lambda asked: GOOD) as model, pytest.raises(ConfigError, match="variable MY_KEY is not set"):
        ask(model, api_key_env="MY_KEY")


@pytest.mark.parametrize("url", ["http://me:password@host/v1", "host/v1", "ftp://host"])
def test_addresses_without_a_scheme_or_with_a_password_are_refused(url: str) -> None:
    with pytest.raises(ValidationError, match=r"http://|password"):
        JudgeModel(url, lambda asked: GOOD).endpoint()


# ------------------------------------------------------------------ the cache, and how many at once


def test_equal_questions_are_asked_once_even_at_once() -> None:
    with serving(lambda asked: GOOD, seconds=0.1) as model:
        answers = ask(model, *[question() for _ in range(5)])
        assert len(model.asked) == 1
    assert [u.calls for _, u in answers] == [1, 0, 0, 0, 0]
    assert sum(u.cached for _, u in answers) == 4


def test_a_cache_on_disk_serves_the_next_job(tmp_path: Path) -> None:
    with serving(lambda asked: GOOD) as model:
        for _ in range(2):
            ask(model, cache=tmp_path / "cache")
        assert len(model.asked) == 1


def test_everything_that_matters_is_in_the_key(tmp_path: Path) -> None:
    base: dict[str, Any] = {"cache": tmp_path}
    with serving(lambda asked: GOOD) as model:
        ask(model, **base)
        for more in ({"model": "other"}, {"parameters": {"temperature": 1}}, {"structured": "none"}):
            ask(model, **base, **more)
        ask(model, question("a violet"), question(instructions="Say it loudly."), **base)
        assert len(model.asked) == 6
        ask(model, **base, timeout=9.0, retries=2, concurrency=3)
        assert len(model.asked) == 6, "how it is asked does not matter"


def test_a_malformed_verdict_is_not_kept(tmp_path: Path) -> None:
    answers: list[Any] = ["nonsense", GOOD]
    with serving(lambda asked: answers.pop(0)) as model:
        with pytest.raises(MalformedVerdict):
            ask(model, cache=tmp_path)
        assert ask(model, cache=tmp_path)[0][0].colour == "red"


def test_a_cache_that_is_none_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "verdicts.sqlite").write_text("not a database, but long enough to be looked at\n" * 9)
    with serving(lambda asked: GOOD) as model, pytest.raises(AjetError, match=r"verdicts.sqlite.*Remove"):
        ask(model, cache=tmp_path)


def test_no_more_calls_at_once_than_allowed() -> None:
    meeting = threading.Barrier(3)

    def answer(asked: Asked) -> Any:
        meeting.wait(PATIENCE)
        return GOOD

    with serving(answer) as model:
        ask(model, *[question(str(i)) for i in range(12)], concurrency=3)
        assert model.most_at_once == 3


def test_an_asker_that_was_cancelled_leaves_the_question_to_others() -> None:
    cancelled = threading.Event()

    def answer(asked: Asked) -> Any:
        assert cancelled.wait(PATIENCE)
        return GOOD

    async def run(asker: Asker, model: JudgeModel) -> Any:
        first = asyncio.ensure_future(asker.ask(question()))
        second = asyncio.ensure_future(asker.ask(question()))
        while not model.asked:
            await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.wait({first})
        cancelled.set()
        return await second

    async def opened(model: JudgeModel) -> Any:
        async with model.endpoint().open() as asker:
            return await run(asker, model)

    with serving(answer) as model:
        verdict, usage = asyncio.run(opened(model))
    assert verdict.colour == "red" and usage.calls == 1
