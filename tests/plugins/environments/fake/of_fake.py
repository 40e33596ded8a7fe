"""A library of environments for tests: its episodes ask the model once, and may do what those of real ones do wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import urllib.request
from typing import Any


class Library:
    """``what`` its episodes do besides; an address is that of a model that they ask."""

    def __init__(self, what: str = "", unknown: str = "") -> None:
        if unknown:
            raise ValueError(f"unknown: {unknown}")
        self._what = what

    def tasks(self, count: int) -> list[dict[str, Any]]:
        return [{"id": str(n), "query": f"What is {n} + {n}?", "metadata": {}} for n in range(min(count, 4))]

    async def run(self, index: int, model: dict[str, str], judge: dict[str, str] | None) -> dict[str, Any]:
        """The reward is 1 for the right sum."""
        opened = socket.create_server(("127.0.0.1", 0))
        # In a session of its own, as programs of sandboxes are.
        child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        try:
            said = await asyncio.to_thread(
                ask, model["base_url"], model["api_key"], f"What is {index} + {index}?"
            )
            if self._what == "dies":
                os._exit(3)
            if self._what == "hangs":
                await asyncio.sleep(3600)
            if self._what == "holds on":
                while True:
                    try:
                        await asyncio.sleep(3600)
                    except asyncio.CancelledError:
                        child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
            if self._what.startswith("http"):
                with contextlib.suppress(Exception):  # as libraries do, which would make a reward of 0 of it
                    await asyncio.to_thread(ask, self._what, "key", "Is it right?")
            if self._what == "asks a judge":
                said = ask(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], f"Is {said} right?")
            if self._what == "is not valid":
                return {"ok": False, "error": "the sandbox\nhas failed"}
            right = float(str(2 * index) in said)
            return {"ok": True, "reward": right, "metrics": {"right": right}, "response": said, "error": ""}
        finally:
            opened.close()
            child.kill()
            child.wait()


def ask(base_url: str, key: str, question: str) -> str:
    body = {"model": "policy", "messages": [{"role": "user", "content": question}]}
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{base_url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
