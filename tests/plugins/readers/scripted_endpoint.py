"""A real HTTP server that speaks the OpenAI protocol; what it says is a function of what it is asked."""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[str, dict[str, Any]], str]


class Endpoint:
    """``asked`` holds every request that was or will be answered, ``refuse`` the statuses that come first."""

    def __init__(self, url: str, answer: Answer) -> None:
        self.url = url
        self.answer = answer
        self.asked: list[dict[str, Any]] = []
        self.refuse: list[int] = []
        self.answers: float = math.inf
        """So many requests are answered; further ones wait until there may be more."""
        self.lock = threading.Lock()

    def kinds(self) -> list[str]:
        """What each answered chat was about."""
        return [kind(body) for body in self.asked]


def kind(body: dict[str, Any]) -> str:
    """What a request asks for: questions, variations, quality or embeddings."""
    if "input" in body:
        return "embeddings"
    system = body["messages"][0]["content"]
    starts = {"You write exam": "questions", "You write new": "variations", "You check": "quality"}
    return next(name for start, name in starts.items() if system.startswith(start))


def write_tasks(system: str, given: dict[str, Any]) -> str:
    """Questions about each sentence of a text; variations of the first example; scores by a word."""
    if system.startswith("You check"):
        return json.dumps({"scores": [0.0 if "bad" in t["question"] else 0.9 for t in given["tasks"]]})
    if "text" in given:
        sentences = [s.strip() for s in given["text"].replace("\n", " ").split(".") if s.strip()]
        tasks = [
            {"question": f"What is said about {s.split()[0]} in {digest(s)}?", "answer": s} for s in sentences
        ]
        return f"Here they are:\n```json\n{json.dumps({'tasks': tasks})}\n```"
    seed = digest(json.dumps(given))
    tasks = [
        {"question": f"{word} {seed}?", "answer": word} for word in ("How much is", "Who wrote", "When was")
    ]
    return json.dumps({"tasks": tasks})


def digest(text: str) -> str:
    """A word of its own for each text."""
    return "".join(chr(ord("a") + int(c, 16)) for c in hashlib.sha256(text.encode()).hexdigest()[:16])


@contextmanager
def endpoint(answer: Answer = write_tasks) -> Iterator[Endpoint]:
    """A block with such a server."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # One packet an answer: the second of two would wait 40 ms for the client to confirm the first.
        wbufsize = -1

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            if not content:  # the client was killed
                return
            body = json.loads(content)
            with served.lock:
                if served.refuse:
                    return self.reply(served.refuse.pop(0), {"error": {"message": "not now"}})
                served.asked.append(body)
                number = len(served.asked)
            while number > served.answers:
                time.sleep(0.01)
            if "input" in body:
                data = [{"index": i, "embedding": letters(t)} for i, t in enumerate(body["input"])]
                return self.reply(200, {"data": data, "usage": {"prompt_tokens": len(body["input"])}})
            system, user = (message["content"] for message in body["messages"][:2])
            text = served.answer(system, json.loads(user))
            usage = {"prompt_tokens": 100, "completion_tokens": 10}
            choices = [{"index": 0, "message": {"role": "assistant", "content": text}}]
            self.reply(200, {"choices": choices, "usage": usage})

        def reply(self, status: int, body: Any) -> None:
            content = json.dumps(body).encode()
            try:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except OSError:  # the client was killed
                self.close_connection = True

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served = Endpoint(f"http://127.0.0.1:{server.server_port}/v1", answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield served
    finally:
        served.answers = math.inf
        server.shutdown()
        thread.join()
        server.server_close()


def letters(text: str) -> list[float]:
    """An embedding that does not look at the order of words: how often each letter occurs."""
    return [float(text.casefold().count(chr(c))) for c in range(ord("a"), ord("z") + 1)]
