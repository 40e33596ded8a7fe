"""`ajet.rejudge`: what `ajet rejudge` does, with objects in place of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ajet import ConfigError
from ajet.backbones import (
    JOURNAL,
    AnyJudge,
    AnyPath,
    JobParts,
    anywhere,
    awaitable,
    build_judge,
    find_run,
    import_from_here,
    job_layers,
    lay_object,
    read_run,
    run_credit,
    shown_or_not,
)
from ajet.interfaces.progress import Progress
from ajet_rejudge import clean as clean_folder
from ajet_rejudge.changes import Changes
from ajet_rejudge.credit import Crediting, crediting
from ajet_rejudge.judging import Judged, Judging, judged_steps
from ajet_rejudge.report import FILE, line_of, page, write


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
        found = self.changes.first_wrong
        return found.step if found else None

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


def judged_anew(path: Path, judge: Any, progress: Progress, clean: Path | None = None) -> Changes:
    """What changes in a run; ``clean`` as in `rejudge`. Raises AjetError."""
    import_from_here()
    folder = find_run(path)
    for name in (JOURNAL, "job.yaml"):
        if (folder / name).is_symlink():
            raise ConfigError(
                f"{folder / name}", "is a link, which is not followed. Name the run folder itself."
            )
    if not (folder / "job.yaml").is_file():
        raise ConfigError(f"{folder}", "has no job.yaml, so it is not known how its episodes were judged.")
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
            found = None
            if isinstance(known, Crediting) and step[0].entry.phase == "train":
                found = known.of(step)
            changes.add(step, found)
            file.extend(line_of(each, found.push.get(each.entry.id) if found else None) for each in step)
            verdicts.extend(each.without_record() for each in step)
            progress.episodes("rejudge", len(file), len(run.entries))

        judged_steps(Judging(run, built, config.rollout, unjudged, progress.say), ended)
    write(folder, file)
    if clean is not None and (wrong := changes.first_wrong):
        changes.clean = clean, clean_folder.begin(clean, run, spec, verdicts, wrong.step)
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
