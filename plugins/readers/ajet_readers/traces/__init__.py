"""Tasks from recorded LLM calls of a program in production, with its users' feedback on the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from ajet import ConfigError, Task
from ajet.interfaces.progress import current_progress
from ajet.interfaces.reader import SelectingReader

if TYPE_CHECKING:  # loaded only when used, so that `ajet --help` stays fast
    from ajet_readers.traces.trace import CallTrace


class Traces(SelectingReader):
    """One task per trace: the user's question in its first call. Tasks are in order of time.

    Reads a file or a folder of files: AgentScope Studio's database, OpenTelemetry spans of generative AI (OTLP JSON,
    or one span per line), trajectories in ATIF, and logs of OpenAI's APIs. The task's ``metadata`` contains the
    ``response``, the names of the ``tools`` that were called, ``feedback`` (score from 0 to 1, comments) and,
    depending on ``answers``, an ``answer``; from Studio also the ``project`` and the name of the ``run``.
    """

    name = "traces"

    path: Path = Field(description="A file, or a folder of files.")
    format: Literal["studio", "otel", "atif", "openai"] | None = Field(
        None, description="studio, otel, atif or openai; default: detected from each file's content."
    )
    feedback: Path | None = Field(
        None,
        description="Further feedback, one JSON object per line: trace_id (or span_id, …) and score, thumbs, …",
    )
    scale: tuple[float, float] = Field(
        (0.0, 1.0), description="The worst and the best score, if they are not 0 and 1."
    )
    answers: Literal["liked", "all", "none"] = Field(
        "liked",
        description="Which responses become the task's `answer`: those with a score of at least 0.5, all, or none. "
        "A user's correction always becomes the answer.",
    )
    filters: tuple[dict[str, Any], ...] = Field(
        (),
        description="Filters that select traces, applied in order: {type: succeeded, feedback, length, pattern, near_duplicates "
        "or llm, …}.",
    )
    cache: Path = Field(Path(".ajet/traces"), description="Folder that stores models' answers.")

    @model_validator(mode="after")
    def _scale_is_one(self) -> Self:
        if self.scale[0] == self.scale[1]:
            raise ValueError("scale: the worst and the best score are the same")
        return self

    @field_validator("filters")
    @classmethod
    def _are_filters(cls, filters: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        if filters:
            from ajet_readers.traces.filters import build_filters

            build_filters(filters)
        return filters

    def source(self) -> Iterator[Task]:
        """The traces that pass the filters. Raises ConfigError that names the file and the part that cannot be read."""
        from ajet_readers.traces.feedback import read_feedback_file
        from ajet_readers.traces.sources import read_traces
        from ajet_readers.traces.trace import assemble, with_feedback

        contents = read_traces(self.path, self.format, self.scale)
        added = [] if self.feedback is None else list(read_feedback_file(self.feedback, self.scale))
        traces = assemble(with_feedback(contents, added))
        known = {name for trace in traces for name in trace.names}
        if unmatched := sum(names.isdisjoint(known) for names, _ in added):
            current_progress().say(
                f"{self.feedback}: {unmatched} of {len(added)} lines match no trace that was read"
            )
        if contents.others:
            current_progress().say(
                f"{self.path}: records that are not chats, and are left out: {contents.others}"
            )
        found, traces = len(traces), [trace for trace in traces if trace.query]
        if not traces:
            raise ConfigError(
                f"{self.path}: no trace contains a user's question. Does the exporter record the messages' content?"
            )
        yield from map(self._task, self._chosen(traces, found))

    def _chosen(self, traces: list[CallTrace], found: int) -> Sequence[CallTrace]:
        from ajet import AnswerStore
        from ajet_readers.traces.filters import build_filters

        counts = [f"{found} traces", *([f"with a question {len(traces)}"] if len(traces) < found else ())]
        with AnswerStore(self.cache / "answers.sqlite", exclusive=True) as journal:
            for trace_filter in build_filters(self.filters):
                traces = trace_filter.keep(traces, journal)
                counts.append(f"{trace_filter.type} {len(traces)}")
        current_progress().say(f"traces: {' → '.join(counts)}")
        return traces

    def _task(self, trace: CallTrace) -> Task:
        metadata: dict[str, Any] = {"trace": trace.id, "response": trace.response}
        if trace.calls[0].model:
            metadata["model"] = trace.calls[0].model
        program = trace.calls[0].program
        known = {"project": program.project, "run": program.run, "tools": trace.tools}
        metadata |= {name: value for name, value in known.items() if value}
        if trace.feedback:
            comments = [f.comment for f in trace.feedback if f.comment]
            metadata["feedback"] = {"score": trace.score, "comments": comments}
        liked = self.answers == "all" or (self.answers == "liked" and (trace.score or 0.0) >= 0.5)
        answer = trace.correction or (trace.response if liked else "")
        if answer:
            metadata["answer"] = answer
        history = trace.history if len(trace.history) > 1 else ()
        return Task(id=f"trace-{trace.id}", query=trace.query, messages=history, metadata=metadata)
