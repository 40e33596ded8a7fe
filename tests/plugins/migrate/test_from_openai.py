"""`ajet config from-openai`: jobs of OpenAI's API, what becomes of their keys, and what is refused with its key or line."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import openai.types.fine_tuning as theirs
import pytest
import yaml

from ajet import ConfigError
from ajet.cli import run_program
from ajet.learning.preferences import read_preferences
from ajet.learning.sft import read_transcripts
from ajet_openai_jobs import request
from ajet_openai_jobs.commands import from_openai
from ajet_openai_jobs.convert import convert

USER = {"role": "user", "content": "The capital of France?"}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("Paris", "Rome"))
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CHECK = {
    "type": "string_check",
    "name": "right",
    "operation": "ilike",
    "input": "{{sample.output_text}}",
    "reference": "{{item.reference.city}}",
}
RECORD = {"messages": [USER], "reference": {"city": "paris"}, "answer": "kept", "id": 7}
CHAT = {"messages": [USER, GOOD]}
PAIR = {"input": {"messages": [USER]}, "preferred_output": [GOOD], "non_preferred_output": [BAD]}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


def reinforcement(grader: Mapping[str, Any] = CHECK, **hyper: Any) -> dict[str, Any]:
    method = {"grader": grader, **({"hyperparameters": hyper} if hyper else {})}
    return {"model": "o4-mini", "method": {"type": "reinforcement", "reinforcement": method}}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a job with its training file into an empty folder; the file of the job."""
    monkeypatch.chdir(tmp_path)

    def written(job: Any, *lines: Any, validation: Any = ()) -> Path:
        for name, of in (("train.jsonl", lines), ("test.jsonl", validation)):
            text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in of)
            Path(name).write_text(text, encoding="utf-8")
        given = job if isinstance(job, str) else json.dumps({"training_file": "train.jsonl", **job})
        Path("job.json").write_text(given, encoding="utf-8")
        return Path("job.json")

    return written


def made(file: Path) -> Any:
    return convert(file, "starter", Path("out"), None, None)


# ------------------------------------------------------------------ reinforcement


