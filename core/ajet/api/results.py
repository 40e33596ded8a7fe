"""What calls of the API return: figures, episodes and files of a run folder, read when they are asked for."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ajet.reports.folder import Entry, find_run, read_run
from ajet.reports.folder import RecordedRun as Folder
from ajet.reports.recording import record
from ajet.reports.run_list import RunLine, describe_runs, run_line, run_table
from ajet.reports.run_list import list_runs as read_lines
from ajet.reports.run_summary import step_curves
from ajet.reports.token_text import TokenText
from ajet.reports.verdict import RunVerdict, verdict_of
from ajet.rollout.checkpoints import checkpoints
from ajet.rollout.episode import Episode as Recorded
from ajet.runs.train import recorded_validation
from ajet.tracker import timelines
from ajet.tracker.record import EpisodeRecord
from ajet.types import AjetError, Bool, ConfigError, Float32, Int32, Metrics
from ajet.utils.suggest import nearest

if TYPE_CHECKING:
    from ajet.runs.check import Report

_VALIDATIONS = ("validation", "greedy")


class Scores(Mapping[str, float]):
    """Figures of some episodes by name, such as those of an evaluation. The usual ones are attributes, too."""

    def __init__(self, figures: Metrics) -> None:
        self._figures = dict(figures)

    @property
    def accuracy(self) -> float:
        """Share of the judged episodes that succeeded. Raises AttributeError if the judge says nothing of success."""
        return self._figure(
            "accuracy", "the judge says nothing of success: return a bool or JudgeOutput(is_success=…)"
        )

    @property
    def reward(self) -> float:
        """Mean reward of the judged episodes."""
        return self._figure("reward", "no episode was judged")

    def __getitem__(self, name: str) -> float:
        return self._figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __repr__(self) -> str:
        usual = [name for name in ("accuracy", "reward", "episodes", "episodes_failed") if name in self]
        return f"<{type(self).__name__} {', '.join(f'{name} {self[name]:.4g}' for name in usual) or 'none'}>"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{html.escape(k)}</td><td>{v:.4g}</td></tr>" for k, v in self.items())
        return f"<table>{rows}</table>"

    def _figure(self, name: str, fault: str) -> float:
        if name not in self._figures:
            raise AttributeError(f"{name}: {fault}. There are: {', '.join(self._figures) or 'no figures'}.")
        return self._figures[name]


@dataclass(frozen=True, slots=True, repr=False)
class Timeline:
    """A linear token sequence of an episode. All arrays have the length of ``token_ids``; ``mask`` marks the tokens that
    the model sampled, ``logprobs`` is NaN at all others."""

    token_ids: Int32
    mask: Bool
    logprobs: Float32
    _text_of: TokenText

    @property
    def text(self) -> str:
        """The tokens as text. Raises AjetError where the run folder holds no tokenizer."""
        if self._text_of.missing:
            raise AjetError(f"the text of tokens cannot be told: {self._text_of.missing}.")
        return "".join(piece or "" for piece in self._text_of(self.token_ids.tolist()))

    def __repr__(self) -> str:
        return f"<Timeline {len(self.token_ids)} tokens, {int(self.mask.sum())} sampled>"


class Episode:
    """An episode of a run. What it said and sampled is read from the run folder when it is asked for."""

    def __init__(self, folder: Folder, entry: Entry, text_of: TokenText) -> None:
        self._folder, self._entry, self._text_of = folder, entry, text_of
        self.id: str = entry.id
        self.phase: str = entry.phase
        """What it was run for: train, validation, greedy, debug or check."""
        self.step: int = entry.step
        self.task: str = entry.task
        """The id of its task."""
        self.reward: float = entry.reward
        self.is_success: bool | None = entry.is_success
        self.failure: str | None = entry.failure
        """Why it was not judged: a cause such as "timeout", or None."""
        self.error: str = entry.error
        self.seconds: float = entry.seconds
        self.calls: int = entry.calls
        """How many LLM calls were recorded."""

    @cached_property
    def _recorded(self) -> Recorded:
        return self._folder.episode(self._entry)

    @property
    def response(self) -> Any:
        """What the workflow returned, as it was written into the run folder."""
        return self._recorded.output.response

    @property
    def messages(self) -> list[list[Mapping[str, Any]]]:
        """The chat of each recorded call, its answer last."""
        return [list(chat) for chat in self._recorded.view().messages]

    @property
    def timelines(self) -> list[Timeline]:
        """The token sequences that its calls merge into, those of trained calls first; empty where a chat model answered,
        which gives no tokens."""
        return all_timelines(self._recorded.record, self._text_of)

    def __repr__(self) -> str:
        how = f"failed: {self.failure}" if self.failure else f"reward {self.reward:g}"
        return f"<Episode {self.id}, {how}>"


def all_timelines(record: EpisodeRecord, text_of: TokenText) -> list[Timeline]:
    """The timelines of an episode, those of trained calls first."""
    lines = timelines.all_timelines(record)
    return [Timeline(line.token_ids, line.mask, line.logprobs, text_of) for line in lines]


class Run:
    """A run folder: what was trained, debugged, checked or evaluated there. It is read once, when something is asked for."""

    def __init__(self, dir: Path) -> None:
        self.dir = dir

    @property
    def name(self) -> str | None:
        """The name that it was given."""
        return self._line.name

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that it was given."""
        return self._line.tags

    @property
    def state(self) -> str:
        """live, finished, interrupted or failed."""
        return self._line.state

    @property
    def checkpoint(self) -> Path | None:
        """The last complete checkpoint, None if there is none."""
        return next(reversed(self.checkpoints), None)

    @property
    def checkpoints(self) -> list[Path]:
        """All complete checkpoints that are kept, the last one last."""
        return list(checkpoints(self.dir))

    @property
    def job(self) -> Mapping[str, Any]:
        """The resolved job, as in ``job.yaml``."""
        return self._folder.job

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of each step, in order: a dict with ``step`` and the figures. Those of a validation after the step
        begin with ``validation/``, those of a greedy one with ``validation/greedy_``, as loggers get them."""
        steps = {m["step"]: {k: v for k, v in m.items() if k != "type"} for m in self._lines()}
        for line in self._folder.metrics:
            if line["type"] in _VALIDATIONS and line["step"] in steps:
                prefix = "validation/" if line["type"] == "validation" else f"validation/{line['type']}_"
                figures = {f"{prefix}{k}": v for k, v in line.items() if k not in ("type", "step")}
                steps[line["step"]] |= figures
        return list(steps.values())

    @property
    def before(self) -> Scores:
        """The first validation. Without validation tasks: the figures of the first step's episodes."""
        return self._scores(first=True)

    @property
    def after(self) -> Scores:
        """The last validation. Without validation tasks: the figures of the last step's episodes."""
        return self._scores(first=False)

    @property
    def verdict(self) -> RunVerdict | None:
        """What it has learned beyond chance, which alarms it raised, and what to try next; None if nothing was trained."""
        return verdict_of(self._folder)

    def episodes(self, *, step: int | None = None, phase: str | None = None) -> list[Episode]:
        """The episodes that count, in the order in which they ended. With ``step``: those that were trained in it (or
        debugged, checked); with ``phase``: train, validation, greedy, debug or check."""
        entries = self._folder.entries
        if phase is not None:
            entries = [e for e in entries if e.phase == phase]
        elif step is not None:
            entries = [e for e in entries if e.phase not in _VALIDATIONS]
        text_of = TokenText(self.dir)
        return [Episode(self._folder, e, text_of) for e in entries if step in (None, e.step)]

    def record(self, file: str | os.PathLike[str], episode: str | None = None) -> None:
        """Write a recording of the episodes that count, or of the one whose id is or contains ``episode``. Raises AjetError."""
        folder = self._folder
        entries = folder.entries if episode is None else [folder.find(episode)]
        record(self.dir, map(folder.line, entries)).write(Path(file))

    def plot(self, *names: str) -> Plot:
        """Curves over the steps, for a notebook: of the metrics with these names, by default of the rewards of training and of
        validations. Raises ConfigError for a metric that no step has."""
        if not names:
            return Plot([step_curves(self._folder.metrics)])
        return Plot([{name: self._points(name)} for name in names])

    def _points(self, name: str) -> list[tuple[int, float]]:
        points = [(line["step"], line[name]) for line in self.metrics if name in line]
        if not points:
            known = {name for line in self.metrics for name in line} - {"step"}
            raise ConfigError(
                f"{name}: no such metric{nearest(name, known)}. There are: {', '.join(sorted(known)) or 'none yet'}."
            )
        return points

    def __repr__(self) -> str:
        steps = len([m for m in self._lines() if m["type"] == "train"])
        what = f"{steps} steps" if steps else f"{len(self._folder.entries)} episodes"
        return f"<{type(self).__name__} {self.dir}, {what}>"

    def _repr_html_(self) -> str:
        from ajet.reports.credit import run_credit
        from ajet.reports.html import written
        from ajet.reports.run_summary import summarise

        return _framed(written(summarise(self._folder, run_credit(self._folder)), {}, everything=False), 30)

    @cached_property
    def _folder(self) -> Folder:
        return read_run(self.dir)

    @cached_property
    def _line(self) -> RunLine:
        return run_line(self.dir)

    def _lines(self) -> list[Mapping[str, Any]]:
        return [m for m in self._folder.metrics if m["type"] not in _VALIDATIONS]

    def _scores(self, *, first: bool) -> Scores:
        validation = recorded_validation(self.dir, first=first)
        lines = self._lines()
        if validation or not lines:
            return Scores(validation)
        line = lines[0 if first else -1]
        return Scores({k: v for k, v in line.items() if k not in ("type", "step")})


