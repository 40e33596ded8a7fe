"""A short real training run with two agents, and a studio on a socket that reads it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import openai

import ajet
from ajet.capture.gateway.listening import listen
from ajet.runs.run_dir import RUNNING
from ajet_studio.library import Library
from ajet_studio.serving import StudioServer
from tests.patience import PATIENCE
from tests.tiny import save_tiny_model

TOKEN = "a-token-of-the-tests"
RECORDS = [
    {"id": "sum", "query": "1 + 1?", "answer": "2"},
    {"id": "difference", "query": "5 - 2?", "answer": "3"},
    {"id": "product", "query": "2 * 3?", "answer": "6"},
    {"id": "quotient", "query": "8 / 2?", "answer": "4"},
]


async def agent(task: ajet.Task) -> str:
    """A solver that is asked twice, and a critic with another conversation."""
    client = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)

    async def ask(messages: list[Any]) -> str:
        made = await client.chat.completions.create(model="m", messages=messages, max_tokens=6)
        return made.choices[0].message.content or ""

    messages: list[Any] = [
        {"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": task.query},
    ]
    with ajet.label(agent="solver"):
        messages.append({"role": "assistant", "content": await ask(messages)})
        messages.append({"role": "user", "content": "Are you sure?"})
        answer = await ask(messages)
    with ajet.label(agent="critic"):
        await ask([{"role": "user", "content": f"Is it good? {task.query}"}])
    return answer


def judge(task: ajet.Task, output: ajet.WorkflowOutput, episode: ajet.EpisodeView) -> ajet.JudgeOutput:
    """A verdict that differs within each group, with a reason."""
    return ajet.JudgeOutput(reward=episode.member / 2, is_success=episode.member > 1, metrics={"words": 1.0})


def train(folder: Path, tokenizer: Any, steps: int = 2) -> Path:
    """Train a tiny model for a few steps; returns the run folder."""
    run = ajet.run(
        workflow=agent,
        tasks=RECORDS[:3],
        validation=RECORDS[3:],
        judge=judge,
        model=str(save_tiny_model(folder / "model", tokenizer)),
        backbone="local",
        steps=steps,
        run_dir=str(folder / "runs"),
        progress=False,
        set={
            "train.batch_size": 2,
            "rollout.group_size": 3,
            "eval.every": 1,
            "run.deterministic": True,
            "rollout.sampling.max_tokens": 6,
            "backbone.local.threads": 1,
        },
    )
    return Path(run.dir)


@dataclass
class Studio:
    """A studio that answers on a socket."""

    url: str
    client: httpx.Client

    def get(self, path: str, **query: Any) -> Any:
        """The JSON of an answer with status 200."""
        found = self.client.get(f"/api/{path}", params=query)
        assert found.status_code == 200, found.text
        return found.json()

    def refused(self, path: str, **query: Any) -> tuple[int, str]:
        """The status and the one line of an answer that says why not."""
        found = self.client.get(f"/api/{path}", params=query)
        text = found.json()["error"]
        assert "\n" not in text and "Traceback" not in text
        return found.status_code, text

    def post(self, **body: Any) -> httpx.Response:
        """Send feedback, as the page does; the text may contain lone surrogates."""
        return self.client.post("/api/feedback", content=json.dumps(body), headers={"origin": self.url})


def serving(folder: Path) -> AbstractContextManager[Studio]:
    """A block in which a thread of this process serves a folder."""
    return serving_library(Library(folder))


@contextmanager
def serving_library(library: Library | Shelf) -> Iterator[Studio]:
    """The same for a library, which is closed at the end."""
    listening: socket.socket = listen("127.0.0.1", 0, "the studio")
    server = StudioServer(cast(Library, library), listening, TOKEN, frozenset())
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        with httpx.Client(
            base_url=url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE
        ) as client:
            yield Studio(url, client)
    finally:
        server.stop()
        thread.join()
        library.close()
        listening.close()


class Shelf:
    """Stands for one library after the other, so that many tests have one server, and a page that is loaded once."""

    now: Library

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)

    def close(self) -> None:
        """Each library is closed by who has opened it."""


def line(id: str, **values: Any) -> str:
    """A line of a journal, of an episode without tokens unless ``values`` say otherwise."""
    message = [[-1, {"role": "user", "content": "hello"}], [0, {"role": "assistant", "content": "world"}]]
    call = {"number": 0, "agent": "agent", "target": "policy", "key": "k", "answer": 1}
    found: Mapping[str, Any] = {
        "type": "episode", "id": id, "phase": "train", "task": id.split("/")[1] if "/" in id else id, "member": 0, "attempt": 0,
        "failure": None, "error": "", "reward": 1.0, "rewards": {}, "is_success": None, "metrics": {}, "counters": {},
        "seconds": 0.5, "response": "world", "breaks": [], "trees": {}, "chats": {"k": message}, "calls": [call], "step": 1,
        **values,
    }  # fmt: skip
    return json.dumps(found, ensure_ascii=False) + "\n"


def goes_on(run_dir: Path, pid: int) -> None:
    """Name the process that runs in a folder."""
    (run_dir / RUNNING).write_text(json.dumps({"pid": pid, "host": socket.gethostname()}))


def append(run_dir: Path, *lines: str) -> None:
    """Append text to a journal, as a run does; lone surrogates are written as such."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / "episodes.jsonl").open("ab") as file:
        file.writelines(line.encode("utf-8", "surrogatepass") for line in lines)