@pytest.mark.models("starter")
def test_a_reinforcement_job_runs_with_scripted_answers_and_its_graders_reward(
    write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [{**RECORD, "reference": {"city": city}} for city in ("paris", "rome")]
    convert(write(reinforcement(batch_size=2), *records), "starter", Path("out"), None, None)
    Path("answers.yaml").write_text("- {say: It is Paris.}\n")
    command = "check out/job.yaml --answers answers.yaml"
    code = run_program(shlex.split(command))
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert re.search(r"0\.50? \(0 to 1\); 4 of 8 succeeded", printed.out), printed.out


def test_its_keys_become_those_of_a_job(write: Any) -> None:
    wandb = {"project": "p", "entity": "e", "name": None, "tags": ["t"]}
    job = {
        **reinforcement(
            n_epochs=2,
            batch_size=3,
            learning_rate_multiplier=2.0,
            compute_multiplier=0.5,
            eval_interval=5,
            eval_samples=4,
        ),
        **{"validation_file": "test.jsonl", "seed": 9, "suffix": "mine"},
        "integrations": [{"type": "wandb", "wandb": wandb}],
    }
    records = [{**RECORD, "id": number} for number in range(10)]
    found = made(write(job, *records, validation=records[:2]))
    assert found.command == "ajet run out/job.yaml"
    reader = {"type": "jsonl", "path": "../train.jsonl", "id": None, "query": None, "answer": None}
    assert yaml.safe_load(Path("out/job.yaml").read_text()) == {
        "task": {"reader": reader, "validation": {**reader, "path": "../test.jsonl"}},
        "workflow": "agent.py:run",
        "judge": {"type": "openai_grader", "grader": CHECK},
        "model": "starter",
        "rollout": {"group_size": 4},
        "train": {"steps": 7, "batch_size": 3, "learning_rate": 2e-5},
        "run": {
            "seed": 9,
            "name": "mine",
            "loggers": [{"type": "wandb", "project": "p", "entity": "e"}],
            "tags": ["t"],
        },
        "eval": {"episodes": 2, "every": 5, "repeats": 4},
    }


def test_auto_says_what_it_becomes_and_what_has_no_counterpart_is_named(write: Any) -> None:
    asks = {
        "type": "score_model",
        "name": "s",
        "model": "gpt-4o",
        "input": [{"role": "user", "content": "?"}],
    }
    python = {
        "type": "python",
        "name": "p",
        "source": "def grade(sample, item): return 1.0",
        "image_tag": "2025-05-08",
    }
    multi = {"type": "multi", "graders": {"a": asks, "b": python}, "calculate_output": "a + b", "name": "m"}
    job = reinforcement(multi, n_epochs="auto", eval_interval="auto", reasoning_effort="high")
    job["method"]["reinforcement"]["response_format"] = SCHEMA
    found = made(
        write(
            {**job, "validation_file": "test.jsonl", "metadata": {"a": "b"}, "novel": 1},
            RECORD,
            RECORD,
            validation=[RECORD],
        )
    )
    told = "\n".join(found.notes)
    for said in (
        "model: o4-mini becomes starter",
        "novel: no effect",
        "ask gpt-4o at OpenAI; judge.endpoint",
        "image_tag has no effect",
        "1 lines repeat others",
        "has 2 examples, and OpenAI refuses fewer than 10",
        "batch_size: auto becomes 1 (2 examples)",
        "n_epochs: auto becomes 3 (2 examples)",
        "compute_multiplier: auto becomes 8 episodes per task",
        "learning_rate_multiplier: auto becomes the learning rate 1e-05",
        "eval_interval: auto becomes",
        "eval_samples: auto becomes",
        "reasoning_effort: high: no effect, unless",
        "response_format: is checked",
        "metadata: no effect",
    ):
        assert said in told
    job_file = yaml.safe_load(Path("out/job.yaml").read_text())
    assert job_file["judge"]["endpoint"] == {
        "base_url": "https://api.openai.com/v1",
        "api_key_env": "OPENAI_API_KEY",
    }
    assert job_file["task"]["reader"]["drop_duplicates"] is True
    assert json.loads(Path("out/response_format.json").read_text()) == SCHEMA


# ------------------------------------------------------------------ supervised and dpo


def test_a_supervised_job_becomes_transcripts_and_their_command(
    write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"role": "assistant", "content": None, "tool_calls": [CALL], "weight": 0}
    developer = {"role": "developer", "content": "Be brief."}
    result = {"role": "tool", "tool_call_id": "c1", "content": "It is Paris."}
    called = {
        "messages": [developer, USER, asked, result, {**GOOD, "weight": 1}],
        "tools": [TOOL],
        "parallel_tool_calls": True,
    }
    legacy = {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
            {"role": "function", "name": "look", "content": "It is Paris."},
            GOOD,
        ],
        "functions": [TOOL["function"]],
    }
    # What GET returns, written before there were methods.
    job = {
        **{
            "object": "fine_tuning.job",
            "id": "ftjob-1",
            "status": "succeeded",
            "fine_tuned_model": "ft:gpt-4o",
            "seed": 4,
        },
        **{
            "model": "gpt-4o",
            "method": None,
            "hyperparameters": {"n_epochs": 2, "batch_size": 1, "learning_rate_multiplier": 1.5},
        },
    }
    from_openai(write(job, called, legacy, CHAT), "starter", Path("out"))
    printed = capsys.readouterr().out
    command = (
        "ajet sft --model starter --transcripts out/transcripts.jsonl --output out/run --epochs 2 --batch-size 1 "
        "--learning-rate 1.5e-05 --seed 4"
    )
    assert command in printed and command in Path("out/train.sh").read_text()
    first, second, third = read_transcripts(Path("out/transcripts.jsonl"))
    assert [m["role"] for m in first.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert [m.get("weight") for m in first.messages] == [None, None, 0, None, 1] and first.tools == [TOOL]
    assert [m["role"] for m in second.messages] == ["user", "assistant", "tool", "assistant"]
    assert second.messages[1]["tool_calls"][0]["id"] == second.messages[2]["tool_call_id"]
    assert second.tools == [TOOL] and third.messages == CHAT["messages"]


def test_a_dpo_job_becomes_pairs_and_their_command(write: Any) -> None:
    method = {"type": "dpo", "dpo": {"hyperparameters": {"beta": "auto", "n_epochs": 1, "batch_size": 2}}}
    line = {**PAIR, "input": {**PAIR["input"], "tools": [TOOL], "parallel_tool_calls": False}}
    found = made(write({"model": "gpt-4o", "method": method}, line))
    command = (
        "ajet dpo --model starter --pairs out/pairs.jsonl --output out/run --epochs 1 --batch-size 2 --learning-rate 1e-06 "
        "--beta 0.1"
    )
    assert found.command == command and "beta: auto becomes 0.1" in found.notes
    (pair,) = read_preferences(Path("out/pairs.jsonl"))
    assert pair.chosen.messages == [USER, GOOD] and pair.rejected.messages == [USER, BAD]
    assert pair.chosen.tools == [TOOL]


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ('{"model": "a",\n "b": }', r"job\.json:2: not JSON"),
        ("[]", "a fine-tuning job is a JSON object"),
        ({"model": "a", "trainig_file": "x"}, "trainig_file: unknown key; did you mean training_file"),
        ({}, r"model"),
        (
            {"model": "a", "training_file": "file-1"},
            r"training_file: 'file-1' is the id of a file at OpenAI.*--training-file",
        ),
        ({"model": "a", "validation_file": "file-2"}, "validation_file: 'file-2' is the id"),
        ({"model": "a", "method": {"type": "rlhf"}}, r"method\.type"),
        ({"model": "a", "method": {"type": "reinforcement"}}, "reinforcement"),
        ({"model": "a", "seed": -1}, "seed"),
        ({"model": "a", "suffix": "x" * 65}, "suffix"),
        ({"model": "a", "hyperparameters": {"n_epochs": 0}}, "n_epochs: expected more than 0"),
        ({"model": "a", "hyperparameters": {"epochs": 1}}, r"hyperparameters\.epochs"),
        (reinforcement(eval_samples="many"), "eval_samples"),
        (reinforcement({**CHECK, "operation": "neq"}), r"method\.reinforcement\.grader.*operation"),
        (reinforcement({**CHECK, "type": "vibe"}), r"method\.reinforcement\.grader"),
        (
            reinforcement({**CHECK, "input": "{{output}}"}),
            r"method\.reinforcement\.grader.*is not a template",
        ),
        (
            reinforcement({"type": "python", "source": "x"}),
            r"method\.reinforcement\.grader.*grade\(sample, item\)",
        ),
        ({"model": "a", "integrations": [{"type": "mlflow"}]}, "integrations"),
    ],
)
def test_a_wrong_job_is_refused_with_its_key_or_line(write: Any, job: Any, said: str) -> None:
    line = RECORD if "reinforcement" in json.dumps(job) else CHAT
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        made(write(job, line))
    assert not Path("out").exists()


