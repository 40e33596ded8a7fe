"""``ajet data``: files of tasks, written by a model or taken from production traces; feedback as data to learn from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from ajet.cli.options import JobFile, Sets

if TYPE_CHECKING:
    from ajet import Task
    from ajet.job.config import Layers

app = typer.Typer(help="Make files of tasks and of examples.", rich_markup_mode=None, no_args_is_help=True)

Endpoint = Annotated[
    str | None, typer.Option(metavar="URL", help="Base URL of an OpenAI-compatible API, including /v1.")
]
EndpointModel = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the model at the endpoint.")]


@app.command()
def generate(
    job_file: JobFile = None,
    documents: Annotated[
        Path | None, typer.Option(help="A document or a folder of them (.txt, .md, .html, .pdf, .docx).")
    ] = None,
    examples: Annotated[
        Path | None, typer.Option(help="A few tasks to imitate, one JSON object per line.")
    ] = None,
    endpoint: Endpoint = None,
    endpoint_model: EndpointModel = None,
    output: Annotated[Path, typer.Option(help="File to write the tasks to.")] = Path("tasks.jsonl"),
    validation: Annotated[
        Path | None, typer.Option(help="File for held-out tasks, from other parts of the documents.")
    ] = None,
    hold_out: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the material held out for --validation.")
    ] = 0.1,
    sets: Sets = None,
) -> None:
    """Let a model write tasks about documents or in the style of examples, with task.reader of type `generated`."""
    from ajet import ConfigError
    from ajet.interfaces.helpers import check_output
    from ajet.interfaces.reader import NoTasks

    check_output("--output", output)
    if validation is not None:
        check_output("--validation", validation)
        if validation.resolve() == output.resolve():
            raise ConfigError(f"--validation {validation}: is also the file of --output. Name another file.")
    layers = _layers(job_file, "generated")
    _lay(layers, "--documents", "documents", documents)
    _lay(layers, "--examples", "examples", examples)
    _lay(layers, "--endpoint", "model.base_url", endpoint)
    _lay(layers, "--endpoint-model", "model.model", endpoint_model)
    if validation is not None:
        _lay(layers, "--hold-out", "hold_out", hold_out)
        _lay(layers, "--validation", "part", "held_out")
    _set(layers, sets)
    if validation is None:
        print(f"{_write(output, _tasks(layers))} tasks in {output}")
        return
    try:
        held_out = _tasks(layers)
        _lay(layers, "--validation", "part", "train")
        tasks = _tasks(layers)
    except NoTasks:
        part = layers.values["task"]["reader"]["part"]
        raise ConfigError(
            f"--hold-out {hold_out:g}: nothing is left for {'--validation' if part == 'held_out' else '--output'}. "
            "The documents have too few parts; choose another share, or add documents. No answer was lost."
        ) from None
    print(f"{_write(validation, held_out)} tasks in {validation}")
    print(f"{_write(output, tasks)} tasks in {output}")


@app.command()
def from_traces(
    job_file: JobFile = None,
    traces: Annotated[
        Path | None,
        typer.Option(
            help="AgentScope Studio's database, OpenTelemetry exports, trajectories in ATIF or OpenAI logs; or a folder."
        ),
    ] = None,
    feedback: Annotated[
        Path | None,
        typer.Option(help="Users' feedback, one JSON object per line: trace_id, score or thumbs, …"),
    ] = None,
    output: Annotated[Path, typer.Option(help="File that new tasks are added to.")] = Path("tasks.jsonl"),
    sets: Sets = None,
) -> None:
    """Add the tasks of new production traces to a file, with task.reader of type `traces`.

    A task that was added once is not added again, even if you remove its line: OUTPUT.seen records it.
    """
    from ajet.interfaces.helpers import check_output

    check_output("--output", output)
    layers = _layers(job_file, "traces")
    _lay(layers, "--traces", "path", traces)
    _lay(layers, "--feedback", "feedback", feedback)
    _set(layers, sets)
    tasks = _tasks(layers)
    added = _add(output, tasks)
    print(f"{added} new tasks added to {output}; {len(tasks) - added} were there before")


@app.command()
def from_feedback(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A run folder with feedback.jsonl, or a folder of runs: its newest."
        ),
    ],
    examples: Annotated[
        Path | None, typer.Option(help="File for labelled responses: `ajet judge learn --examples FILE`.")
    ] = None,
    transcripts: Annotated[
        Path | None, typer.Option(help="File for corrected and good chats: `ajet sft --transcripts FILE`.")
    ] = None,
    at_least: Annotated[
        float | None,
        typer.Option(
            metavar="RATING", help="Lowest rating of a good chat; default: the best rating there is."
        ),
    ] = None,
) -> None:
    """Write what people said of a run's episodes as data to learn from."""
    from ajet import ConfigError
    from ajet.interfaces.helpers import check_output
    from ajet.reports.folder import find_run, read_run
    from ajet_readers import run_feedback as feedback

    if examples is None and transcripts is None:
        raise ConfigError("--examples FILE or --transcripts FILE is missing; give one of them, or both.")
    for flag, path in (("--examples", examples), ("--transcripts", transcripts)):
        if path is not None:
            check_output(flag, path)
    folder = read_run(find_run(run))
    said = feedback.read_feedback(folder.dir)
    unknown = said.keys() - {entry.id for entry in folder.entries}
    if unknown:
        print(f"{len(unknown)} of {len(said)} rated episodes are not in {folder.dir}, such as {min(unknown)}")
    if examples is not None:
        records = list(feedback.labelled_examples(folder, said))
        print(f"{_write_records(examples, records)} labelled responses in {examples}")
    if transcripts is not None:
        records = list(feedback.transcripts(folder, said, at_least))
        print(f"{_write_records(transcripts, records)} transcripts in {transcripts}")


