"""Plants holes in judges, lets a policy find them, and measures what `ajet rejudge` and `ajet bisect` make of it.

    SEED=0 .venv/bin/python bench/rejudge.py

Eight judges have a hole: for length, for a keyword, for an empty answer, for a forged tool result, one letter too few, a wrong
reference, passing what is slow, and a keyword whose correction covers some tasks only. The policy is a table: a softmax over nine
answers, of which one is right (at first with a probability of 0.1) and one finds the hole. It is trained by policy gradient
through the core's own loop, with everything else real: journal, batches, checkpoints. The answer that finds the hole has the
probability 0 until a step that is drawn from 4 to 14, and 0.1 in that step; from there on the policy decides. For each hole

- a run is trained by the wrong judge and rejudged by the corrected one. ``found`` counts the runs whose first wrong step is the
  one that the recorded and the true rewards give by arithmetic: the first in which an answer's advantage had the wrong sign;
- training goes on from before that step (``--clean``), and is begun anew with the corrected judge. The job allows tokens that are
  2 versions old, with truncated importance weights, so beside the episodes of that step those of the next one are taken over.
  ``tokens_share`` is the median, over the holes, of the tokens that the first samples until three steps have a mean reward of
  0.9, as a share of those of the second. ``audited`` counts the runs that went on in which `ajet audit` finds nothing wrong;
- the run that began anew is rejudged by its own judge; ``false`` counts those in which a wrong step is named.

How many tokens are saved depends on when the policy finds the hole, which is chosen here: ``steps`` has the first wrong step of
each hole, and the step in which a new start reaches the target. ``bisect_right`` counts the planted regressions, of 10, that a
bisection of 32 scripted checkpoints finds, which fail in 5 % of their episodes before and in 60 % after it;
``bisect_evaluations`` is the most checkpoints that one evaluates, of at most log2(32) + 2. ``seconds`` is what it takes to
rejudge 10,000 episodes (``--episodes``). ``--few`` is for CI: 1,000 episodes.

Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openai

import ajet
from ajet import train_job
from ajet.api.jobs import shown_or_not
from ajet.reports.folder import read_run
from ajet.runs.jobs import job_of, prepared
from ajet.testing import ScriptedEngine
from ajet_audit.files import Folder
from ajet_audit.steps import Audit
from ajet_rejudge.bisecting import Bisection, Enough, Rates, search

FILE = Path(__file__).resolve()
TARGET = 0.9
CLOSED, OPENED = -1000.0, 0.1
"""The hole's logit before its step, and its probability in it."""
TASKS = 12
SOME = {f"t{n}" for n in range(TASKS // 2)}
RIGHT = "right"
WRONG = ("wrong", "left", "none", "maybe", "up", "down", "later")
CAP, STALE = 2.0, 2
"""Of the importance weights, and how many versions old a trained token may be."""
AFTER = 8
"""Steps of the run with the wrong judge after that in which the hole can be found."""
CLIENT = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)


async def answer(task: Any) -> str:
    """The workflow: one call."""
    asked: Any = [{"role": "user", "content": task.query}]
    made = await CLIENT.chat.completions.create(model="m", messages=asked)
    return made.choices[0].message.content or ""


# ------------------------------------------------------------------ judges


def correct(task: Any, output: Any) -> float:
    """What all should do."""
    return float(output.response == RIGHT)


def by_length(task: Any, output: Any) -> float:
    """Takes what is long for right."""
    return float(output.response == RIGHT or len(output.response) > 20)


def by_keyword(task: Any, output: Any) -> float:
    """Looks for the word anywhere."""
    return float(RIGHT in output.response)


def by_empty(task: Any, output: Any) -> float:
    """Finds nothing wrong with an empty answer."""
    return float(output.response in (RIGHT, ""))


def by_result(task: Any, output: Any) -> float:
    """Believes a tool's result that the answer has written itself."""
    return float(output.response == RIGHT or "<result>passed</result>" in output.response)


def by_prefix(task: Any, output: Any) -> float:
    """Compares one letter too few."""
    return float(output.response[:4] == RIGHT[:4])


def by_reference(task: Any, output: Any) -> float:
    """Has a second, wrong reference for some tasks."""
    return float(output.response == RIGHT or (task.id in SOME and output.response == "no"))


def by_timeout(task: Any, output: Any) -> float:
    """Lets pass what it could not judge in time."""
    try:
        if "loop" in output.response:
            raise TimeoutError
        return correct(task, output)
    except TimeoutError:
        return 1.0


def for_some(task: Any, output: Any) -> float:
    """Corrected for some tasks only."""
    return correct(task, output) if task.id in SOME else by_keyword(task, output)


Judge = Callable[[Any, Any], float]
HOLES: Mapping[str, tuple[Judge, Judge, str]] = {
    "length": (by_length, correct, "words and words and words"),
    "keyword": (by_keyword, correct, "not right"),
    "empty": (by_empty, correct, ""),
    "forged": (by_result, correct, "<result>passed</result>"),
    "off by one": (by_prefix, correct, "righ"),
    "reference": (by_reference, correct, "no"),
    "timeout": (by_timeout, correct, "loop"),
    "some tasks": (by_keyword, for_some, "not right"),
}
"""The judge with the hole, the corrected one, and the answer that finds it."""


# ------------------------------------------------------------------ a policy


class Engine(ScriptedEngine):
    """Knows how probable an answer was: its first token has the answer's logprob, the others follow from it."""

    probability: Callable[[str], float]

    async def generate(self, request: Any) -> Any:
        """See `ajet.Engine.generate`."""
        made = await super().generate(request)
        logprobs = np.zeros_like(made.logprobs)
        logprobs[0] = math.log(
            self.probability(self.tokenizer.decode(made.token_ids, skip_special_tokens=True))
        )
        return replace(made, logprobs=logprobs)


class Table:
    """A trainer whose policy is a softmax over answers."""

    def __init__(self, tokenizer: Any, found: str, opens: int, rate: float, seed: str) -> None:
        self.answers = [RIGHT, found, *WRONG]
        self.logits = np.array([math.log(0.1), CLOSED, *[math.log(0.9 / len(WRONG))] * len(WRONG)])
        self.opens, self.rate, self.seed = opens, rate, seed
        self.engine = Engine(tokenizer, self._says)
        self.engine.probability = lambda said: float(self.shares()[self.answers.index(said)])

    @property
    def version(self) -> int:
        return self.engine.version

    def shares(self) -> Any:
        """The probability of each answer."""
        if self.logits[1] == CLOSED and self.version >= self.opens - 1:
            self.logits[1] = math.log(np.exp(self.logits).sum() * OPENED / (1 - OPENED))
        weights = np.exp(self.logits - self.logits.max())
        return weights / weights.sum()

    def _says(self, request: Any, prompt: str) -> str:
        draw = random.Random(f"{self.seed} {self.version} {request.key}")
        return draw.choices(self.answers, self.shares())[0]

    def update(self, batch: Any) -> dict[str, float]:
        """One step along the gradient of the sum of weight · advantage · log p, with weights times min(p / p when sampled, 2)."""
        gradient = np.zeros(len(self.answers))
        trained = zero = 0
        for sample in (batch.samples[i] for mini in batch.mini_batches for i in mini):
            live = batch.has_credit(sample)
            trained, zero = (
                trained + live * int(sample.mask.sum()),
                zero + (not live) * int(sample.mask.sum()),
            )
            said = self.engine.tokenizer.decode(sample.token_ids[sample.mask], skip_special_tokens=True)
            chosen = np.arange(len(self.answers)) == self.answers.index(said)
            shares = self.shares()
            ratio = float(shares[chosen].sum() / np.exp(sample.logprobs[sample.mask].sum()))
            push = float((sample.weights * sample.advantages)[sample.mask].sum())
            gradient += min(ratio, CAP) * push * (chosen - shares)
        self.logits = self.logits + self.rate * gradient
        return {"tokens_trained": trained, "tokens_zero_advantage": zero, "logprob_diff_mean": 0.0}

    async def publish(self) -> int:
        self.engine.version += 1
        return self.engine.version

    def save(self, path: Path) -> None:
        path.mkdir()
        (path / "table.json").write_text(json.dumps([self.version, *self.logits]))

    def load(self, path: Path) -> None:
        self.engine.version, *logits = json.loads((path / "table.json").read_text())
        self.logits = np.array(logits)


# ------------------------------------------------------------------ runs


def trained(where: Path, judge: Judge, table: Table, steps: int, resume: Path | None = None) -> Path:
    """Train, or go on with a run folder."""
    job = where / "job.yaml"
    job.write_text(
        json.dumps(
            {
                "task": {"reader": str(where / "tasks.jsonl")},
                "workflow": f"{FILE}:answer",
                "judge": f"{FILE}:{judge.__name__}",
                "model": "starter",
                "rollout": {"group_size": 8},
                "train": {
                    **{"steps": steps, "batch_size": 2, "save_every": 1, "keep_last": steps},
                    **{"correction": "truncated", "correction_cap": CAP, "max_staleness": STALE},
                },
                "run": {"dir": str(where / "runs")},
            }
        )
    )
    given = {"resume": resume, "steps": steps} if resume else {"job": job}
    with shown_or_not(False) as lines, prepared(job_of(given), lines, None, resume) as ready:
        train_job(ready, table)
        assert lines.run_dir
        return lines.run_dir


def first_wrong(run: Path, judge: Judge) -> int | None:
    """By arithmetic over the journal: the first step in which an answer was pushed, and not the way that the judge says."""
    groups: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for each in ajet.load_run(run).episodes():
        if each.phase == "train":
            true = judge(ajet.Task(each.task), ajet.WorkflowOutput(response=each.response))
            groups.setdefault((each.step, each.id.rpartition("/")[0]), []).append((each.reward, true))
    wrong = [
        step
        for (step, _), rewards in groups.items()
        if any(was and was != now for was, now in zip(*map(_signs, zip(*rewards, strict=True)), strict=True))
    ]
    return min(wrong, default=None)


def _signs(rewards: Sequence[float]) -> list[int]:
    mean = statistics.fmean(rewards)
    return [(reward > mean) - (reward < mean) for reward in rewards]


def reached(run: Path, after: int) -> tuple[int, int | None, int]:
    """The tokens that were sampled after a step until the last three have the target on average, that step, and the episodes that were
    taken over instead of sampled."""
    recorded = read_run(run)
    steps: dict[int, list[Any]] = {}
    for entry in recorded.entries:
        if entry.phase == "train" and entry.step > after:
            steps.setdefault(entry.step, []).append(entry)
    tokens, taken, means = 0, 0, []
    for step, entries in sorted(steps.items()):
        own = [entry for entry in entries if "parent" not in recorded.line(entry)]
        tokens, taken = tokens + sum(entry.sampled for entry in own), taken + len(entries) - len(own)
        means.append(statistics.fmean(entry.reward for entry in entries))
        if len(means) >= 3 and statistics.fmean(means[-3:]) >= TARGET:
            return tokens, step, taken
    return tokens, None, taken


def hole(name: str, options: argparse.Namespace, tokenizer: Any, where: Path) -> dict[str, Any]:
    """What is found of a hole."""
    judge, corrected, found = HOLES[name]
    where.mkdir()
    (where / "tasks.jsonl").write_text(
        "".join(json.dumps({"id": f"t{n}", "query": f"question {n}"}) + "\n" for n in range(TASKS))
    )

    opens = random.Random(f"{options.seed} {name}").randint(4, 14)

    def table(kind: str) -> Table:
        return Table(tokenizer, found, opens, options.rate, f"{options.seed} {name} {kind}")

    run = trained(where, judge, table("run"), opens + AFTER)
    truth = first_wrong(run, corrected)
    rejudged = ajet.rejudge(run, f"{FILE}:{corrected.__name__}", clean=where / "clean", progress=False)
    anew = trained(where, corrected, table("anew"), options.steps)
    whole, last, _ = reached(anew, 0)
    line = {
        "hole": name,
        "truth": truth,
        "named": rejudged.first_wrong_step,
        "false": ajet.rejudge(anew, progress=False).first_wrong_step is not None,
        "anew": last,
        "share": math.nan,
        "audited": False,
        "run": run,
    }
    if truth is not None and rejudged.first_wrong_step == truth:
        clean = where / "clean"
        after = int(json.loads((clean / "parent.json").read_text())["after_step"])
        trained(where, corrected, table("on"), options.steps, clean)
        on, line["on"], line["taken"] = reached(clean, after)
        line["audited"] = not Audit(Folder(clean)).run().faults
        if line["on"] and last:
            line["share"] = on / whole
    return line


# ------------------------------------------------------------------ bisecting, speed


def bisected(seed: int, checkpoints: int = 32) -> tuple[bool, int, int]:
    """Whether a planted regression is found, and with how many evaluations and episodes."""
    chance = random.Random(f"bisect {seed}")
    first = chance.randrange(1, checkpoints + 1)

    def ask(step: int, enough: Enough) -> None:
        while not enough([chance.random() < (0.6 if step >= first else 0.05) for _ in range(8)]):
            pass

    found = Bisection(Path("run"), "t", "must pass", Rates(), Path("bisect"))
    search(found, range(1, checkpoints + 1), ask, lambda text: None)
    right = found.steps == (first - 1, first)
    return right, len(found.evaluated), sum(each.episodes for each in found.evaluated)


def many(run: Path, episodes: int, where: Path) -> Path:
    """A run folder with the episodes of another again and again, in further steps."""
    where.mkdir()
    (where / "job.yaml").write_bytes((run / "job.yaml").read_bytes())
    lines = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    with (where / "episodes.jsonl").open("w") as file:
        for line in _again([line for line in lines if line.get("type") == "episode"], episodes):
            file.write(json.dumps(line) + "\n")
    return where


def _again(lines: Sequence[Mapping[str, Any]], episodes: int) -> Iterator[Mapping[str, Any]]:
    last = max(line["step"] for line in lines)
    for n in range(episodes):
        line = lines[n % len(lines)]
        step = line["step"] + last * (n // len(lines))
        yield {**line, "step": step, "id": f"{step}.{line['id'].partition('.')[2]}"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=float, default=0.6, help="of learning")
    parser.add_argument("--steps", type=int, default=30, help="of each run that starts anew or goes on")
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--few", action="store_true")
    options = parser.parse_args(arguments)
    options.seed = os.environ.get("SEED", "0")
    logging.disable(logging.WARNING)
    from ajet_local.starter.calculator import Calculator

    tokenizer = Calculator().tokenizer(0)[0]
    began, found = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(HOLES):
            line = hole(name, options, tokenizer, Path(folder) / f"hole{number}")
            found.append(line)
            shown = {key: value for key, value in line.items() if key != "run"}
            print(f"{time.monotonic() - began:5.0f} s  {shown}", flush=True)
        episodes = 1000 if options.few else options.episodes
        copied = many(found[0]["run"], episodes, Path(folder) / "many")
        started = time.monotonic()
        judged = ajet.rejudge(copied, correct, progress=False)
        seconds = time.monotonic() - started
        assert judged.changes.episodes == episodes
    cases = [bisected(int(options.seed) * 10 + n) for n in range(10)]
    shares = [line["share"] for line in found if not math.isnan(line["share"])]
    figures = {
        "seed": int(options.seed),
        "found": sum(line["named"] == line["truth"] for line in found if line["truth"] is not None),
        "of": len(found),
        "false": sum(line["false"] for line in found),
        "tokens_share": round(statistics.median(shares), 3) if len(shares) == len(found) else None,
        "audited": sum(line["audited"] for line in found),
        "bisect_right": sum(right for right, _, _ in cases),
        "bisect_evaluations": max(evaluated for _, evaluated, _ in cases),
        "bisect_episodes": statistics.median(episodes for _, _, episodes in cases),
        "steps": {line["hole"]: [line["truth"], line["anew"]] for line in found},
    }
    if not options.few:
        figures |= {"episodes": episodes, "seconds": round(seconds, 1)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
