"""``ajet show``: the summary of a run, or one episode as chat and tokens; ``ajet list``: the runs of a folder, a line for each."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ajet.reports.episode import EpisodeReport
    from ajet.reports.folder import Entry, RecordedRun
    from ajet.reports.run_summary import RunSummary


def show(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run folder, or a folder of runs, whose newest run is shown."),
    ],
    episode: Annotated[
        str | None, typer.Argument(metavar="EPISODE", help="An episode's id, or a unique part of it.")
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Also print a table of the tokens: id, text, mask, logprob, …")
    ] = False,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Shorten nothing: neither long contexts nor long or repeated messages. With --html: every episode.",
        ),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write one HTML file instead: the run and some of its episodes (all with --all), or the one episode.",
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a recording of the episode, or of every episode, for `ajet run --replay` instead.",
        ),
    ] = None,
    atif: Annotated[
        bool,
        typer.Option("--atif", help="Print the episode as a trajectory in ATIF instead, with its token ids."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the same data as one JSON object.")] = False,
) -> None:
    """Show a run, or one of its episodes: the tree of its group, chat, tokens, mask, logprobs, advantage."""
    from ajet.reports.credit import run_credit
    from ajet.reports.episode import episode_report
    from ajet.reports.folder import find_run, read_run
    from ajet.reports.group_tree import GroupTrees
    from ajet.reports.run_summary import summarise
    from ajet.reports.token_text import TokenText
    from ajet.types import ConfigError

    if record is not None or atif:
        one, other = ("--record", {"--atif": atif}) if record is not None else ("--atif", {})
        shown = {"--html": html, "--json": as_json, "--tokens": tokens, "--all": everything, **other}
        for flag in [flag for flag, given in shown.items() if given]:
            raise ConfigError(f"{one} and {flag} exclude each other; remove one.")
    if record is not None:
        from ajet.cli.run import write_recording
        from ajet.utils.files import check_output

        check_output("--record", record)
        write_recording(find_run(run), record, episode)
        return
    if as_json and html is not None:
        raise ConfigError("--json and --html exclude each other; remove one.")
    if episode is None and (tokens or atif or (everything and html is None)):
        flag = "--tokens" if tokens else "--atif" if atif else "--all"
        raise ConfigError(f"{flag} needs an episode; name one after {run}.")
    folder = read_run(find_run(run))
    if episode is not None and atif:
        _print_atif(folder, folder.find(episode))
        return
    credit = run_credit(folder)
    text_of, trees = TokenText(folder.dir), GroupTrees(folder, credit)
    if episode is not None:
        report = episode_report(folder, folder.find(episode), credit, text_of, trees)
        if html is None:
            _print_json(report) if as_json else _print_episode(report, everything, tokens)
            return
    summary = summarise(folder, credit)
    if html is None:
        _print_json(summary) if as_json else _print_run(summary)
        return
    from ajet.reports.html import written

    by_id = {entry.id: entry for entry in folder.entries}
    chosen = list(by_id) if everything else [pick.id for pick in summary.picks]
    if episode is not None:
        chosen = [report.header.id]
    reports = {name: partial(episode_report, folder, by_id[name], credit, text_of, trees) for name in chosen}
    try:
        with html.open("w", encoding="utf-8") as file:
            file.writelines(written(summary, reports, everything=everything))
    except OSError as error:
        raise ConfigError(f"--html {html} cannot be written ({error.strerror}).") from None
    more = (
        "" if everything or episode is not None or len(chosen) == len(by_id) else "; --all includes every one"
    )
    print(f"written: {html}, with {len(chosen):,} of {len(by_id):,} episodes{more}")


def _print_run(summary: RunSummary) -> None:
    from ajet.reports.text import describe_run

    _printable()
    print(describe_run(summary))


def _print_episode(report: EpisodeReport, everything: bool, tokens: bool) -> None:
    from rich.console import Console

    from ajet.reports.text import describe_episode

    _printable()
    console = Console(highlight=False, soft_wrap=True)
    colour = console.is_terminal and not console.no_color
    for text in describe_episode(report, everything=everything, tokens=tokens, colour=colour):
        console.print(text)


def _print_atif(run: RecordedRun, entry: Entry) -> None:
    from ajet.plugin_names import atif
    from ajet.rollout.image_folder import IMAGES
    from ajet.runs.callbacks import ended

    folder = run.dir.resolve()
    event = ended(folder, run.episode(entry), entry.phase, entry.step)
    _printable()
    print(atif.text_of(atif.trajectory_of(event, run.job, str(folder / IMAGES))))


def _print_json(summary: Any) -> None:
    import json
    from dataclasses import asdict

    print(json.dumps(asdict(summary), default=str))  # ASCII, because text may contain lone surrogates


def _printable() -> None:
    """Print escapes for characters that the terminal's encoding lacks, instead of failing."""
    import sys

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="RUNS", help="A folder of runs.")] = Path("runs"),
    name: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only runs with this text in their name or folder.")
    ] = None,
    tags: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="Only runs with this tag. Repeatable.")
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Also checks, forecasts, evaluations and runs of the backbone debug."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the same data as a JSON list.")] = False,
) -> None:
    """List the runs of a folder, the newest first, with their settings and rewards."""
    import json
    from dataclasses import asdict

    from ajet.reports.run_list import describe_runs, list_runs

    lines = list_runs(folder, name=name, tags=tags or (), everything=everything)
    if as_json:
        print(json.dumps([{**asdict(line), "kind": line.kind} for line in lines]))
    else:
        print(
            describe_runs(lines)
            if lines
            else f"no such runs in {folder}; --all lists checks, forecasts and evaluations, too"
        )
