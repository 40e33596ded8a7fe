"""What an experienced colleague would say during a run: alarms, told once each, with their remedies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ajet.learning.alarm_history import History
from ajet.learning.alarm_rules import STEP_RULES, VALIDATION_RULES, AlarmRule
from ajet.learning.collapse import CollapseCheck
from ajet.learning.settings import TrainSettings
from ajet.types import AjetError, Metrics

NAMES = (*STEP_RULES, *VALIDATION_RULES)
PREFIX = "alarm/"
"""Of the metrics that say which alarms a step has."""


class StoppedByAlarm(AjetError):
    """An alarm that `run.stop_on` names has ended the run."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Alarm:
    """A rule that holds, when it held first, and on how many steps."""

    name: str
    step: int
    what: str
    remedy: str
    steps: int = 1

    @property
    def line(self) -> str:
        """The alarm in one line."""
        return f"step {self.step}: {self.what}. {self.remedy} (alarm {self.name})"


class Alarms:
    """Follows the steps and validations of a run. The first three arguments are those of `History`."""

    def __init__(
        self,
        shuffled: bool = True,
        on_policy: bool = True,
        corrected: bool = False,
        stop_on: Collection[str] = (),
    ) -> None:
        self.stop_on = stop_on
        self.found: dict[str, Alarm] = {}
        """The alarms of the run, by name."""
        self._history = History(shuffled, on_policy, corrected)

    @classmethod
    def of(cls, settings: TrainSettings, *, shuffled: bool = True, stop_on: Collection[str] = ()) -> Alarms:
        """The alarms of a run with these settings."""
        return cls(shuffled, not settings.asynchronous, settings.correction == "truncated", stop_on)

    @property
    def collapse(self) -> CollapseCheck:
        """Whether the rewards have collapsed."""
        return self._history.collapse

    def step(self, step: int, metrics: Metrics) -> list[Alarm]:
        """The alarms that were not raised before. Adds to the metrics those that the step has."""
        self._history.add(step, metrics)
        return self._raised(step, STEP_RULES, metrics)

    def validation(self, step: int, metrics: Metrics) -> list[Alarm]:
        """The alarms that a validation raises for the first time."""
        self._history.validations.append((step, metrics))
        return self._raised(step, VALIDATION_RULES, {})

    def replay(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Follow the recorded metrics of a run that goes on, or has ended."""
        for line in lines:
            numbers = {k: v for k, v in line.items() if isinstance(v, int | float)}
            if line["type"] == "train":
                self.step(int(line["step"]), numbers)
            elif line["type"] == "validation":
                self.validation(int(line["step"]), numbers)

    def stops(self, raised: Iterable[Alarm]) -> bool:
        """Whether one of these alarms is to end the run."""
        return any(alarm.name in self.stop_on for alarm in raised)

    def stop(self, raised: Iterable[Alarm]) -> None:
        """Raise StoppedByAlarm if one of these alarms is to end the run."""
        for alarm in raised:
            if alarm.name in self.stop_on:
                raise StoppedByAlarm(f"run.stop_on has ended the run at {alarm.line}")

    def _raised(self, step: int, rules: Mapping[str, AlarmRule], metrics: Metrics) -> list[Alarm]:
        new = []
        for name, rule in rules.items():
            if not (what := rule.holds(self._history)):
                continue
            metrics[PREFIX + name] = 1.0
            if name in self.found:
                before = self.found[name]
                self.found[name] = Alarm(name, before.step, before.what, before.remedy, before.steps + 1)
            else:
                self.found[name] = Alarm(name, step, what, rule.remedy)
                new.append(self.found[name])
        return new


def describe(alarms: Iterable[Alarm]) -> Iterator[str]:
    """A line for each alarm of a run that has ended."""
    for alarm in alarms:
        held = f", on {alarm.steps} steps" if alarm.steps > 1 else ""
        yield f"{alarm.name} from step {alarm.step}{held}: {alarm.what}. {alarm.remedy}."
