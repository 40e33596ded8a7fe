"""The judge `openai_grader`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from ajet import (
    ConfigError,
    Endpoint,
    EndpointClient,
    EndpointUsage,
    EpisodeView,
    Judge,
    JudgeOutput,
    Task,
    WorkflowOutput,
)
from ajet_judges.endpoint import Asker
from ajet_judges.openai.formula import Formula
from ajet_judges.openai.graders import (
    Grader,
    LabelModel,
    Multi,
    Python,
    ScoreModel,
    StringCheck,
    TextSimilarity,
    parts,
)
from ajet_judges.openai.models import GraderEndpoint, ModelQuestion
from ajet_judges.openai.python import GraderFailed, python_score
from ajet_judges.openai.similarity import check_available, similarity
from ajet_judges.openai.templates import (
    NotInSample,
    filled,
    first_lacking,
    holds_null,
    names_in,
    texts_in,
)
from ajet_judges.questions import MalformedVerdict
from ajet_judges.sandbox import Isolation, Limits
from ajet_judges.text import response_text


@dataclass(frozen=True, slots=True)
class _Grade:
    score: float
    faults: tuple[str, ...] = ()
    """Why a score is 0 though nothing was graded, in the words of OpenAI's grader errors."""
    usage: EndpointUsage = field(default_factory=EndpointUsage)