class Plot:
    """Figures of curves by name. In a notebook: drawn."""

    def __init__(self, figures: Sequence[Mapping[str, Sequence[tuple[int, float]]]]) -> None:
        self.figures = [figure for figure in figures if figure]

    def __repr__(self) -> str:
        return f"<Plot {', '.join(name for figure in self.figures for name in figure) or 'of nothing yet'}>"

    def _repr_html_(self) -> str:
        from ajet.reports.chart import chart
        from ajet.reports.html import document

        return _framed(document(repr(self), map(chart, self.figures)), 20 * max(len(self.figures), 1))


def _framed(page: Iterable[str], height: int) -> str:
    """A page in a frame of its own, ``height`` times as high as a letter."""
    style = f"width:100%;height:{height}em;border:0"
    return f'<iframe sandbox style="{style}" srcdoc="{html.escape("".join(page), quote=True)}"></iframe>'


class Evaluation(Scores):
    """The figures of an evaluation, and its run folder."""

    def __init__(self, figures: Metrics, dir: Path) -> None:
        super().__init__(figures)
        self.dir = dir

    def episodes(self) -> list[Episode]:
        """The episodes, in the order in which they ended."""
        return Run(self.dir).episodes()


class FewEpisodes:
    """A few episodes that were run without training, and ``text``, what the command prints of them."""

    def __init__(self, report: Report, text: str) -> None:
        self.report = report
        self.text = text
        self.dir = report.run_dir

    def episodes(self) -> list[Episode]:
        """The episodes, in the order in which they ended."""
        return Run(self.dir).episodes()

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre style='font-family:monospace'>{html.escape(self.text)}</pre>"