def _write_records(path: Path, records: Sequence[dict[str, Any]]) -> int:
    """Write a file of JSON lines, completely or not at all; return their number. Raises ConfigError for none."""
    import json

    from ajet import ConfigError
    from ajet.interfaces.helpers import write_whole

    if not records:
        raise ConfigError(f"{path}: nothing to write: no episode of the run has such feedback.")
    lines = (_writable(json.dumps(record, ensure_ascii=False)) for record in records)
    write_whole(path, "".join(f"{line}\n" for line in lines))
    return len(records)


def _layers(job_file: Path | None, kind: str) -> Layers:
    """The job's layers, with a reader of the kind. Raises ConfigError if the file names another one."""
    from ajet import ConfigError
    from ajet.job.layers import job_layers

    layers = job_layers(job_file)
    reader = (layers.values.get("task") or {}).get("reader")
    named = "jsonl" if isinstance(reader, str) else (reader or {}).get("type", kind)
    if named != kind:
        raise ConfigError(f"{job_file}: task.reader is of type {named!r}; this command needs {kind!r}.")
    _lay(layers, "ajet data", "type", kind)
    return layers


def _lay(layers: Layers, flag: str, field: str, value: Any) -> None:
    from ajet.job.objects import lay_object

    if value is not None:
        lay_object(layers, f"task.reader.{field}", value, flag)


def _set(layers: Layers, sets: list[str] | None) -> None:
    """Apply ``--set KEY=VALUE`` to keys of the reader, in full (task.reader.KEY) or without the section."""
    from ajet.job.layers import lay_sets

    prefix = "task.reader."
    lay_sets(layers, [text if text.startswith(prefix) else f"{prefix}{text}" for text in sets or ()])


def _tasks(layers: Layers) -> list[Task]:
    """The tasks of the reader. Raises ConfigError."""
    from ajet.interfaces.progress import reporting_to
    from ajet.interfaces.reader import Reader, read_all
    from ajet.job.parts import build_plugin
    from ajet.reports.progress import make_progress

    reader = build_plugin(layers, Reader, layers.values["task"]["reader"], "task.reader")
    with make_progress() as progress, reporting_to(progress):
        return read_all(reader, "task.reader")


def _write(path: Path, tasks: Sequence[Task]) -> int:
    """Write a file of tasks, completely or not at all; return their number."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    with _opened(unfinished, "w") as file:
        file.writelines(_lines(tasks))
    unfinished.replace(path)
    return len(tasks)


def _add(path: Path, tasks: Sequence[Task]) -> int:
    """Append the tasks that were never in the file; return their number."""
    import json

    seen_file = path.with_name(f"{path.name}.seen")
    seen = set(seen_file.read_text(encoding="utf-8").split("\n")) if seen_file.exists() else set()
    content = path.read_text(encoding="utf-8") if path.exists() else ""
    for line in content.split("\n"):  # an earlier run may have stopped between writing the two files
        try:
            seen.add(str(json.loads(line)["id"]))
        except (ValueError, LookupError, TypeError):
            continue  # a line of the user's own
    new = [task for task in tasks if _writable(task.id) not in seen]
    with _opened(path, "a") as file:
        file.write("" if not content or content.endswith("\n") else "\n")
        file.writelines(_lines(new))
    with _opened(seen_file, "a") as file:
        file.writelines(_writable(f"{task.id}\n") for task in new)
    return len(new)


def _opened(path: Path, mode: Literal["w", "a"]) -> TextIO:
    return path.open(mode, encoding="utf-8")


def _writable(text: str) -> str:
    """The text with lone surrogates replaced: traces may contain them, tasks may not."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _lines(tasks: Iterable[Task]) -> Iterable[str]:
    """Tasks as the reader `jsonl` reads them."""
    import json

    for task in tasks:
        record: dict[str, Any] = {"id": task.id}
        record |= {"query": task.query} if task.query else {}
        record |= {"messages": list(task.messages)} if task.messages else {}
        yield _writable(json.dumps({**record, **task.metadata}, ensure_ascii=False)) + "\n"
