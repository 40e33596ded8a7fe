"""A stand-in for the model that writes new tasks in the style of given ones, so that this example needs no other model.

It answers chat completions: it counts the examples in the request, and writes as many new sums and differences as it is
asked for. With a real endpoint, give its address to `flywheel.py --writer`.
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from users import question


class Writer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["content-length"])).decode()
        wanted = re.search(r"(?:Write|write) (\d+) ", asked)
        draw = random.Random(asked)
        tasks = [question(draw) for _ in range(int(wanted[1]) if wanted else 1)]
        written = json.dumps({"tasks": [{"question": q, "answer": a} for q, a in tasks]})
        message = {"role": "assistant", "content": written}
        reply = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "writer",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        }
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def writing() -> Iterator[str]:
    """A block in which the writer answers: its base URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Writer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
