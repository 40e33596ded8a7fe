"""The `rubric` judge: which criteria of a rubric a response meets. Rubrics are YAML files that people read and edit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, PrivateAttr, ValidationError, create_model, model_validator

from ajet import ConfigError, EpisodeView, JudgeOutput, Settings, Task, WorkflowOutput
from ajet.interfaces.helpers import read_yaml
from ajet_judges.endpoint import GradingJudge
from ajet_judges.questions import Question, Verdict
from ajet_judges.text import response_text

TAKEN = frozenset({"reason", *dir(BaseModel)})
"""Names that a verdict's fields already use."""
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
INSTRUCTIONS = """You check which criteria a response to a task meets.{about}

Criteria, by name:
{criteria}

Answer true for a criterion that RESPONSE meets, else false. Judge each by itself."""


class Criterion(Settings):
    """One property that a response has or lacks."""

    name: Name
    text: str = Field(min_length=1)
    weight: float = Field(1.0, allow_inf_nan=False)
    """Weight if it is met; negative for what a good response avoids."""


class Rubric(Settings):
    """The properties of a good response to a kind of task."""

    about: str = ""
    """The kind of task, for the judge model and for readers."""
    criteria: tuple[Criterion, ...] = Field(min_length=1)
    learned: Mapping[str, Any] | None = None
    """Figures from `ajet judge learn`; judges ignore them."""

    @model_validator(mode="after")
    def _useful(self) -> Rubric:
        names = [c.name for c in self.criteria]
        twice = next((n for n in names if names.count(n) > 1), None)
        if twice:
            raise ValueError(f"two criteria are called {twice}")
        if used := next((n for n in names if n in TAKEN), None):
            raise ValueError(f"`{used}` cannot be the name of a criterion: a verdict already uses it")
        if not any(c.weight for c in self.criteria):
            raise ValueError("every weight is 0, so all responses would be equal")
        return self

    def reward(self, met: Mapping[str, bool]) -> float:
        """From 0 (only criteria with negative weights are met) to 1 (only those with positive weights)."""
        low = sum(c.weight for c in self.criteria if c.weight < 0)
        high = sum(c.weight for c in self.criteria if c.weight > 0)
        return (sum(c.weight for c in self.criteria if met[c.name]) - low) / (high - low)


def read_rubric(path: Path) -> Rubric:
    """The rubric in a file. Raises ConfigError that names the file, the key and the remedy."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such rubric. `ajet judge learn` makes one, or write it by hand.")
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: not a rubric, which is a mapping with a list `criteria`.")
    try:
        return Rubric(**data)
    except (ValidationError, TypeError) as error:
        raise ConfigError(f"{path}: {_fault(error)}") from None


def write_rubric(path: Path, rubric: Rubric, heading: Sequence[str]) -> None:
    """Write a file for people to read: ``heading`` as comments, one paragraph per criterion."""
    import yaml

    def dump(value: Any) -> str:
        text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
        return text

    lines = [*(f"# {line}" for line in heading), dump({"about": rubric.about}).rstrip(), "", "criteria:"]
    for criterion in rubric.criteria:
        lines += [dump([criterion.model_dump()]).rstrip().replace("\n", "\n  ").replace("- ", "  - ", 1), ""]
    if rubric.learned is not None:
        lines += [dump({"learned": dict(rubric.learned)}).rstrip()]
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _fault(error: ValidationError | TypeError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    fault = error.errors()[0]
    place = ".".join(map(str, fault["loc"])) or "rubric"
    return f"{place}: {fault['msg'].removeprefix('Value error, ')} (found {str(fault['input'])[:80]!r})."


class RubricJudge(GradingJudge):
    """The weighted share of a rubric's criteria that a model finds met. An empty response gets 0 without a request."""

    name = "rubric"

    path: Path = Field(description="YAML file of the rubric; `ajet judge learn` writes one.")
    success: float = Field(0.5, ge=0, le=1, description="Minimum reward of a successful episode.")
    _rubric: Rubric = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Read the rubric now, so that a broken one does not fail in the middle of a run."""
        super().model_post_init(context)
        self._rubric = read_rubric(self.path)

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        response = response_text(output)
        if not response.strip():
            return JudgeOutput(0.0, False)
        verdict, usage = await self.ask(rubric_question(self._rubric, self.about(task), response))
        met = {c.name: getattr(verdict, c.name) for c in self._rubric.criteria}
        reward = self._rubric.reward(met)
        metrics = usage.metrics() | {f"met/{name}": float(value) for name, value in met.items()}
        return JudgeOutput(reward, reward >= self.success, metrics)


def rubric_question(rubric: Rubric, about: dict[str, str], response: str) -> Question[Verdict]:
    """The question whose verdict has a boolean for each criterion."""
    criteria = "\n".join(f"- {c.name}: {c.text}" for c in rubric.criteria)
    about_text = f" The tasks: {rubric.about}" if rubric.about else ""
    fields: dict[str, Any] = {c.name: (bool, ...) for c in rubric.criteria}
    form = create_model("Checked", __base__=Verdict, **fields)
    instructions = INSTRUCTIONS.format(about=about_text, criteria=criteria)
    return Question(instructions, {**about, "RESPONSE": response}, form)
