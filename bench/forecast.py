"""Checks forecasts, alarms and attacks on jobs whose fate is known: digit sums, as in `bench/algorithms.py`.

    SEED=0 python bench/forecast.py            # all: about half an hour of CPU
    SEED=0 python bench/forecast.py --small    # fewer seeds, checks and steps

Twelve jobs: two learn, ten have a planted fault. A fault must be the first cause that the forecast names or, if it names none, the
first alarm within a quarter of the run. Runs that learn, at several seeds, must raise no alarm. Intervals of a forecast's shares are
compared with many more episodes of the same model, steps predicted with a probe of a fifth of the run (`--probe`) with those that
runs took: of all runs, so that one which does not reach the target is a miss. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
STEPS, PROBE, EPISODES, TARGET = 40, 8, 64, 0.8
MODULE = """
import random
from digit_sums import CLIENT, URL


async def ask(task, **more):
    body = {"model": "m", "messages": [{"role": "user", "content": task.query}], **more}
    return (await CLIENT.post(URL, json=body)).json()["choices"][0]


async def run(task):
    return (await ask(task))["message"]["content"] or ""


async def cut(task):
    choice = await ask(task, max_tokens=1)
    return choice["message"]["content"] or "" if choice["finish_reason"] == "stop" else ""


def exact(task, output):
    return output.response.strip() == str(task.metadata["answer"])


def impossible(task, output):
    return output.response.strip() == str(task.metadata["answer"] + 100)


def noisy(task, output):
    return random.random() < 0.5


def contains(task, output):
    return str(task.metadata["answer"]) in output.response


def fails(task, output, episode):
    if episode.member % 2:
        raise ValueError("no score")
    return exact(task, output)
"""
FAULTS: Mapping[str, tuple[Mapping[str, Any], frozenset[str]]] = {
    "learnable": ({}, frozenset()),
    "healthy": ({"judge_check": {"type": "known.py:exact"}}, frozenset()),
    "saturated": ({"model": "teacher"}, frozenset({"saturated", "no_signal"})),
    "too hard": ({"judge": {"type": "known.py:impossible"}}, frozenset({"too hard", "no_signal"})),
    "noisy judge": ({"judge": {"type": "known.py:noisy"}}, frozenset({"noisy judge"})),
    "group size 1": ({"rollout.group_size": 1}, frozenset({"rollout.group_size"})),
    "cut answers": ({"workflow": "known.py:cut"}, frozenset({"cut answers", "cut_answers"})),
    "exploitable judge": ({"judge": {"type": "known.py:contains"}}, frozenset({"exploitable judge"})),
    "failed episodes": (
        {"judge": {"type": "known.py:fails"}},
        frozenset({"failed episodes", "failed_episodes"}),
    ),
    "rate too high": ({"train.learning_rate": 1.0}, frozenset({"learning rate", "collapse", "reward_fell"})),
    "rate too low": ({"train.learning_rate": 1e-9}, frozenset({"learning rate"})),
    "wrong template": ({"model": "untemplated"}, frozenset({"template"})),
}
"""The jobs: what differs from the one that learns, and the names that are right for it; none if it learns."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--small", action="store_true")
    small = parser.parse_args().small
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    seed = int(os.environ.get("SEED", "0"))
    with tempfile.TemporaryDirectory() as folder:
        found = Known(Path(folder), seed, steps=8 if small else STEPS).measure(small)
    print(json.dumps(found | {"seed": seed, "small": small}))


