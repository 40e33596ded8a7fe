"""An explorer over a scripted engine in this process, for tests over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
import openai

from ajet.capture.answers import Answerer
from ajet.capture.portal import Portal
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.targets import Target
from ajet.chat.renderer import Chat
from ajet.testing import ScriptedEngine
from ajet.types import GenerateRequest
from ajet_online.explorer import exploring
from ajet_online.keys import Key, Keys
from ajet_online.store import TraceStore
from tests import tokenizers
from tests.patience import PATIENCE

CHAT, OTHER = "chat-key-0123456789", "other-key-0123456789"
RATER, ADMIN = "rater-key-0123456789", "admin-key-0123456789"
KEYS = Keys(
    [
        Key("app", CHAT, ("chat", "feedback")),
        Key("other", OTHER, ("chat",)),
        Key("rater", RATER, ("feedback:all",)),
        Key("admin", ADMIN, ("admin",)),
    ]
)


@dataclass
class Server:
    url: str
    store: TraceStore
    engine: ScriptedEngine

    def client(self, key: str = CHAT) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def ask(self, messages: list[Any], key: str = CHAT, **options: Any) -> Any:
        client = self.client(key)
        return client.chat.completions.create(model="m", messages=messages, max_tokens=8, **options)

    def post(self, path: str, body: Any, key: str = CHAT) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx.post(self.url + path, content=content, headers={"Authorization": f"Bearer {key}"})

    def get(self, path: str, key: str = CHAT) -> httpx.Response:
        return httpx.get(self.url + path, headers={"Authorization": f"Bearer {key}"})


@contextmanager
def starting(store: TraceStore) -> Iterator[Callable[..., Server]]:
    """A function that starts an explorer on the store; each call starts it anew, as after a crash."""
    ends: list[Any] = []

    def start(keys: Keys = KEYS, **options: Any) -> Server:
        while ends:
            ends.pop()()
        engine = ScriptedEngine(tokenizers.qwen3(), answer)
        portal = Portal()
        portal.submit(engine.start()).result(PATIENCE)
        answerer = Answerer(engine, _chat(), (Target("policy"),), SamplingPolicy(False))
        opened = exploring(
            portal, answerer, store, keys, models=["m"], host="127.0.0.1", port=0, most_calls=64, **options
        )
        address, _ = opened.__enter__()

        def end() -> None:
            opened.__exit__(None, None, None)
            portal.close()

        ends.append(end)
        return Server(address, store, engine)

    try:
        yield start
    finally:
        while ends:
            ends.pop()()


@cache
def _chat() -> Chat:
    engine = ScriptedEngine(tokenizers.qwen3(), answer)
    return Chat(engine.tokenizer, engine.model_type)


def answer(request: GenerateRequest, text: str) -> str:
    return f"answer {text.count('user')}"


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(reply: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": reply.choices[0].message.content}
