"""Redaction: what must not be stored is not in the store, neither as text nor as tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.plugins.online.serving import Server, said, user

Serve = Callable[..., Server]


@pytest.fixture
def url(file: Path) -> str:
    """SQLite is enough here."""
    return f"sqlite:///{file}"


def no_numbers(message: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**message, "content": re.sub(r"\d{4,}", "[number]", message["content"])}


def test_a_changed_message_is_stored_without_its_tokens(serve: Serve) -> None:
    server = serve(redact=no_numbers)
    server.ask([user("hello")])
    server.ask([user("my card is 123456")])
    plain, secret = server.store.all()
    assert plain.trained and len(plain.tokens)
    assert list(secret.messages) == [user("my card is [number]")]
    assert not secret.trained and not len(secret.prompt) and not len(secret.tokens) and not secret.chat
    assert "ajet_online_redacted_total 1" in server.get("/metrics").text


def test_later_turns_are_stored_without_tokens_too_and_answered_all_the_same(serve: Serve) -> None:
    server = serve(redact=no_numbers)
    first = server.ask([user("my card is 123456")])
    messages = [user("my card is 123456"), said(first), user("and now?")]
    server.ask(messages)
    assert "123456" in server.engine.tokenizer.decode(server.engine.requests[-1].prompt_ids)
    one, two = server.store.all()
    assert two.parent == one.id and not len(two.tokens)
    server = serve(redact=no_numbers)
    server.ask(messages)
    *_, after = server.store.all()
    assert after.parent is None and not len(after.tokens), "rendered anew from what the client sent"


@pytest.mark.whole
def test_nothing_is_stored_if_the_redaction_fails(serve: Serve) -> None:
    def fails(message: Mapping[str, Any]) -> Mapping[str, Any]:
        raise KeyError("content")

    server = serve(redact=fails)
    with pytest.raises(openai.InternalServerError, match="the redaction failed: KeyError"):
        server.ask([user("hello")])
    assert list(server.store.all()) == []


def test_a_function_may_change_the_message_itself(serve: Serve) -> None:
    def in_place(message: dict[str, Any]) -> dict[str, Any]:
        message["content"] = message["content"].replace("123456", "[number]")
        return message

    server = serve(redact=in_place)
    first = server.ask([user("my card is 123456")])
    server.ask([user("my card is 123456"), said(first), user("and now?")])
    assert "123456" in server.engine.tokenizer.decode(server.engine.requests[-1].prompt_ids)
    found = list(server.store.all())
    assert [len(trace.tokens) for trace in found] == [0, 0] and found[1].parent == found[0].id
    assert "123456" not in str(found)


def test_a_prompt_of_plain_text_is_redacted_too(serve: Serve) -> None:
    server = serve(redact=no_numbers)
    for prompt in ("my card is 123456", "hello"):
        server.client().completions.create(model="m", prompt=prompt, max_tokens=8)
    secret, plain = server.store.all()
    assert not len(secret.prompt) and not secret.trained
    assert server.engine.tokenizer.decode(plain.prompt) == "hello" and plain.trained


def test_so_are_the_texts_of_feedback(serve: Serve) -> None:
    server = serve(redact=no_numbers)
    name = server.ask([user("hello")]).id
    texts = {"comment": "call me at 55512345", "correction": "it is 98765"}
    assert server.post("/feedback", {"msg_ids": [name], "task_id": "t", **texts}).status_code == 200
    (found,) = server.store.all()
    assert (found.comment, found.correction) == ("call me at [number]", "it is [number]")


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (lambda message: None, "it returned NoneType, not a message"),
        (lambda message: {**message, "role": "tool"}, "it changed the role"),
        (lambda message: {**message, "content": {"a set"}}, "TypeError"),
    ],
)
def test_what_cannot_be_stored_is_refused(serve: Serve, result: Any, problem: str) -> None:
    server = serve(redact=result)
    for _ in range(2):
        answer = server.post("/v1/chat/completions", {"model": "m", "messages": [user("hello")]})
        assert answer.status_code == 500 and problem in answer.json()["error"]["message"]
    assert list(server.store.all()) == []


def test_no_choice_of_a_reply_is_stored_if_one_cannot_be_redacted(serve: Serve) -> None:
    answers: list[str] = []

    def fails_on_the_second(message: Mapping[str, Any]) -> Mapping[str, Any]:
        if message["role"] == "assistant":
            answers.append(message["content"])
            if len(answers) == 2:
                raise ValueError("my card is 123456")
        return message

    server = serve(redact=fails_on_the_second)
    with pytest.raises(openai.InternalServerError) as refused:
        server.ask([user("hello")], n=2)
    assert "123456" not in str(refused.value), "what the function says may quote the message"
    assert list(server.store.all()) == []
    reply = server.ask([user("hello")])
    server.ask([user("hello"), said(reply), user("and?")])
    names = [trace.id for trace in server.store.all()]
    assert len(names) == 2
    assert [trace.parent for trace in server.store.all()] in ([None, None], [None, names[0]])


def test_a_redacted_reply_is_not_continued_by_its_id_after_a_restart(serve: Serve) -> None:
    server = serve(redact=no_numbers)

    def ask(text: str, after: str | None) -> Any:
        return server.client().responses.create(
            model="m", input=text, previous_response_id=after, max_output_tokens=8
        )

    first = ask("my card is 123456", None)
    second = ask("and now?", first.id)
    assert "123456" in server.engine.tokenizer.decode(server.engine.requests[-1].prompt_ids)
    server = serve(redact=no_numbers)
    with pytest.raises(openai.BadRequestError, match=r"is redacted or not a chat.*send the whole chat"):
        ask("and then?", second.id)
