"""`ajet serve --engine vllm`, as a user runs it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from importlib.util import find_spec

import httpx
import pytest

from tests.patience import PATIENCE

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make test-vllm")

SECONDS = 4 * PATIENCE
PATIENT = f"""
from ajet.capture.gateway import stopping
from ajet.cli import main

stopping.SECONDS_TO_END = {SECONDS}
main()
"""
"""`ajet`, with all the time that a busy machine takes to end vLLM."""


def test_serve_answers_from_vllm(checkpoints):
    options = "{enforce_eager: true}"
    command = [sys.executable, "-c", PATIENT, "serve", str(checkpoints[0]), "--engine", "vllm", "--port", "0"]
    command += ["--key", "secret", "--set", "dtype=float32", "--set", "kv_cache_gib=0.1"]
    command += ["--set", f"options={options}"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    deadline = threading.Timer(SECONDS, os.killpg, (server.pid, signal.SIGKILL))
    deadline.start()
    try:
        line = next(line for line in server.stdout if line.startswith("serving "))
        url = re.search(r"http://\S+/v1", line)[0]
        with httpx.Client(headers={"Authorization": "Bearer secret"}, timeout=SECONDS) as client:
            body = {
                "model": "m",
                "messages": [{"role": "user", "content": "1+2?"}],
                "max_tokens": 6,
                "temperature": 0.7,
                "logprobs": True,
            }
            answer = client.post(f"{url}/chat/completions", json=body).json()
            streamed = client.post(f"{url}/chat/completions", json=body | {"stream": True}).text
        choice = answer["choices"][0]
        sampled, tokens = answer["usage"]["completion_tokens"], choice["logprobs"]["content"]
        ended = choice["finish_reason"] == "stop"  # by a token that is no part of the answer
        assert 0 < sampled == len(tokens) + ended <= 6
        assert choice["finish_reason"] == "stop" or (choice["finish_reason"] == "length" and sampled == 6)
        assert all(token["logprob"] < 0 for token in tokens)
        assert streamed.rstrip().endswith("data: [DONE]")
        os.killpg(server.pid, signal.SIGINT)  # as Ctrl-C does: vLLM's processes get it, too
        assert "2 calls answered" in server.stdout.read()
        assert server.wait(SECONDS) == 0
    finally:
        deadline.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        server.stdout.close()
