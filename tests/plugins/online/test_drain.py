"""After SIGTERM the explorer ends the calls in progress."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.patience import PATIENCE
from tests.plugins.online.serving import CHAT

SERVER = """
import asyncio, sys
from pathlib import Path
from ajet.capture.sampling import SamplingPolicy
from ajet.rollout.settings import RolloutSettings
from ajet.testing import ScriptedEngine
from ajet_online.keys import Keys
from ajet_online.processes import Exploring, explore
from ajet_online.settings import OnlineSettings
from tests import tokenizers

key, store, go_on = sys.argv[1:]

class Slow(ScriptedEngine):
    async def generate(self, request):
        print("generating", flush=True)
        while not Path(go_on).exists():
            await asyncio.sleep(0.01)
        return await super().generate(request)

settings = OnlineSettings(store=store, port=0, drain=60)
what = Exploring(
    "m", settings, lambda path: Slow(tokenizers.qwen3(), lambda request, text: "ok"), SamplingPolicy(False), RolloutSettings()
)
ready = lambda url: print(url, flush=True)
explore(what, Keys.single(key), host=None, port=None, most_calls=9, say=print, ready=ready)
"""


@pytest.mark.whole
def test_a_call_in_progress_is_answered_after_sigterm_and_then_the_process_ends(tmp_path: Path) -> None:
    go_on = tmp_path / "go_on"
    command = [sys.executable, "-c", SERVER, CHAT, str(tmp_path / "traces.db"), str(go_on)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout
    try:
        assert "rollback takes them for one user" in server.stdout.readline()
        url = server.stdout.readline().strip()
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}

        def ask() -> httpx.Response:
            headers = {"authorization": f"Bearer {CHAT}"}
            return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE)

        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(ask)
            assert server.stdout.readline() == "generating\n"
            server.terminate()
            while (status := httpx.get(f"{url}/health", timeout=PATIENCE).status_code) == 200:
                pass
            assert status == ask().status_code == 503
            go_on.touch()
            assert waiting.result(PATIENCE).status_code == 200
        assert server.wait(PATIENCE) == 0 and server.stdout.read() == "1 calls answered\n"
    finally:
        server.kill()
        server.communicate()
