"""TextArena's games in verifiers' own taskset, which nobody here wrote, as environments; its harness is a program of uv."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.environments.libraries import (
    PYTHON,
    Job,
    assert_own_model_is_refused,
    assert_trained,
    cancel_episodes,
    needs_library,
    processes_with,
    run,
    scripted,
)

pytestmark = [needs_library, pytest.mark.models("starter")]

WORDS = """
from importlib.resources import files
lines = files("textarena.envs.utils.data").joinpath("en_US.dic").read_text(errors="replace").splitlines()
print(*sorted({word for line in lines[1:] if (word := line.partition("/")[0].strip()).isalpha()}), sep="\\n")
"""
"""TextArena takes words from a corpus that NLTK would download. These are its own dictionary's."""
GAMES = {
    "Hangman-v0": [{"turn": 0, "say": "[e]"}, {"turn": 1, "say": "[a]"}, {"say": "I give up."}],
    "WordSearch-v0": [{"turn": 0, "say": "[1 2 3 4]"}, {"say": "I give up."}],
}


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of NLTK's data."""
    folder = tmp_path_factory.mktemp("nltk")
    corpus = folder / "corpora" / "words"
    corpus.mkdir(parents=True)
    said = subprocess.run([PYTHON, "-c", WORDS], check=True, capture_output=True, text=True).stdout
    (corpus / "en").write_text(said)
    (corpus / "en-basic").write_text(said[:8000].rpartition("\n")[0])
    return str(folder)


def options(game: str) -> dict[str, Any]:
    return {"taskset": {"id": "textarena", "game": game}, "player": {"harness": {"id": "null"}}}


@pytest.mark.parametrize("game", GAMES)
def test_rewards_are_those_of_verifiers_own_evaluation(
    game: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = Job(tmp_path, "verifiers", options(game), NLTK_DATA=words)
    episodes = job.check(GAMES[game])
    assert [episode.failure for episode in episodes] == [None] * 2
    assert all(episode.calls > 1 and len(episode.timelines) == 1 for episode in episodes)
    assert {episode.task: episode.reward for episode in episodes} == evaluated(game, words, tmp_path)


def evaluated(game: str, words: str, folder: Path) -> dict[str, float]:
    """The reward of each task, by `vf-eval`."""
    with scripted(GAMES[game]) as url:
        (folder / "own.toml").write_text(
            f'model = "any"\npush = false\nnum_rollouts = 1\noutput_dir = "own"\n'
            f'[client]\nbase_url = "{url}"\napi_key_var = "NO_KEY"\n[select]\nlimit = 2\n'
            f'[env.taskset]\nid = "textarena"\ngame = "{game}"\n'
            '[env.player.harness]\nid = "null"\n[env.player.runtime]\ntype = "subprocess"\n'
        )
        run("vf-eval", "@", "own.toml", folder=folder, NLTK_DATA=words, PRIME_RUNS_MODE="disabled")
    (traces,) = (folder / "own").glob("*/traces.jsonl")
    found: dict[str, float] = {}
    for line in traces.read_text().splitlines():
        (trace,) = json.loads(line)["traces"]
        found[trace["task"]["data"]["name"]] = sum(
            r["score"] * r["weight"] for r in trace["rewards"].values()
        )
    return found


def test_the_starter_is_trained_for_two_steps(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_trained(Job(tmp_path, "verifiers", options("Hangman-v0"), NLTK_DATA=words).train())


ASKS = """
import verifiers.v1 as vf
from judging import judged
__all__ = ["Sums"]
class Sum(vf.Task):
    @vf.reward(weight=1.0)
    async def right(self, task, trace) -> float:
        return judged(trace.last_reply)
class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    def load(self):
        yield Sum(vf.TaskData(prompt="What is 2 + 2?"))
"""


def test_a_taskset_with_a_model_of_its_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"taskset": {"id": "asks"}, "agent": {"harness": {"id": "null"}}}
    assert_own_model_is_refused(tmp_path, "verifiers", {"asks.py": ASKS}, options)


def test_cancelled_and_late_episodes_leave_no_process(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job, draw = Job(tmp_path, "verifiers", options("WordSearch-v0"), NLTK_DATA=words), random.Random(0)
    cancel_episodes([job.task()] * 8, 4, lambda: draw.uniform(0, 10))
    cancel_episodes([job.task()] * 4, 2, lambda: None)
    late = job.check(GAMES["WordSearch-v0"], rollout={"timeout": 1})  # importing the library takes longer
    assert [episode.failure for episode in late] == ["timeout"] * 2
    assert not processes_with(f"NLTK_DATA={words}".encode())