def chat(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}


SUPERVISED, DPO = {"model": "a"}, {"model": "a", "method": {"type": "dpo"}}
ASKED = {"role": "assistant", "tool_calls": [CALL]}


@pytest.mark.parametrize(
    ("job", "line", "said"),
    [
        (SUPERVISED, "{]", r"not JSON \(.* at column 2\)"),
        (SUPERVISED, "[]", "not a JSON object"),
        (SUPERVISED, {"prompt": "a", "completion": "b"}, "base models"),
        (SUPERVISED, {"messages": []}, "messages: must be a list"),
        (SUPERVISED, {**CHAT, "label": 1}, "label: unknown key"),
        (SUPERVISED, chat(USER), "no assistant message to learn"),
        (SUPERVISED, chat(USER, {**GOOD, "weight": 0}), "no assistant message to learn"),
        (SUPERVISED, chat(USER, {**GOOD, "weight": 0.5}), r"messages\[1\]\.weight: must be 0 or 1"),
        (SUPERVISED, chat({**USER, "weight": 1}, GOOD), r"messages\[0\]\.weight: unknown key"),
        (SUPERVISED, chat({**USER, "role": "human"}, GOOD), r"messages\[0\]\.role: 'human'"),
        (SUPERVISED, chat({"role": "user"}, GOOD), r"messages\[0\]\.content: is missing"),
        (SUPERVISED, chat({**USER, "content": 1}, GOOD), r"messages\[0\]\.content: must be a text"),
        (SUPERVISED, chat(USER, {"role": "assistant"}), "neither content nor tool calls"),
        (SUPERVISED, chat(USER, ASKED, USER), "the tool call 'c1' before it has no answer"),
        (
            SUPERVISED,
            chat(USER, {"role": "tool", "tool_call_id": "c9", "content": ""}, GOOD),
            "answers no call",
        ),
        (
            SUPERVISED,
            chat(USER, {**ASKED, "tool_calls": [{**CALL, "function": {"name": "a b"}}]}),
            r"function\.name",
        ),
        (
            SUPERVISED,
            {**CHAT, "tools": [{"type": "function", "function": {}}]},
            r"tools\[0\]\.function\.name",
        ),
        (
            SUPERVISED,
            chat({**USER, "content": [{"type": "input_audio"}]}, GOOD),
            r"content\[0\]\.type: 'input_audio'",
        ),
        (SUPERVISED, chat({**USER, "content": [{"type": "image_url"}]}, GOOD), "has an image"),
        (DPO, CHAT, "messages: unknown key"),
        (DPO, {**PAIR, "preferred_output": [USER]}, "preferred_output: has no assistant message"),
        (DPO, {**PAIR, "preferred_output": [BAD]}, "are the same"),
        (DPO, {**PAIR, "input": [USER]}, "input: must be an object"),
        (reinforcement(), chat(USER, GOOD, reference={"city": ""}), "the last one is of the assistant"),
        (reinforcement(), chat(USER, reference={}), r"has no item\.reference\.city, which the grader names"),
    ],
)
def test_a_wrong_line_is_refused_with_its_number(write: Any, job: Any, line: Any, said: str) -> None:
    right = {"supervised": CHAT, "dpo": PAIR, "reinforcement": RECORD}[
        job.get("method", {}).get("type", "supervised")
    ]
    with pytest.raises(ConfigError, match=rf"train\.jsonl:3: .*{said}"):
        made(write(job, right, "", line))


def test_a_folder_that_exists_stays_as_it_is(write: Any) -> None:
    Path("out").mkdir()
    with pytest.raises(ConfigError, match="already exists"):
        made(write({"model": "a"}, CHAT))


# ------------------------------------------------------------------ their types


def test_every_key_of_openais_types_is_known() -> None:
    of_a_result = set(theirs.FineTuningJob.model_fields) - {"hyperparameters"}
    assert of_a_result <= {*request.FineTuningJob.model_fields, *request.OF_A_RESULT}
    for ours, other in (
        (request.Hyperparameters, theirs.SupervisedHyperparameters),
        (request.DpoHyperparameters, theirs.DpoHyperparameters),
        (request.ReinforcementHyperparameters, theirs.ReinforcementHyperparameters),
    ):
        assert set(other.model_fields) <= set(ours.model_fields)
    (efforts,) = (
        a
        for a in get_args(theirs.ReinforcementHyperparameters.model_fields["reasoning_effort"].annotation)
        if get_args(a)
    )
    assert set(get_args(efforts)) <= {"default", "minimal", "low", "medium", "high"}
