"""`ajet.rejudge` and `ajet.bisect`: what the commands of these names do, with objects in place of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ajet import ConfigError
from ajet.api.calling import anywhere, awaitable
from ajet.api.jobs import AnyJudge, AnyPath, shown_or_not
from ajet.interfaces.progress import Progress
from ajet.job.layers import import_from_here, job_layers
from ajet.job.objects import lay_object
from ajet.job.parts import JobParts, build_judge
from ajet.reports.credit import run_credit
from ajet.reports.folder import find_run, read_run
from ajet.rollout.recorder import JOURNAL
from ajet.runs.jobs import job_of, prepared
from ajet_rejudge import clean as clean_folder
from ajet_rejudge.bisecting import Bisection, Rates, bisected
from ajet_rejudge.case import check_judge, check_of, recorded_task
from ajet_rejudge.changes import Changes
from ajet_rejudge.credit import Crediting, crediting
from ajet_rejudge.judging import Judged, Judging, judged_steps
from ajet_rejudge.report import FILE, bisection_page, line_of, page, write


class Rejudged:
    """What `ajet.rejudge` found. Printed, it is the page that the command prints."""

    def __init__(self, changes: Changes) -> None:
        self.changes = changes
        self.file = changes.run / FILE
        """Has a line for each episode."""

    @property
    def changed(self) -> int:
        """How many verdicts are others."""
        return self.changes.changed

    @property
    def first_wrong_step(self) -> int | None:
        """The first step that trained a token with an advantage of the wrong sign; None if no step did."""
        first = self.changes.first_wrong
        return first.step if first else None

    def as_dict(self) -> Mapping[str, Any]:
        """All figures, as `ajet rejudge --json` prints them."""
        return self.changes.as_dict()

    def __str__(self) -> str:
        return page(self.changes)

    def __repr__(self) -> str:
        return f"<Rejudged {self.changes.changed} of {self.changes.episodes} verdicts change, first wrong step {self.first_wrong_step}>"


@anywhere
def rejudge(
    run: AnyPath, judge: AnyJudge | None = None, *, clean: AnyPath | None = None, progress: bool = True
) -> Rejudged:
    """Judge the recorded episodes of a run anew, as `ajet rejudge` does: from its folder alone, without running the agent or asking a
    model.

    ``run`` is a run folder, or a folder of runs, whose newest one is meant. ``judge`` is the corrected judge; by default that of the
    run's job, as it is now. The verdicts are written to ``rejudged.jsonl`` in the run folder. ``clean`` is a new run folder to write,
    with which `ajet.run(resume=…)` goes on from before the first wrong update. Raises AjetError.
    """
    folder = None if clean is None else Path(clean).expanduser()
    with shown_or_not(progress) as lines:
        return Rejudged(judged_anew(Path(run).expanduser(), judge, lines, folder))


arejudge = awaitable(rejudge)


class Bisected:
    """What `ajet.bisect` found. Printed, it is the page that the command prints."""

    def __init__(self, found: Bisection) -> None:
        self.found = found

    @property
    def steps(self) -> tuple[int, int] | None:
        """The step after which the behaviour is not there yet, and the one after which it is; None if no step of the run taught it."""
        return self.found.steps

    @property
    def episodes(self) -> Sequence[str]:
        """The ids of the episodes between these steps that show the behaviour and were rewarded."""
        return [name for group in self.found.groups for name in group.rewarded]

    def as_dict(self) -> Mapping[str, Any]:
        """All figures, as `ajet bisect --json` prints them."""
        return self.found.as_dict()

    def __str__(self) -> str:
        return bisection_page(self.found)

    def __repr__(self) -> str:
        return f"<Bisected steps {self.steps}, {len(self.found.evaluated)} models evaluated>"


@anywhere
def bisect(
    run: AnyPath,
    task: str,
    judge: AnyJudge | None = None,
    *,
    must: str | None = None,
    must_not: str | None = None,
    rare: float = 0.1,
    often: float = 0.5,
    error: float = 0.05,
    episodes: int = 64,
    progress: bool = True,
) -> Bisected:
    """Find the checkpoint of a run that first fails a check, as `ajet bisect` does, and the episodes that were rewarded for it.

    ``run`` is a run folder, or a folder of runs, whose newest one is meant. ``task`` is the id of one of its tasks, or a unique
    part of it. The check is a ``judge``, which passes an episode with a reward of 0.5 or more, a text that an answer ``must``
    have, or one that it ``must_not``. A checkpoint fails if it fails in at least ``often`` of its episodes, and passes if it
    does in at most ``rare``; if each is one of both, ``error`` is the highest probability that a verdict is wrong. ``episodes``
    are the most of one checkpoint. Raises AjetError.
    """
    check, rates = check_of(judge, must, must_not), Rates(rare, often, error, episodes)
    with shown_or_not(progress) as lines:
        return Bisected(bisected_run(Path(run).expanduser(), task, check, rates, lines))


abisect = awaitable(bisect)


def bisected_run(path: Path, task: str, check: AnyJudge, rates: Rates, progress: Progress) -> Bisection:
    """What a bisection of a run finds. Raises AjetError."""
    import_from_here()
    rates.check()
    run = read_run(_own_folder(path))
    named = recorded_task(run, task)
    is_whole = bool(named.query or named.messages or named.metadata)
    # Nothing is trained, so no backbone is needed.
    layers = job_of(
        {"job": run.dir / "job.yaml"}, {"backbone": "debug", "task.validation": None}, "ajet bisect"
    )
    unjudged = not layers.values.get("judge")
    lay_object(layers, "judge", check, "judge=")
    with prepared(layers, progress, read_tasks=not is_whole) as job:
        check_judge(job.judge)
        whole = named if is_whole else next((each for each in job.tasks if each.id == named.id), None)
        if whole is None:
            raise ConfigError(
                f"task= {task}",
                f"the journal has only the id of {named.id}, and the job's tasks have none with this id.",
            )
        return bisected(job, run, whole, rates, unjudged=unjudged)


def judged_anew(path: Path, judge: Any, progress: Progress, clean: Path | None = None) -> Changes:
    """What changes in a run; ``clean`` as in `rejudge`. Raises AjetError."""
    import_from_here()
    folder = _own_folder(path)
    layers = job_layers(folder / "job.yaml")
    unjudged = not layers.values.get("judge")
    if unjudged and judge is None:
        raise ConfigError(
            "judge=", "is missing: the workflow of this run gave its rewards. Name the judge to judge by."
        )
    if judge is not None:
        lay_object(layers, "judge", judge, "judge=")
    run = read_run(folder)
    with layers.located():
        config, built = layers.job(), build_judge(layers)
        spec = JobParts(layers).spec("judge", config.judge, "judge")
        if clean is not None:
            clean_folder.check(clean, spec)
        adapters = [name for name, target in config.targets.items() if target.lora]
        seed, credit = config.run.seed, run_credit(run)
        known = crediting(run, credit, config.train, seed, adapters)
        changes = Changes(folder)
        file: list[str] = []
        verdicts: list[Judged] = []

        def ended(step: Sequence[Judged]) -> None:
            of_step = None
            if isinstance(known, Crediting) and step[0].entry.phase == "train":
                of_step = known.of(step)
            changes.add(step, of_step)
            file.extend(line_of(each, of_step.push.get(each.entry.id) if of_step else None) for each in step)
            verdicts.extend(each.without_record() for each in step)
            progress.episodes("rejudge", len(file), len(run.entries))

        judged_steps(Judging(run, built, config.rollout, unjudged, progress.say), ended)
    write(folder, file)
    if clean is not None and (wrong := changes.first_wrong):
        changes.clean = (
            clean,
            clean_folder.begin(
                clean, run, spec, verdicts, wrong.step, config.train, config.rollout.group_size
            ),
        )
    elif clean is not None:
        changes.notes.append(f"there is nothing to go back from, so {clean} was not written")
    if isinstance(known, str):
        changes.notes.append(f"signs of advantages are not known: {known}")
    else:
        changes.notes += credit.notes
    other = [each.step for each in changes.steps if each.credit and not each.credit.as_recorded]
    if other:
        changes.notes.append(
            f"in {len(other)} steps, the first of them {other[0]}, the recorded rewards do not give the advantages that were "
            "trained, so their signs are not certain"
        )
    return changes


def _own_folder(path: Path) -> Path:
    """The run folder that a path names. Raises ConfigError if its journal or job are links, or it has no job."""
    folder = find_run(path)
    for name in (JOURNAL, "job.yaml"):
        if (folder / name).is_symlink():
            raise ConfigError(
                f"{folder / name}", "is a link, which is not followed. Name the run folder itself."
            )
    if not (folder / "job.yaml").is_file():
        raise ConfigError(f"{folder}", "has no job.yaml, so it is not known how its episodes were judged.")
    return folder
