"""Scripted judge models behind a real HTTP server, and how they read what they are sent."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ajet_judges.endpoint import JudgeEndpoint

Answer = str | Mapping[str, Any] | tuple[int, Mapping[str, str], str]
"""The message's text, an object to be its JSON, or (status, headers, body) for another response."""


@dataclass(frozen=True)
class Asked:
    """A request as a model sees it: orders outside the fence, data inside."""

    body: Mapping[str, Any]
    orders: str
    data: Mapping[str, str]
    headers: Mapping[str, str]

    @property
    def schema(self) -> Mapping[str, Any]:
        """The form of the verdict."""
        found: Mapping[str, Any] = self.body["response_format"]["json_schema"]["schema"]
        return found

    @property
    def fields(self) -> list[str]:
        """What the verdict has besides its reason."""
        return [name for name in self.schema["properties"] if name != "reason"]


@dataclass
class JudgeModel:
    """A running model."""

    url: str
    answer: Callable[[Asked], Answer]
    seconds: float = 0.0
    asked: list[Asked] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    closing: threading.Event = field(default_factory=threading.Event)

    def endpoint(self, **fields: Any) -> JudgeEndpoint:
        """Settings that lead here."""
        return JudgeEndpoint(**{"base_url": self.url, "model": "scripted", "retries": 0, **fields})


@contextmanager
def serving(answer: Callable[[Asked], Answer], seconds: float = 0.0) -> Iterator[JudgeModel]:
    """A model that answers chat completions on a loopback port."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # One packet an answer: the second of two would wait 40 ms for the client to confirm the first.
        wbufsize = -1

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            orders, data = as_read(body.get("messages", []))
            asked = Asked(body, orders, data, {k.lower(): v for k, v in self.headers.items()})
            with lock:
                model.asked.append(asked)
                model.at_once += 1
                model.most_at_once = max(model.most_at_once, model.at_once)
            model.closing.wait(model.seconds)
            said = model.answer(asked)
            with lock:
                model.at_once -= 1
            status, headers, text = said if isinstance(said, tuple) else (200, {}, _completion(said))
            try:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())
            except OSError:
                pass  # the client did not wait

        def log_message(self, *arguments: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    model = JudgeModel(f"http://127.0.0.1:{server.server_port}/v1", answer, seconds)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield model
    finally:
        model.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _completion(said: str | Mapping[str, Any]) -> str:
    text = said if isinstance(said, str) else json.dumps(said)
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 100, "completion_tokens": 20}
    return json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})


def _shown(text: str) -> tuple[str, str]:
    """A text without what people do not see, its wide brackets made narrow; and what was hidden there."""
    hidden = "".join(chr(ord(c) - 0xE0000) for c in re.findall("[\U000e0020-\U000e007e]", text))
    hidden += "".join(chr(ord(c) - 0xE0100 + 16) for c in re.findall("[\U000e0100-\U000e01ef]", text))
    bits = "".join(str(int(c == "\u200d")) for c in re.findall("[\u200c\u200d]", text))
    hidden += "".join(chr(int(bits[i : i + 8], 2)) for i in range(0, len(bits) - 7, 8))
    text = re.sub("[\u200b-\u200d\u2060\ufeff\U000e0000-\U000e01ef]", "", text)
    return text.translate(str.maketrans("＜＞［］｜", "<>[]|")), hidden


def as_read(messages: list[Mapping[str, str]]) -> tuple[str, dict[str, str]]:
    """What a gullible model makes of a chat: everything outside the fence is an order to it.

    As servers do, the chat is first written with the control tokens of chat formats, and whatever looks
    like one then ends a message, wherever it came from. It obeys what people do not see as well, and its
    tokenizer drops characters without width.
    """
    seen = [_shown(m["content"]) for m in messages]
    orders = [hidden for _, hidden in seen]
    messages = [{**m, "content": text} for m, (text, _) in zip(messages, seen, strict=True)]
    written = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    parts = re.split(
        r"<\|im_start\|>(\w+)\n|<\|im_end\|>|</?s>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>|"
        r"<\|eot_id\|>|<\|\w+\|>|\[\|\w+\|\]|\[e~\[|\]~!?b[\[\]]|\[gMASK\]|<sop>|\[(?i:unused)\w*\d\]",
        written,
    )
    texts = [text for text in parts if text]
    mark = re.search(r'"BEGIN NAME ([0-9a-f]+)"', written)
    data = {}
    for text in texts:
        name: str | None = None
        lines: list[str] = []
        for line in re.split(r"[\n\r\x0b\x0c\x85\u2028\u2029]", text):
            if mark and name is None and (begin := re.fullmatch(rf"BEGIN (\w+) {mark[1]}", line)):
                name, lines = begin[1], []
            elif mark and name is not None and line == f"END {name} {mark[1]}":
                data[name] = "\n".join(lines)
                name = None
            else:
                (lines if name else orders).append(line)
        orders += lines if name else []  # a fence that does not close protects nothing
    return "\n".join(orders), data
