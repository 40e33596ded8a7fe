"""An OpenAI-compatible server that notes the calls, feedback and commits that it gets, and answers calls by a function."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from ajet_online import Runner
from tests.patience import PATIENCE

PRODUCTION, KEY = "production-key", "explorer-key-0123456789"
Message = dict[str, Any]


@dataclass
class FakeExplorer:
    """Also the production model, by another key and address."""

    url: str = ""
    answer: Callable[[list[Message]], Message] = lambda messages: say("hello")
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Keys and bodies, in the order in which they came."""
    feedback: list[dict[str, Any]] = field(default_factory=list)
    commits: list[dict[str, Any]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    """Feedback and commits together: the names of runs and of tasks."""
    status: dict[str, int] = field(default_factory=dict)
    """Paths that answer with an error."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def production(self) -> dict[str, str]:
        """The options of OpenAI clients of the user's own model."""
        return {"base_url": f"{self.url}/production/v1", "api_key": PRODUCTION}

    def ask(self, task: Any) -> str:
        """An agent that makes one call of the user's own model."""
        body = {"model": "m", "messages": [{"role": "user", "content": str(task)}], "temperature": 0}
        headers = {"Authorization": f"Bearer {PRODUCTION}"}
        reply = httpx.post(f"{self.production['base_url']}/chat/completions", json=body, headers=headers)
        return str(reply.raise_for_status().json()["choices"][0]["message"]["content"])

    def shadow_calls(self) -> list[tuple[str, dict[str, Any]]]:
        """The names of the runs, and what they have asked."""
        return [(key.removeprefix(f"{KEY}~"), body) for key, body in self.calls if key.startswith(f"{KEY}~")]

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait until a request makes the condition true."""
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE)

    def post(self, path: str, key: str, body: dict[str, Any]) -> tuple[int, Mapping[str, Any]]:
        with self.changed:
            self.changed.notify_all()
            if path in self.status:
                return self.status[path], {"error": {"message": "as the test wants it"}}
            if path == "/feedback":
                self.feedback.append(body)
                self.order.append(body["run"])
                known = body["run"] in {name for name, _ in self.shadow_calls()}
                return 200, {
                    "status": "success",
                    "rated": ["a-reply"] if known else [],
                    "unchanged": [],
                    "unknown": [],
                }
            if path == "/commit":
                self.commits.append(body)
                self.order.append(body["task_id"])
                return 200, {"status": "success", "committed": 1}
            self.calls.append((key, body))
        message = self.answer(body.get("messages", []))
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if "tool_calls" in message else "stop",
        }
        return 200, {
            "id": f"chatcmpl-{len(self.calls)}",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }


def say(text: str) -> Message:
    return {"role": "assistant", "content": text}


def call_tools(*names: str, **arguments: Any) -> Message:
    """A reply that calls these tools, each with the arguments."""
    calls = [
        {
            "id": f"call_{n}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for n, name in enumerate(names)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def as_events(answer: Mapping[str, Any]) -> bytes:
    """A reply as a stream of one chunk."""
    (choice,) = answer["choices"]
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": n, **call} for n, call in enumerate(delta["tool_calls"])]
    chunk = {
        **answer,
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": choice["finish_reason"]}],
    }
    return f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()


@contextmanager
def fake_explorer() -> Iterator[FakeExplorer]:
    fake = FakeExplorer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            key = self.headers["Authorization"].removeprefix("Bearer ")
            status, answer = fake.post(self.path, key, json.loads(body))
            is_stream = status == 200 and json.loads(body).get("stream", False)
            content = as_events(answer) if is_stream else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/event-stream" if is_stream else "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # of a client that has stopped
                super().handle_error(request, client_address)

    with Server(("127.0.0.1", 0), Handler) as server:
        fake.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()


class Service(Runner):
    """A runner that watches one agent, which is called as a program calls it."""

    def __init__(self, agent: Callable[..., Any], **options: Any) -> None:
        super().__init__(**options)
        self.agent = self.watch(agent)

    def run(self, task: Any) -> Any:
        async def awaited(answer: Any) -> Any:
            return await answer

        answer = self.agent(task)
        return asyncio.run(awaited(answer)) if inspect.isawaitable(answer) else answer

    async def arun(self, task: Any) -> Any:
        if inspect.iscoroutinefunction(self.agent):
            return await self.agent(task)
        return await asyncio.to_thread(self.agent, task)