class Known:
    """The folder of the jobs, and what runs them."""

    def __init__(self, folder: Path, seed: int, steps: int) -> None:
        from algorithms import Bench

        self.folder, self.seed, self.steps = folder, seed, steps
        self.bench = Bench(folder, steps, seed)
        (folder / "known.py").write_text(MODULE)
        self.models = {"teacher": self.bench.teacher, "untemplated": self.without_template()}

    def measure(self, small: bool) -> dict[str, Any]:
        """All figures of the last line."""
        named = {}
        for fate in FAULTS:
            named[fate] = self.name(fate)
            print(f"{fate}: {named[fate] or 'nothing'}", flush=True)
        right = [fate for fate, (_, names) in FAULTS.items() if self.is_right(named[fate], names)]
        false, share, steps = self.healthy(2 if small else 12)
        held, checks = self.intervals(2 if small else 10)
        return {
            "named": len(right),
            "of": len(FAULTS),
            "wrong": {fate: name for fate, name in named.items() if fate not in right},
            "false_alarms": false,
            "intervals_held": f"{held} of {checks}",
            "steps_within_factor_2": steps,
            **attacks(),
            "alarm_cpu_share": share,
        }

    def is_right(self, name: str, names: frozenset[str]) -> bool:
        """Whether what was named first is a right name; none for a job that learns."""
        return name in names if names else not name

    def name(self, fate: str) -> str:
        """The first cause that the forecast of a job names, else its first alarm within a quarter of the run; "" if none."""
        from ajet.runs.train import train_job
        from ajet.types import AjetError, ConfigError

        try:
            job = self.job(fate)
        except ConfigError as refused:
            return refused.key
        found = self.forecast(job, attacks=fate == "exploitable judge")
        if found.causes:
            return str(found.causes[0][0])
        try:
            _, alarms, _ = self.run(job, max(self.steps // 4, 8), train_job)
        except AjetError as error:
            return str(error)
        return alarms[0] if alarms else ""

    def healthy(self, seeds: int) -> tuple[int, float, str]:
        """Alarms of runs that reach the target, the share of their CPU time that alarms take, and for how many of all runs the steps to
        the target were predicted within a factor of 2. A run that does not reach it in `STEPS` is a miss, as one that is ruined."""
        from ajet.runs.train import train_job
        from ajet.types import AjetError

        false, shares, near = 0, [], 0
        for seed in range(self.seed, self.seed + seeds):
            predicted = taken = None
            try:
                predicted = self.forecast(self.job("learnable", seed), probe_steps=PROBE).steps
                rewards, alarms, share = self.run(self.job("healthy", seed), self.steps, train_job)
            except AjetError as error:
                print(f"seed {seed}: predicted {predicted}, ended with: {error}", flush=True)
                continue
            means = [statistics.fmean(rewards[n - 3 : n + 1]) for n in range(3, len(rewards))]
            taken = next((n for n, mean in enumerate(means, 4) if mean >= TARGET), None)
            print(f"seed {seed}: alarms {alarms}, predicted {predicted}, taken {taken}", flush=True)
            shares.append(share)
            if taken:
                false += len(alarms)
                near += predicted is not None and 0.5 <= predicted[0] / taken <= 2
        return false, round(statistics.fmean(shares or [0.0]), 4), f"{near} of {seeds}"

    def intervals(self, seeds: int) -> tuple[int, int]:
        """How many intervals of forecasts hold the figures of many episodes, and of how many."""
        truth = self.forecast(self.job("learnable", self.seed + 1000), episodes=25 * 32, first=25)
        held = [
            low <= getattr(truth, name)[size][0] <= high
            for seed in range(seeds)
            for found in [self.forecast(self.job("learnable", self.seed + seed))]
            for name, sizes in (("signal", (4, 8)), ("pass_at", (1, 4)))
            for size in sizes
            for _, low, high in [getattr(found, name)[size]]
        ]
        return sum(held), len(held)

    def forecast(
        self,
        job: Any,
        *,
        attacks: bool = False,
        episodes: int = EPISODES,
        first: int = 0,
        probe_steps: int = 0,
    ) -> Any:
        """The forecast of a job."""
        from ajet.runs.runtime import trainer_of
        from ajet_advice.forecast.forecast import ForecastRequest
        from ajet_advice.forecast.forecast import forecast as make_forecast
        from ajet_advice.forecast.steps import probe

        probed = probe(job, probe_steps, EPISODES) if probe_steps else None
        trainer = trainer_of(job)
        asked = ForecastRequest(episodes=max(episodes, first * 8), target=TARGET, attack=attacks)
        return make_forecast(job, trainer.engine, asked, trainer=trainer, probe=probed)

    def run(self, job: Any, steps: int, train_job: Any) -> tuple[list[float], list[str], float]:
        """Train a job for so many steps: its rewards, its alarms in their order, and the share of its CPU time that they took."""
        from dataclasses import replace

        from ajet.learning.alarms import Alarms
        from ajet.reports.folder import read_run
        from ajet.reports.verdict import verdict_of
        from ajet.rollout.summary import AnswerSums
        from ajet.runs.runtime import trainer_of

        spent = [0.0]
        train = job.config.train.model_copy(update={"steps": steps})
        job = replace(job, config=job.config.model_copy(update={"train": train}), validation=())
        with timed(Alarms, "step", spent), timed(AnswerSums, "of", spent):
            began = time.process_time()
            result = train_job(job, trainer_of(job))
            share = spent[0] / (time.process_time() - began)
        folder = read_run(result.run_dir)
        verdict = verdict_of(folder)
        rewards = [line["reward"] for line in folder.metrics if line["type"] == "train"]
        return rewards, [alarm.name for alarm in verdict.alarms] if verdict else [], share

    def job(self, fate: str, seed: int | None = None) -> Any:
        """The job of a fate, with the tasks and the sampling of a seed."""
        settings: dict[str, Any] = {
            "workflow": "known.py:run",
            "judge": {"type": "known.py:exact"},
            "task.validation": None,
            "run.seed": self.seed if seed is None else seed,
            "run.deterministic": False,
        } | dict(FAULTS[fate][0])
        model = self.models.get(settings.pop("model", ""), self.bench.model)
        for key in ("workflow", "judge", "judge_check"):
            value = settings.get(key)
            if isinstance(value, dict):
                settings[key] = {"type": f"{self.folder}/{value['type']}"}
            elif value:
                settings[key] = f"{self.folder}/{value}"
        return self.bench.job("grpo", model, settings)

    def without_template(self) -> Path:
        """The model without its chat template."""
        import shutil

        folder = self.folder / "untemplated"
        shutil.copytree(self.bench.model, folder)
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        settings = folder / "tokenizer_config.json"
        values = json.loads(settings.read_text())
        values.pop("chat_template", None)
        settings.write_text(json.dumps(values))
        return folder


class timed:
    """A block in which the CPU time of a method is added to ``spent``."""

    def __init__(self, owner: type, name: str, spent: list[float]) -> None:
        self.owner, self.name, self.spent = owner, name, spent
        self.found = owner.__dict__[name]

    def __enter__(self) -> None:
        found, spent = self.found, self.spent
        inner = found.__func__ if isinstance(found, classmethod) else found

        def measured(*arguments: Any) -> Any:
            began = time.thread_time()
            try:
                return inner(*arguments)
            finally:
                spent[0] += time.thread_time() - began

        setattr(self.owner, self.name, classmethod(measured) if isinstance(found, classmethod) else measured)

    def __exit__(self, *error: object) -> None:
        setattr(self.owner, self.name, self.found)


def attacks() -> dict[str, Any]:
    """Judges of the tests in which a planted hole is found, and sound ones that are flagged."""
    from tests.plugins.advice import test_attack as judges

    planted: Iterator[Any] = iter(judges.PLANTED)
    found = [attack in {hole.attack for hole in judges.holes(judge)} for judge, attack in planted]
    return {
        "holes_found": f"{sum(found)} of {len(found)}",
        "sound_judges_flagged": sum(bool(judges.holes(judge)) for judge in judges.SOUND),
    }


if __name__ == "__main__":
    main()