class OpenAIGrader(Judge):
    """The score of a grader of OpenAI's fine-tuning: string_check, text_similarity, score_model, label_model, python, multi.

    Its templates read the task's record ({{item.NAME}}: metadata, and `messages`) and the answer: {{sample.output_text}} is the
    response, {{sample.output_json.NAME}} the response if it is JSON, {{sample.output_tools[0].function.name}} the tool calls of the
    last recorded call. As at OpenAI, an answer without what a template names, a python grader that fails and a formula
    without a value score 0; the metrics count these. What a record lacks is an error. An episode without a response scores 0.
    """

    name = "openai_grader"

    grader: Grader = Field(description="The grader, as in the job of OpenAI's API: {type: string_check, …}.")
    endpoint: GraderEndpoint | None = Field(
        None, description="Where score_model and label_model graders ask their models."
    )
    embeddings: Endpoint | None = Field(
        None, description="Where the metric cosine gets embeddings; OpenAI's are of text-embedding-3-large."
    )
    limits: Limits = Field(
        Limits(seconds=120, cpu_seconds=240, memory=2048, files=1024),
        description="Limits of one run of a python grader; default: OpenAI's.",
    )
    isolation: Isolation = Field(
        "full",
        description="full: Linux namespaces, or an error without them; limits: python graders can read your files.",
    )
    concurrency: int = Field(4, ge=1, description="Maximum concurrent runs of python graders.")
    _live: _OpenGraders | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        for grader in parts(self.grader):
            if isinstance(grader, ScoreModel | LabelModel) and self.endpoint is None:
                raise ValueError(
                    f"{grader.type} asks a model: name its `endpoint`, such as {{base_url: http://127.0.0.1:8000/v1, model: judge}}"
                )
            if (
                isinstance(grader, TextSimilarity)
                and grader.evaluation_metric == "cosine"
                and not self.embeddings
            ):
                raise ValueError("the metric cosine needs `embeddings`, an endpoint of an embedding model")
            if isinstance(grader, TextSimilarity) and grader.evaluation_metric != "cosine":
                try:
                    check_available(grader.evaluation_metric)
                except ConfigError as error:
                    raise ValueError(str(error)) from None
        return self

    def lacking(self, record: Mapping[str, Any]) -> str | None:
        """The first field that a template names and a task's record lacks, such as ``item.answer``."""
        fields = ("input", "reference")
        texts = (
            text for grader in parts(self.grader) for text in texts_in(grader.model_dump(include={*fields}))
        )
        return next((lacks for text in texts if (lacks := first_lacking(text, record))), None)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Keep clients open and limit concurrent runs while a job runs."""
        async with super().open(), AsyncExitStack() as stack:
            asker = await stack.enter_async_context(self.endpoint.open()) if self.endpoint else None
            embedder = await stack.enter_async_context(self.embeddings.calling()) if self.embeddings else None
            self._live = _OpenGraders(self, asker, embedder, asyncio.Semaphore(self.concurrency))
            try:
                yield self
            finally:
                self._live = None

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        if self._live is None:
            async with self.open():
                return await self.judge(task, output, episode)
        if output.response is None:
            return JudgeOutput(0.0, False, {"no_response": 1.0})
        values = {
            "item": {**task.metadata, "messages": list(task.messages)},
            "sample": sample_of(output, episode),
        }
        scores: dict[str, float] = {}
        grader = self.grader
        if isinstance(grader, Multi):
            grades = await asyncio.gather(*(self._live.grade(g, values) for g in grader.graders.values()))
            scores = {name: grade.score for name, grade in zip(grader.graders, grades, strict=True)}
            whole = _combined(grader, scores)
            usage = sum((grade.usage for grade in grades), EndpointUsage())
            whole = replace(
                whole, faults=(*(f for grade in grades for f in grade.faults), *whole.faults), usage=usage
            )
        else:
            whole = await self._live.grade(grader, values)
        faults = {fault: float(whole.faults.count(fault)) for fault in whole.faults}
        usage_of_models = whole.usage.metrics() if self.endpoint else {}
        return JudgeOutput(
            whole.score, _success(grader, whole.score), {**scores, **faults, **usage_of_models}
        )


def sample_of(output: WorkflowOutput, episode: EpisodeView) -> dict[str, Any]:
    """What graders see of an answer: the response, and the tool calls of the last recorded call."""
    text = response_text(output)
    said = episode.messages[-1][-1] if episode.messages and episode.messages[-1] else {}
    calls = list(said.get("tool_calls") or ())
    message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    reason = "tool_calls" if calls else "stop"
    sample = {
        "output_text": text,
        "output_tools": calls,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
    }
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return sample
    return {**sample, "output_json": parsed} if isinstance(parsed, dict | list) else sample


def _combined(grader: Multi, scores: Mapping[str, float]) -> _Grade:
    try:
        return _Grade(Formula(grader.calculate_output, grader.graders)(scores))
    except (ArithmeticError, ValueError):
        return _Grade(0.0, ("formula_error",))


def _success(grader: Grader, score: float) -> bool | None:
    if grader.pass_threshold is not None:
        return score >= grader.pass_threshold
    return score == 1 if isinstance(grader, StringCheck | LabelModel) else None


@dataclass(frozen=True, slots=True)
class _OpenGraders:
    """What an open judge grades with."""

    judge: OpenAIGrader
    asker: Asker | None
    embedder: EndpointClient | None
    slots: asyncio.Semaphore

    async def grade(self, grader: Any, values: Mapping[str, Any]) -> _Grade:
        """The grade of a single grader."""
        try:
            if isinstance(grader, StringCheck):
                text, reference = filled(grader.input, values), _reference(grader, values)
                return _Grade(float(_holds(grader.operation, text, reference)))
            if isinstance(grader, TextSimilarity):
                return _Grade(await self._similarity(grader, values))
            if isinstance(grader, Python):
                async with self.slots:
                    return _Grade(await python_score(grader, values, self.judge.limits, self.judge.isolation))
            return await self._asked(grader, values)
        except NotInSample:
            return _Grade(0.0, ("sample_parse_error",))
        except GraderFailed:
            return _Grade(0.0, ("python_grader_runtime_error",))
        except MalformedVerdict:
            return _Grade(0.0, ("model_grader_parse_error",))

    async def _similarity(self, grader: TextSimilarity, values: Mapping[str, Any]) -> float:
        text, reference = filled(grader.input, values), _reference(grader, values)
        if grader.evaluation_metric != "cosine":
            return await asyncio.to_thread(similarity, grader.evaluation_metric, text, reference)
        assert self.embedder
        if not text:  # endpoints refuse to embed nothing
            return 0.0
        one, other = np.array(await self.embedder.embed([text, reference], [text, reference]))
        return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))

    async def _asked(self, grader: ScoreModel | LabelModel, values: Mapping[str, Any]) -> _Grade:
        assert self.asker and self.judge.endpoint
        question = ModelQuestion.about(grader, self.judge.endpoint.model or grader.model, values)
        graded, usage = await self.asker.ask(question)
        return _Grade(graded.score, (), usage)


def _reference(grader: StringCheck | TextSimilarity, values: Mapping[str, Any]) -> str:
    """What an answer is compared with. Nothing is contained in any text and equals nothing, so a template must stand for something:
    raises ValueError if the task's record has nothing there, or null, and NotInSample if the answer has nothing."""
    reference = filled(grader.reference, values)
    sources = {namespace for namespace, _ in names_in(grader.reference)}
    if "item" in sources and (not reference.strip() or holds_null(grader.reference, values["item"])):
        raise ValueError(
            f"the task's record has nothing in {grader.reference}, with which the grader compares"
        )
    if sources and not reference.strip():
        raise NotInSample(grader.reference)
    return reference


def _holds(operation: str, text: str, reference: str) -> bool:
    if operation == "like":
        return reference in text
    if operation == "ilike":
        return reference.casefold() in text.casefold()
    return (text == reference) == (operation == "eq")
