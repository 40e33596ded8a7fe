"""The fields of OpenAI's graders, as its fine-tuning jobs have them."""

from __future__ import annotations

import ast
import re
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from ajet import Settings
from ajet_judges.openai.formula import Formula
from ajet_judges.openai.templates import Template

Metric = Literal[
    "cosine",
    "fuzzy_match",
    "bleu",
    "gleu",
    "meteor",
    "rouge_1",
    "rouge_2",
    "rouge_3",
    "rouge_4",
    "rouge_5",
    "rouge_l",
]
LONGEST_SOURCE = 256 << 10
"""Bytes of a python grader, as at OpenAI."""
LONGEST_FORMULA = 64 << 10


def _type(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


_BY_TYPE = Discriminator(_type)


class _Named(Settings):
    name: str = Field("", description="Name of the grader.")
    pass_threshold: float | None = Field(None, description="Minimum score of a successful episode.")


class StringCheck(_Named):
    """1 if a text is, is not, or contains the reference, else 0."""

    type: Literal["string_check"]
    input: Template = Field(description="The text.")
    reference: Template = Field(description="What it is compared with.")
    operation: Literal["eq", "ne", "like", "ilike"] = Field(
        description="eq: equal; ne: not equal; like: contains the reference; ilike: contains it in upper or lower case."
    )


class TextSimilarity(_Named):
    """How similar a text is to the reference, from 0 to 1."""

    type: Literal["text_similarity"]
    input: Template = Field(description="The text.")
    reference: Template = Field(description="What it is compared with.")
    evaluation_metric: Metric = Field(description="How similarity is measured.")


class TextPart(Settings):
    """A part of a message: text."""

    type: Literal["input_text", "output_text"]
    text: Template


class ImagePart(Settings):
    """A part of a message: an image."""

    type: Literal["input_image"]
    image_url: Template
    detail: Literal["high", "low", "auto"] | None = None


Part = (
    Template
    | Annotated[
        Annotated[TextPart, Tag("input_text")]
        | Annotated[TextPart, Tag("output_text")]
        | Annotated[ImagePart, Tag("input_image")],
        _BY_TYPE,
    ]
)


class Message(Settings):
    """A message to a model that grades."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Part | tuple[Part, ...]
    type: Literal["message"] | None = None


class SamplingParams(Settings):
    """How a model that grades is sampled."""

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_completions_tokens: int | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None

    def request(self) -> dict[str, Any]:
        """The fields of a chat completions request."""
        given = self.model_dump(exclude_none=True)
        if "max_completions_tokens" in given:
            given["max_completion_tokens"] = given.pop("max_completions_tokens")
        return given


class ScoreModel(_Named):
    """A model's score, inside a range."""

    type: Literal["score_model"]
    input: tuple[Message, ...] = Field(description="The chat that the model gets.", min_length=1)
    model: str = Field(description="Name of the model at the judge's endpoint.")
    range: tuple[float, float] | None = Field(None, description="Scores are cut to it; default: [0, 1].")
    sampling_params: SamplingParams | None = Field(None, description="How the model is sampled.")

    @field_validator("range")
    @classmethod
    def _rises(cls, given: tuple[float, float] | None) -> tuple[float, float] | None:
        if given and not given[0] < given[1]:
            raise ValueError("expected [lowest, highest]")
        return given


class LabelModel(_Named):
    """1 if a model chooses one of the passing labels, else 0."""

    type: Literal["label_model"]
    input: tuple[Message, ...] = Field(description="The chat that the model gets.", min_length=1)
    model: str = Field(description="Name of the model at the judge's endpoint.")
    labels: tuple[str, ...] = Field(description="Labels among which it chooses.", min_length=1)
    passing_labels: tuple[str, ...] = Field(description="Labels that score 1.", min_length=1)
    sampling_params: SamplingParams | None = Field(None, description="How the model is sampled.")

    @model_validator(mode="after")
    def _of_the_labels(self) -> Self:
        if unknown := set(self.passing_labels) - set(self.labels):
            raise ValueError(f"passing_labels: {min(unknown)!r} is not among the labels")
        return self


class Python(_Named):
    """What a function of yours returns: `grade(sample, item)`."""

    type: Literal["python"]
    source: str = Field(description="Python source that defines grade(sample, item).")
    image_tag: str | None = Field(None, description="OpenAI's set of packages: no effect here.")

    @field_validator("source")
    @classmethod
    def _grades(cls, source: str) -> str:
        if len(source.encode()) >= LONGEST_SOURCE:
            raise ValueError(f"must be shorter than {LONGEST_SOURCE >> 10} kB")
        try:
            parsed = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"is not Python ({error})") from None
        names = {n.name for n in parsed.body if isinstance(n, ast.FunctionDef)}
        names |= {
            t.id
            for n in ast.walk(parsed)
            if isinstance(n, ast.Assign)
            for t in n.targets
            if isinstance(t, ast.Name)
        }
        imported = (n for n in parsed.body if isinstance(n, ast.ImportFrom))
        names |= {alias.asname or alias.name for n in imported for alias in n.names}
        if "grade" not in names:
            raise ValueError("defines no function grade(sample, item)")
        return source


_SINGLE = (
    Annotated[StringCheck, Tag("string_check")]
    | Annotated[TextSimilarity, Tag("text_similarity")]
    | Annotated[ScoreModel, Tag("score_model")]
    | Annotated[LabelModel, Tag("label_model")]
    | Annotated[Python, Tag("python")]
)
Single = Annotated[_SINGLE, _BY_TYPE]


class Multi(_Named):
    """A formula over the scores of other graders."""

    type: Literal["multi"]
    graders: dict[str, Single] = Field(
        description="The graders, by the names that the formula uses.", min_length=1
    )
    calculate_output: str = Field(
        description="The formula: + - * / ^, min, max, abs, floor, ceil, exp, sqrt, log.",
        max_length=LONGEST_FORMULA,
    )

    @field_validator("graders", mode="before")
    @classmethod
    def _by_name(cls, graders: Any) -> Any:
        for name, grader in graders.items() if isinstance(graders, dict) else ():
            if not re.fullmatch(r"[A-Za-z_]\w*", str(name)):
                raise ValueError(
                    f"{name!r} is not a name that a formula can use; write letters, digits and _"
                )
            if isinstance(grader, dict) and grader.get("type") == "multi":
                raise ValueError(f"{name}: a multi grader cannot be part of another one")
        return graders

    @model_validator(mode="after")
    def _computes(self) -> Self:
        try:
            Formula(self.calculate_output, self.graders)
        except ValueError as error:
            raise ValueError(f"calculate_output: {error}") from None
        return self


Grader = Annotated[_SINGLE | Annotated[Multi, Tag("multi")], _BY_TYPE]


def parts(grader: Grader) -> list[Any]:
    """The single graders of a grader."""
    return list(grader.graders.values()) if isinstance(grader, Multi) else [grader]
