"""A task whose best instruction is hidden, an agent, and two models behind a real HTTP server: one that follows the
instructions that it knows, one that reads feedback and proposes instructions, often badly.

The functions of the agent and the judge are named in jobs by this file's path.
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2

import ajet

PROPOSERS = ("reflection", "strong")
FIRST = "Name the animal."
WISHES: Mapping[str, tuple[str, Callable[[str], bool]]] = {
    "Write in capital letters.": ("it has small letters", lambda text: text == text.upper()),
    "End with a full stop.": ("it does not end with a full stop", lambda text: text.endswith(".")),
    "Begin with an arrow.": ("it does not begin with an arrow", lambda text: text.startswith("->")),
    "Write the name twice.": ("the name is there once", lambda text: bool(re.search(r"(\w+) \1", text))),
    "Put it in brackets.": ("it has no brackets", lambda text: "(" in text and ")" in text),
}
"""Instruction -> what the judge says of a reply that does not follow it, and how it sees that."""
ANIMALS = ("cat", "dog", "owl", "bee", "fox", "hen", "ant", "cow")
RECORDS = [{"id": animal, "query": f"Which animal is a {animal}?"} for animal in ANIMALS]


async def agent(task: ajet.Task) -> str:
    """One call, with a text that can be tuned."""
    messages = [
        {"role": "system", "content": ajet.prompt("rules", FIRST)},
        {"role": "user", "content": task.query},
    ]
    async with httpx2.AsyncClient() as client:
        url = "http://127.0.0.1:9/v1/chat/completions"
        answer = (await client.post(url, json={"model": "m", "messages": messages, "temperature": 0})).json()
    return str(answer["choices"][0]["message"]["content"])


def judge(task: ajet.Task, output: ajet.WorkflowOutput) -> ajet.JudgeOutput:
    """The share of the wishes that a reply fulfils, and what is wrong with it."""
    faults = [fault for fault, fulfils in WISHES.values() if not fulfils(str(output.response))]
    return ajet.JudgeOutput(1 - len(faults) / len(WISHES), feedback="; ".join(faults))


def follow(instructions: str, animal: str) -> str:
    """The reply of a model that follows the last instructions that contradict each other, and ignores unknown ones."""
    text = f"{animal} {animal}" if "Write the name twice." in instructions else animal
    text = f"({text})" if "Put it in brackets." in instructions else text
    text = f"-> {text}" if "Begin with an arrow." in instructions else text
    text = f"{text}." if "End with a full stop." in instructions else text
    return text.upper() if "Write in capital letters." in instructions else text


def propose(asked: str, draw: random.Random) -> str:
    """Three of ten proposals heed a fault that the feedback names; the others forget something, or are useless."""
    current = asked.split("```")[1].strip()
    useful = [wish for wish, (fault, _) in WISHES.items() if fault in asked and wish not in current]
    chance = draw.random()
    if useful and chance < 0.3:
        return f"```\n{current} {draw.choice(useful)}\n```"
    if chance < 0.6:
        sentences = current.split(". ")
        return f"```\n{'. '.join(sentences[:-1]) or FIRST}\n```"
    return f"```\n{current} Be nice {draw.randrange(1000)}.\n```"


@dataclass
class Models:
    """The running server, and what it was asked."""

    url: str
    asked: Counter[str] = field(default_factory=Counter)
    """How often each request was answered, by the model's name and the request's text."""
    fail: threading.Event = field(default_factory=threading.Event)
    """Once set, the server answers with an error that does not go away."""

    def count(self, model: str) -> int:
        return sum(n for name, n in self.asked.items() if name.startswith(f"{model} "))

    def chat_model(self, model: str, **fields: Any) -> dict[str, Any]:
        """A chat model's spec."""
        return {"type": "openai", "base_url": self.url, "model": model, "retries": 0, **fields}


@contextmanager
def serving(seed: int = 0) -> Iterator[Models]:
    """Both models on a loopback port. What is proposed depends on the seed and the request only."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            text = json.dumps(body["messages"])
            models.asked[f"{body['model']} {text}"] += 1
            if models.fail.is_set():
                self._answer(400, {"error": {"message": "no credit left"}})
                return
            if body["model"] in PROPOSERS:
                said = propose(body["messages"][-1]["content"], random.Random(f"{seed} {text}"))
            else:
                animal = body["messages"][-1]["content"].split()[-1].strip("?")
                said = follow(body["messages"][0]["content"], animal)
            choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
            self._answer(200, {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage})

        def _answer(self, status: int, answer: Mapping[str, Any]) -> None:
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        models = Models(f"http://127.0.0.1:{server.server_address[1]}/v1")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield models
        finally:
            server.shutdown()
            thread.join()
