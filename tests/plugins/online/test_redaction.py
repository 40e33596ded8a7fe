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
def url(tmp_path: Path) -> str:
    """SQLite is enough here."""
    return f"sqlite:///{tmp_path / 'traces.db'}"


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


def test_nothing_is_stored_if_the_redaction_fails(serve: Serve) -> None:
    def fails(message: Mapping[str, Any]) -> Mapping[str, Any]:
        raise KeyError("content")

    server = serve(redact=fails)
    with pytest.raises(openai.InternalServerError, match="the redaction failed: KeyError"):
        server.ask([user("hello")])
    assert list(server.store.all()) == []
