"""Judges the recorded episodes of a run anew, from the run folder alone, and compares what each step then would have taught; and
finds the checkpoint that first shows a behaviour.

    recorded.py  what a judge gets of a recorded episode
    judging.py   asks the judge, step by step
    credit.py    the advantages of a step with the recorded rewards and with the new ones
    changes.py   what has changed: in rewards, tasks, steps and episodes
    clean.py     a run folder that goes on from before the first wrong update
    report.py    the page and the file that say so
    case.py      the task and the check of a bisection
    sequential.py  the test of a checkpoint, and the order in which checkpoints are tested
    bisecting.py evaluates checkpoints, and names the episodes that were rewarded
    checking.py  the line of `ajet check`
    api.py       `ajet.rejudge`, `ajet.bisect`
    commands.py  the commands

`ajet check` tries on its own episodes whether the judge could be asked again.

Advantages and weights are those of the core's own batches, so they are what training would have computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ajet import hookimpl

if TYPE_CHECKING:
    from ajet import Judge


@hookimpl
def ajet_check(judge: Judge, run_dir: Path) -> Iterable[tuple[str, str]]:
    """Whether a later judge would get from the run folder what this one gets."""
    from ajet_rejudge.checking import judged_again

    yield "can be rejudged", judged_again(judge, run_dir)
