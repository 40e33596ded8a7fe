"""A fine-tuning job of OpenAI as a job of AgentJet: what becomes of each key, and the files that say it."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ajet import ConfigError, Judge
from ajet.job.layers import job_layers
from ajet.job.parts import build_plugin
from ajet.learning.settings import TrainSettings
from ajet_openai_jobs import lines
from ajet_openai_jobs.request import (
    DpoHyperparameters,
    FineTuningJob,
    ReinforcementHyperparameters,
    read_job,
)

FEWEST = 10
"""Examples that OpenAI needs."""
GROUP = 8
"""Episodes per task at ``compute_multiplier: 1``."""
TRAINED = {"supervised": ("ajet sft", "transcripts", 32, 1e-5), "dpo": ("ajet dpo", "pairs", 32, 1e-6)}
"""Command, its option for the file, its defaults of batch size and learning rate."""
OPENAI = {"base_url": "https://api.openai.com/v1", "api_key_env": "OPENAI_API_KEY"}
_CHECKS = {"supervised": lines.supervised, "dpo": lines.dpo, "reinforcement": lines.reinforcement}


@dataclass(slots=True)
class Made:
    """What was written."""

    command: str
    """What trains it."""
    notes: list[str] = field(default_factory=list)
    """What becomes of the keys that do not mean the same here."""


def convert(file: Path, model: str, output: Path, training: Path | None, validation: Path | None) -> Made:
    """Write the job that a file says into a new folder. Raises ConfigError with the key, or with the file and its line."""
    if output.exists():
        raise ConfigError("output=", f"{output} already exists; name a new folder.")
    job, unknown = read_job(file)
    made = Made("", [f"{key}: no effect: unknown here" for key in unknown])
    train = _local(file, "training_file", job.training_file, training)
    held_out = None
    if job.validation_file or validation:
        held_out = _local(file, "validation_file", job.validation_file, validation)
    writes = _reinforcement if job.method.type == "reinforcement" else _from_file
    texts = writes(_Source(file, job, model, output, train, held_out), made)
    made.notes.insert(0, f"model: {job.model} becomes {model}")
    _about_the_rest(job, made)
    output.mkdir(parents=True)
    for name, text in texts.items():
        (output / name).write_text(text, encoding="utf-8")
    return made


@dataclass(frozen=True, slots=True)
class _Source:
    file: Path
    job: FineTuningJob
    model: str
    output: Path
    training: Path
    validation: Path | None

    def read(self, path: Path) -> list[tuple[int, dict[str, Any]]]:
        """The checked lines of a file. Raises ConfigError."""
        rows = list(lines.read_lines(path, _CHECKS[self.job.method.type]))
        if not rows:
            raise ConfigError(f"{path}: has no examples.")
        return rows


def _local(file: Path, key: str, named: str | None, given: Path | None) -> Path:
    """A file of the job on this machine: as given, or what the job names, if that is a path."""
    if given is not None:
        if not given.is_file():
            raise ConfigError(f"{key}=", f"{given}: no such file.")
        return given
    for path in (Path(named or ""), file.parent / (named or "")):
        if named and path.is_file():
            return path
    option = f"--{key.replace('_', '-')}"
    raise ConfigError(
        f"{file}: {key}: {named!r} is the id of a file at OpenAI. Download it (openai.OpenAI().files.content({named!r})), and name it "
        f"with {option}."
    )


def _batch(given: Any, examples: int, default: int, made: Made) -> int:
    """``auto`` is the default of AgentJet, or less, so that an epoch has ten steps."""
    if given not in (None, "auto"):
        return int(given)
    size = max(1, min(default, examples // 10))
    made.notes.append(f"batch_size: auto becomes {size} ({examples} examples)")
    return size


def _epochs(given: Any, examples: int, made: Made, most: int = 25) -> int:
    """``auto``: three, more for few examples and fewer for many, as OpenAI's cookbook estimates."""
    if given not in (None, "auto"):
        return int(given)
    epochs = (
        min(most, math.ceil(100 / examples)) if examples * 3 < 100 else max(1, min(3, 25_000 // examples))
    )
    made.notes.append(f"n_epochs: auto becomes {epochs} ({examples} examples)")
    return epochs


def _rate(given: Any, default: float, made: Made) -> float:
    rate = default * (1.0 if given in (None, "auto") else float(given))
    made.notes.append(f"learning_rate_multiplier: {given or 'auto'} becomes the learning rate {rate:g}")
    return float(f"{rate:.6g}")


# --------------------------------------------------------------------------- supervised and dpo


def _from_file(source: _Source, made: Made) -> dict[str, str]:
    """The converted file, and a script with the command that learns from it."""
    job, hyper = source.job, source.job.method.hyperparameters
    command, option, batch_size, rate = TRAINED[job.method.type]
    examples = [line for _, line in source.read(source.training)]
    _about_few(len(examples), made)
    name, script = f"{option}.jsonl", [*command.split(), "--model", source.model]
    script += [f"--{option}", str(source.output / name), "--output", str(source.output / "run")]
    script += ["--epochs", str(_epochs(hyper.n_epochs, len(examples), made))]
    script += ["--batch-size", str(_batch(hyper.batch_size, len(examples), batch_size, made))]
    script += ["--learning-rate", f"{_rate(hyper.learning_rate_multiplier, rate, made):g}"]
    if isinstance(hyper, DpoHyperparameters):
        beta = 0.1 if hyper.beta in (None, "auto") else hyper.beta
        if beta != hyper.beta:
            made.notes.append(f"beta: auto becomes {beta}")
        script += ["--beta", f"{beta:g}"]
    if job.seed is not None:
        script += ["--seed", str(job.seed)]
    if source.validation is not None:
        source.read(source.validation)
        made.notes.append(
            f"validation_file: no effect: `{command}` validates nothing; the file has been checked"
        )
    if job.integrations:
        made.notes.append(f"integrations: no effect: `{command}` writes its metrics into its folder")
    made.command = shlex.join(script)
    text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in examples)
    return {name: text, "train.sh": f"#!/bin/sh\nset -e\n{made.command}\n"}


# --------------------------------------------------------------------------- reinforcement


def _reinforcement(source: _Source, made: Made) -> dict[str, str]:
    """A job file, and the agent that it runs."""
    job = source.job
    method, hyper = job.method.reinforcement, job.method.hyperparameters
    assert method and isinstance(hyper, ReinforcementHyperparameters)
    judge = _judge(source.file, method.grader, made)
    readers = {"reader": _reader(source, source.training, judge, made)}
    examples = len(source.read(source.training))
    _about_few(examples, made)
    batch_size = _batch(hyper.batch_size, examples, TrainSettings().batch_size, made)
    epochs = _epochs(hyper.n_epochs, examples, made, most=3)
    multiplier = 1.0 if hyper.compute_multiplier in (None, "auto") else float(hyper.compute_multiplier)
    group = max(2, round(GROUP * multiplier))
    made.notes.append(
        f"compute_multiplier: {hyper.compute_multiplier or 'auto'} becomes {group} episodes per task"
    )
    values: dict[str, Any] = {
        "task": readers,
        "workflow": "agent.py:run",
        "judge": judge,
        "model": _relative(source.model, source.output) if Path(source.model).exists() else source.model,
        "rollout": {"group_size": group},
        "train": {
            "steps": math.ceil(examples * epochs / batch_size),
            "batch_size": batch_size,
            "learning_rate": _rate(hyper.learning_rate_multiplier, TrainSettings().learning_rate, made),
        },
        "run": {"seed": job.seed} if job.seed is not None else {},
    }
    if source.validation is not None:
        readers["validation"] = _reader(source, source.validation, judge, made)
        values["eval"] = _validation(hyper, len(source.read(source.validation)), made)
    if job.suffix:
        values["run"]["name"] = job.suffix
    if job.integrations:
        values["run"]["loggers"] = [
            {
                "type": "wandb",
                "project": i.wandb.project,
                **({"entity": i.wandb.entity} if i.wandb.entity else {}),
            }
            for i in job.integrations
        ]
        values["run"]["tags"] = [tag for i in job.integrations for tag in i.wandb.tags or ()]
    if hyper.reasoning_effort not in (None, "default"):
        made.notes.append(
            f"reasoning_effort: {hyper.reasoning_effort}: no effect, unless the model's chat template reads it, as gpt-oss's does: "
            f"set rollout.chat_template: {{reasoning_effort: {hyper.reasoning_effort}}}"
        )
    texts = {"agent.py": Path(__file__).with_name("agent.py").read_text("utf-8")}
    if method.response_format:
        texts["response_format.json"] = (
            json.dumps(method.response_format, indent=2, ensure_ascii=False) + "\n"
        )
        made.notes.append(
            "response_format: is checked, and an answer without the form scores 0, but it constrains no sampling, and the model is not "
            "told it: describe the form in the system message, if the model does not know it"
        )
    texts["job.yaml"] = yaml.safe_dump(
        {key: value for key, value in values.items() if value != {}},
        sort_keys=False,
        allow_unicode=True,
        width=120,
    )
    made.command = f"ajet run {shlex.quote(str(source.output / 'job.yaml'))}"
    return texts


def _judge(file: Path, grader: Mapping[str, Any], made: Made) -> dict[str, Any]:
    """The judge's spec, with the endpoints that its graders need."""
    spec: dict[str, Any] = {"type": "openai_grader", "grader": _without_nulls(grader)}
    several = grader.get("graders")
    parts = list(several.values()) if isinstance(several, dict) else [grader]
    parts = [part for part in parts if isinstance(part, dict)]
    asked = [p for p in parts if p.get("type") in ("score_model", "label_model")]
    if asked:
        spec["endpoint"] = OPENAI
        names = ", ".join(sorted({str(p.get("model")) for p in asked}))
        made.notes.append(f"graders: ask {names} at OpenAI; judge.endpoint names another base_url and model")
    if any(p.get("evaluation_metric") == "cosine" for p in parts):
        spec["embeddings"] = {**OPENAI, "model": "text-embedding-3-large"}
    if any(p.get("type") == "python" for p in parts):
        made.notes.append(
            "python graders: run in the sandbox with this environment's packages; image_tag has no effect"
        )
    _built(spec, file)
    return spec


def _built(spec: Mapping[str, Any], file: Path) -> Any:
    try:
        return build_plugin(job_layers(None), Judge, spec, "judge")
    except ConfigError as error:
        text = str(error).replace("judge.grader", "method.reinforcement.grader", 1)
        raise ConfigError(f"{file}: {text}") from None


def _reader(source: _Source, path: Path, judge: Mapping[str, Any], made: Made) -> dict[str, Any]:
    """The reader of a file, all of whose lines have what the graders name. Raises ConfigError with the line."""
    built = _built(judge, source.file)
    seen = set()
    rows = source.read(path)
    for number, line in rows:
        if lacks := built.lacking(line):
            raise ConfigError(f"{path}:{number}: has no {lacks}, which the grader names.")
        seen.add(json.dumps(line, sort_keys=True))
    # The record's own fields keep their names, for the grader's templates.
    spec: dict[str, Any] = {
        "type": "jsonl",
        "path": _relative(path, source.output),
        "id": None,
        "query": None,
        "answer": None,
    }
    if len(seen) < len(rows):
        made.notes.append(f"{path}: {len(rows) - len(seen)} lines repeat others; each task is read once")
        spec["drop_duplicates"] = True
    return spec


def _validation(hyper: ReinforcementHyperparameters, examples: int, made: Made) -> dict[str, Any]:
    values: dict[str, Any] = {"episodes": examples}
    for key, given, name in (
        ("every", hyper.eval_interval, "eval_interval"),
        ("repeats", hyper.eval_samples, "eval_samples"),
    ):
        if given in (None, "auto"):
            made.notes.append(f"{name}: auto becomes the default of eval.{key}")
        else:
            values[key] = int(given)
    return values


# --------------------------------------------------------------------------- both


def _about_few(examples: int, made: Made) -> None:
    if examples < FEWEST:
        made.notes.append(f"training_file: has {examples} examples, and OpenAI refuses fewer than {FEWEST}")


def _about_the_rest(job: FineTuningJob, made: Made) -> None:
    if job.metadata:
        made.notes.append("metadata: no effect")
    if job.suffix and job.method.type != "reinforcement":
        made.notes.append("suffix: no effect: `ajet serve` answers under any name")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(below) for key, below in value.items() if below is not None}
    return (
        [_without_nulls(below) for below in value]
        if isinstance(value, Sequence) and not isinstance(value, str)
        else value
    )


def _relative(path: str | Path, folder: Path) -> str:
    return os.path.relpath(Path(path).resolve(), folder.resolve())
