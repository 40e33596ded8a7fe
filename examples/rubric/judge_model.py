"""A judge model for experiments: an OpenAI-compatible server that applies a rubric literally.

    python judge_model.py --port 8765

It understands criteria of these forms: `contains "…"`, `begins with "…"`, `ends with "…"`, `repeats a thing of the task`
(the noun in the letter), `has more than N words`, and, if the reference is `ANSWER. Source: SOURCE.`, `gives the answer …`
and `names the source …`. A real job names a real model in `judge.endpoint` instead.
"""

from __future__ import annotations

import argparse
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CRITERION = re.compile(r"^- (\w+): (.+)$", re.MULTILINE)
FENCED = re.compile(r"^BEGIN (\w+) (\w+)\n(.*?)\nEND \1 \2$", re.MULTILINE | re.DOTALL)


def verdict(system: str, user: str) -> dict[str, Any]:
    """Which criteria of the instructions the fenced response meets."""
    data = {name: text for name, _, text in FENCED.findall(user)}
    met = {
        name: meets(text, data["RESPONSE"], data["TASK"], data.get("REFERENCE", ""))
        for name, text in CRITERION.findall(system)
    }
    return {"reason": "read literally", **met}


def meets(criterion: str, response: str, task: str, reference: str = "") -> bool:
    """Whether a response meets a criterion, read literally."""
    words = re.search(r'"(.+)"', criterion)
    if words and criterion.startswith("begins with"):
        return response.startswith(words[1])
    if words and criterion.startswith("ends with"):
        return response.endswith(words[1])
    if words and criterion.startswith("contains"):
        return words[1] in response
    if limit := re.fullmatch(r"has more than (\d+) words", criterion):
        return len(response.split()) > int(limit[1])
    answer, _, source = reference.partition(". ")
    if criterion.startswith("gives the answer"):
        return has(response, answer)
    if criterion.startswith("names the source"):
        return has(response, source.rstrip("."))
    thing = re.search(r"My (\w+) is", task)
    return bool(thing) and has(response, thing[1])


def has(text: str, phrase: str) -> bool:
    """Whether a text contains a phrase as whole words."""
    return bool(phrase) and re.search(rf"\b{re.escape(phrase)}\b", text) is not None


class Handler(BaseHTTPRequestHandler):
    """Chat completions, and a health check."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """The health check."""
        self.reply({"status": "ok"})

    def do_POST(self) -> None:
        """Answer a chat completion with a verdict."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        texts = {message["role"]: message["content"] for message in body["messages"]}
        content = json.dumps(verdict(texts["system"], texts["user"]))
        message = {"role": "assistant", "content": content}
        usage = {"prompt_tokens": sum(map(len, texts.values())) // 4, "completion_tokens": len(content) // 4}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self.reply({"object": "chat.completion", "model": body["model"], "choices": [choice], "usage": usage})

    def reply(self, answer: dict[str, Any]) -> None:
        """Send an object as JSON."""
        sent = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=8765)
    with ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
