"""A job of each method of OpenAI's API, converted and trained: the starter, which mostly adds where it should subtract, subtracts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest

import ajet
from ajet.cli import run_program
from ajet_openai_jobs.convert import convert

OLD = "ft:gpt-4o-mini:acme:minus:7p4lURel"
PAIRS = [(a, b) for a in range(4, 10) for b in range(2, a, 2)]
GRADER = {
    "type": "string_check",
    "name": "right",
    "operation": "like",
    "input": "{{sample.output_text}}",
    "reference": "- {{item.right.minus}} =",
}


def asked(a: int, b: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"What is {a} - {b}?"}]


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def lines_of(method: str) -> Iterator[dict[str, Any]]:
    """The training file of a method."""
    for a, b in PAIRS:
        right, wrong = said(f"{a} - {b} = {a - b}"), said(f"{a} + {b} = {a + b}")
        if method == "supervised":
            yield {"messages": [*asked(a, b), right]}
        elif method == "dpo":
            yield {
                "input": {"messages": asked(a, b)},
                "preferred_output": [right],
                "non_preferred_output": [wrong],
            }
        else:
            yield {"messages": asked(a, b), "right": {"minus": str(b)}}


def converted(method: str, hyperparameters: Mapping[str, Any]) -> str:
    """The command that trains the job that was converted into a folder of the method's name."""
    Path(f"{method}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines_of(method)))
    settings: dict[str, Any] = {"hyperparameters": hyperparameters}
    if method == "reinforcement":
        settings["grader"] = GRADER
    body = {
        "model": "gpt-4o-mini-2024-07-18",
        "training_file": f"{method}.jsonl",
        "seed": 0,
        "method": {"type": method, method: settings},
    }
    Path(f"{method}.json").write_text(json.dumps(body))
    return convert(Path(f"{method}.json"), "starter", Path(method), None, None).command


def score(model: Path | str) -> float:
    """The share of greedy answers that subtract what they are asked to, by the reinforcement job's grader."""
    if not Path("reinforcement").exists():
        converted("reinforcement", {"n_epochs": 1, "batch_size": 4})
    return ajet.evaluate("reinforcement/job.yaml", model=model, greedy=True, progress=False).reward


HYPER = {
    "supervised": {"n_epochs": 20, "batch_size": 4, "learning_rate_multiplier": 30},
    "dpo": {"n_epochs": 6, "batch_size": 4, "learning_rate_multiplier": 300, "beta": 0.1},
    "reinforcement": {
        "n_epochs": 2,
        "batch_size": 4,
        "learning_rate_multiplier": 30,
        "compute_multiplier": 1,
    },
}


@pytest.mark.whole
@pytest.mark.models("starter")
@pytest.mark.parametrize("method", HYPER)
def test_a_job_learns_what_it_asks_for_and_is_served_under_the_old_models_name(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = converted(method, HYPER[method])
    assert score("starter") < 0.1
    assert run_program(shlex.split(command)[1:]) == 0
    checkpoint = max(Path().glob("**/checkpoints/step_*"))
    assert score(checkpoint) > 0.3
    with ajet.serve(checkpoint, engine="local", set={"threads": 1}) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key=server.api_key, max_retries=0)
        ask: Any = asked(7, 2)
        answer = client.chat.completions.create(model=OLD, messages=ask, temperature=0)
    assert answer.model == OLD and " - " in str(answer.choices[0].message.content)
