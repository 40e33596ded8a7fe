"""The case of a bisection: a task, and a judge that an episode of it should pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ajet import ConfigError, EpisodeView, GroupJudge, Judge, JudgeOutput, Task, WorkflowOutput
from ajet.api.jobs import AnyJudge
from ajet.interfaces.helpers import nearest
from ajet.reports.folder import RecordedRun

PASSES = 0.5
"""The reward from which an episode passes."""


class Occurs(Judge):
    """Passes an episode whose response, answers or tool calls have a text; if it is not ``wanted``, one whose have it not."""

    name = "occurs"
    text: str
    wanted: bool = True

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        """1 if it passes, else 0."""
        said = [output.response, *(chat[-1] for chat in episode.messages if chat)]
        occurs = any(self.text in text for text in _texts(said))
        return JudgeOutput(float(occurs == self.wanted))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            if name != "role":
                yield from _texts(part)
    elif isinstance(value, Sequence):
        for part in value:
            yield from _texts(part)


def check_of(judge: AnyJudge | None, must: str | None, must_not: str | None) -> AnyJudge:
    """The judge of a case, of which one is given. Raises ConfigError."""
    given = [each for each in (judge, must, must_not) if each is not None]
    if len(given) != 1 or "" in (must, must_not):
        raise ConfigError(
            "judge=, must= or must_not=",
            "name one: a judge that passes what is right, a text that must occur, or one that must not.",
        )
    if judge is not None:
        return judge
    return Occurs(text=str(given[0]), wanted=must is not None)


def said_of(judge: Judge) -> str:
    """In words what an episode must do."""
    if isinstance(judge, Occurs):
        return f"must {'' if judge.wanted else 'not '}contain {judge.text!r}"
    return "must pass the judge"


def check_judge(judge: Judge) -> None:
    """Raise ConfigError for one that compares episodes."""
    if isinstance(judge, GroupJudge):
        raise ConfigError(
            "judge=",
            "compares the episodes of a group, but a case needs a verdict on each. Name another judge.",
        )


def recorded_task(run: RecordedRun, name: str) -> Task:
    """A task of a run with its id, or a unique part of it, as the journal has it, which may be the id alone. Raises ConfigError."""
    ids = list(dict.fromkeys(entry.task for entry in run.entries))
    fits = [each for each in ids if each == name] or [each for each in ids if name in each]
    if not ids:
        raise ConfigError(f"{run.dir}: no episode has been recorded, so it is not known which tasks it has.")
    if len(fits) != 1:
        few = f"{len(fits)} tasks have this in their id" if fits else f"no such task{nearest(name, ids)}"
        raise ConfigError(f"task= {name}", f"{few}. The run has {', '.join(ids[:5])}{', …' * (len(ids) > 5)}")
    entry = next(each for each in run.entries if each.task == fits[0])
    return run.episode(entry).plan.task