class Check(FewEpisodes):
    """What `ajet.check` found. ``report`` holds the numbers."""

    @property
    def ok(self) -> bool:
        """Whether at least one episode was run and judged: the command's exit code 0."""
        return any(episode.failure is None for episode in self.report.episodes)

    @property
    def warnings(self) -> Sequence[tuple[str, str]]:
        """(what is wrong, what helps), worst first."""
        return self.report.warnings

    def __repr__(self) -> str:
        failed = sum(e.failure is not None for e in self.report.episodes)
        return f"<Check {len(self.report.episodes)} episodes, {failed} failed, {len(self.warnings)} warnings>"


class Runs(Sequence[Run]):
    """The runs of a folder, the newest first. In a notebook: a table."""

    def __init__(self, lines: Sequence[RunLine]) -> None:
        self._lines = lines
        self._runs = [Run(Path(line.run).resolve()) for line in lines]

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Run]: ...
    def __getitem__(self, index: int | slice) -> Run | Sequence[Run]:
        return self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return describe_runs(self._lines) if self._lines else "<Runs: none>"

    def _repr_html_(self) -> str:
        rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in run_table(self._lines)]
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def list_runs(
    path: str | Path = "runs", *, name: str | None = None, tags: Sequence[str] = (), all: bool = False
) -> Runs:
    """The runs in a folder, as `ajet list` shows them. ``name`` keeps those whose own name, or folder's name, contains it, and
    ``tags`` those that have all of them. ``all`` adds checks, evaluations and debug runs. Raises ConfigError if ``path`` is not a
    folder."""
    return Runs(read_lines(Path(path).expanduser(), name=name, tags=tags, everything=all))


def load_run(path: str | Path) -> Run:
    """A run folder, or the newest one in a folder of runs. Raises ConfigError if there is none."""
    return Run(find_run(Path(path).expanduser().resolve()))
