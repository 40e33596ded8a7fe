"""`ajet eval --models`: several models on the same tasks, behind a real HTTP server and from a script."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.program import Outcome

from .conftest import Folder

pytestmark = pytest.mark.whole

ADDEND = 10
TASKS = [{"id": f"t{i}", "query": f"{i}+{ADDEND}", "answer": str(i + ADDEND)} for i in range(12)]
SKILL = {"good": 1.0, "same": 1.0, "bad": 0.2}
"""Share of the tasks that each model answers rightly, by name."""


class Models:
    """The server of all models, and how often each was asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: Counter[str] = Counter()
        self.broken: set[str] = set()


@pytest.fixture
def models() -> Iterator[Models]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            name, query = body["model"], body["messages"][-1]["content"]
            found.asked[name] += 1
            right = random.Random(f"{query}").random() < SKILL[name]
            said = str(sum(map(int, query.split("+"))) if right else 0)
            choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 300, "completion_tokens": 100, "total_tokens": 400}
            if name in found.broken:
                self._answer(400, {"error": {"message": "no credit left"}})
            else:
                self._answer(200, {"choices": [choice], "usage": usage})

        def _answer(self, status: int, answer: dict[str, Any]) -> None:
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        found = Models(f"http://127.0.0.1:{server.server_address[1]}/v1")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


@pytest.fixture
def job(folder: Folder, models: Models) -> Folder:
    """The job, with a chat model for each skill: `good` costs 1 for each million prompt tokens, 7 for answers."""
    prices = {"prompt_price": 1e6, "completion_price": 7e6}
    declared = {
        name: {"type": "openai", "base_url": models.url, "model": name, "retries": 0}
        | (prices if name == "good" else {})
        for name in SKILL
    }
    folder.write("tasks.jsonl", "\n".join(json.dumps(task) for task in TASKS))
    text = (folder.path / "job.yaml").read_text()
    folder.write("job.yaml", f"{text}\nmodels: {json.dumps(declared)}\nrollout: {{retries: 0}}\n")
    return folder


def figures(outcome: Outcome) -> Any:
    return json.loads(outcome.out.splitlines()[-1])


def test_the_better_model_is_found_with_its_figures(job: Folder) -> None:
    outcome = job.ajet("eval", "job.yaml", "--models", "bad,good", "--json")
    assert outcome.code == 0, outcome.err
    found = figures(outcome)
    assert (found["best"], found["is_significant"]) == ("good", True)
    good, bad = found["models"]
    assert good["reward"] == {"mean": 1.0, "standard_error": 0.0} and bad["reward"]["mean"] < 0.5
    assert good["tokens"]["mean"] == 400 and good["cost"]["mean"] == 300 + 700 and bad["cost"] is None
    assert good["seconds"]["mean"] > 0 and good["episodes"] == 12
    assert found["differences"][0]["p_value"] < 0.05
    lines = [line.split() for line in outcome.out.splitlines()]
    assert lines[0][:2] == ["model", "reward"] and lines[1][:4] == ["good", "1", "±", "0"]
    assert "best: good" in outcome.out


def test_equal_models_have_no_difference_and_exit_code_3(job: Folder) -> None:
    outcome = job.ajet("eval", "job.yaml", "--models", "good,same")
    assert outcome.code == 3, outcome.err
    assert "no difference between good, which has the highest reward, and same" in outcome.out


def test_every_model_gets_the_same_episodes_and_seeds(job: Folder, models: Models) -> None:
    outcome = job.ajet(
        "eval", "job.yaml", "--models", "good,same", "--repeats", "2", "--episodes", "3", "--json"
    )
    assert models.asked == {"good": 6, "same": 6}
    run_dir = Path(figures(outcome)["run_dir"])
    episodes = [
        [(line["id"], line["task"], line["member"]) for line in _journal(run_dir / name)]
        for name in ("1-good", "2-same")
    ]
    assert sorted(episodes[0]) == sorted(episodes[1])
    assert ("validation@0/t0/1", "t0", 1) in episodes[0] and len(episodes[0]) == 6


def _journal(folder: Path) -> list[Any]:
    lines = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    return [line for line in lines if line["type"] == "episode"]


def test_a_failing_model_leaves_the_others_and_only_it_runs_again(job: Folder, models: Models) -> None:
    models.broken.add("bad")
    outcome = job.ajet("eval", "job.yaml", "--models", "good,bad,same", "--json")
    assert outcome.code == 1
    assert "bad failed: all 12 episodes failed" in outcome.out and "no credit left" in outcome.out
    found = figures(outcome)
    assert [model["name"] for model in found["models"]] == ["good", "same", "bad"]
    assert "no difference between good" in outcome.out

    models.broken.clear()
    again = job.ajet("eval", "--resume", found["run_dir"], "--json")
    assert again.code == 3, again.err
    assert [model["error"] for model in figures(again)["models"]] == [None, None, None]
    assert models.asked == {"good": 12, "same": 12, "bad": 24}


def test_a_model_that_does_not_load_is_one_line(job: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    outcome = job.ajet("eval", "job.yaml", "--models", "acme/gone,good,bad")
    assert outcome.code == 1 and "best: good" in outcome.out
    assert "acme/gone failed: model acme/gone: it is not in the Hugging Face cache" in outcome.out


def test_a_resumed_comparison_refuses_another_judge(job: Folder) -> None:
    run_dir = figures(job.ajet("eval", "job.yaml", "--models", "good,bad", "--json"))["run_dir"]
    outcome = job.ajet("eval", "--resume", run_dir, "--judge", "contains")
    assert outcome.code == 2 and "judge: differs from the job in" in outcome.err
    outcome = job.ajet("eval", "--resume", run_dir, "--models", "good,same")
    assert outcome.code == 2 and "compares good, bad; name the same models, or none" in outcome.err


def test_a_resumed_comparison_refuses_other_tasks_and_another_model_behind_a_name(job: Folder) -> None:
    run_dir = figures(job.ajet("eval", "job.yaml", "--models", "good,bad", "--json"))["run_dir"]
    models = Path(run_dir) / "models.json"
    began = models.read_text()
    models.write_text(began.replace('"model": "good"', '"model": "other"'))
    outcome = job.ajet("eval", "--resume", run_dir, "--models", "good,bad")
    assert outcome.code == 2 and "the model good: differs from the job in" in outcome.err
    models.write_text(began)
    tasks = job.path / "tasks.jsonl"
    tasks.write_text(tasks.read_text().replace(TASKS[3]["answer"], "0"))
    outcome = job.ajet("eval", "--resume", run_dir)
    assert outcome.code == 2 and "the content of the tasks: differs from the job in" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["job.yaml", "--models", "good"], "--models: name at least two models"),
        (["job.yaml", "--models", "good,good"], "good is named twice"),
        (["job.yaml", "--models", "good,goof"], "did you mean 'good'"),
        (["job.yaml", "--models", "good,./gone"], "--models ./gone: no such folder"),
        (
            ["job.yaml", "--models", "good,bad", "--model", "x"],
            "--model and --models: one names one model",
        ),
        (["job.yaml", "--resume", "runs/x"], "--resume: uses the job in runs/x"),
        (["--resume", "."], "holds no models.json"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(
    job: Folder, models: Models, arguments: list[str], said: str
) -> None:
    outcome = job.ajet("eval", *arguments)
    assert outcome.code == 2 and said in outcome.err and not models.asked
