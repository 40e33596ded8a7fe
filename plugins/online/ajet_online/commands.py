"""``ajet online``: look at the store of online training, and take from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from ajet.cli.options import Sets

EVERY = 1_000
"""Traces between two reports of how far an export is."""
MOST_FREE = 1 << 20
"""Free bytes of a file that are not worth a word."""


class JobOrCommand(typer.core.TyperGroup):
    """``ajet online job.yaml`` is short for ``ajet online job job.yaml``; explorer.yaml and trainer.yaml of Trinity-RFT are short for
    ``explore`` and ``train``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0].endswith((".yaml", ".yml")):
            from ajet_online.settings import command_of

            args = [command_of(Path(args[0])), *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=JobOrCommand, help="Train on the feedback of users.", no_args_is_help=True, rich_markup_mode=None
)
JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")]
KeysFile = Annotated[
    Path | None,
    typer.Option(
        "--keys",
        metavar="FILE",
        help="YAML file with several keys, NAME: {key: SECRET, roles: [chat, feedback]}, instead of --key.",
    ),
]
Port = Annotated[
    int | None,
    typer.Option(help="Port; 0 means a free one. Default: the job's, or 8000.", min=0, max=65535),
]
Rate = Annotated[
    float | None, typer.Option(min=0.01, help="Maximum calls per minute; further calls get status 429.")
]
Redact = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:NAME",
        help="A function that gets each message before it is stored, and returns what may be stored.",
    ),
]
Where = Annotated[str, typer.Argument(metavar="STORE", help="The store: a file of SQLite, or a URL.")]


@app.callback()
def online() -> None:
    """Train on the feedback of users: `ajet online JOB.yaml` does all, the commands below a part each."""


@app.command("explore")
def explore_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder, Hugging Face id, or a recipe such as `starter`; or a job file, whose model it is.",
        ),
    ],
    store: Annotated[
        str | None,
        typer.Option(
            help="The store: a file of SQLite, which is created, or a URL. Default: the job's, or traces.db."
        ),
    ] = None,
    port: Port = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on; any but a loopback address is open to the network. Default: the job's, or 127.0.0.1."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            envvar="AJET_SERVE_KEY", help="One API key for everything; default: a new one, which is printed."
        ),
    ] = None,
    keys: KeysFile = None,
    engine: Annotated[
        str | None,
        typer.Option(help="The engine, one that `ajet plugins` lists; default: the job's, or auto."),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=10,
            help="Temperature of calls that set none, default: the job's, or 1; greedy replies are never trained.",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens of an answer, for calls that set none.")
    ] = None,
    most_calls: Annotated[
        int, typer.Option(min=1, help="Maximum concurrent calls; further calls get status 429.")
    ] = 256,
    rate: Rate = None,
    redact: Redact = None,
    seed: Annotated[int | None, typer.Option(help="Random seed for recipes.")] = None,
    sets: Sets = None,
) -> None:
    """Serve a model, record each reply in a store, and take feedback."""
    from ajet import ConfigError
    from ajet.capture.gateway.listening import is_loopback
    from ajet.job.layers import import_from_here
    from ajet.job.parts import load_named
    from ajet.reports.progress import make_progress
    from ajet.runs.serve import checked_key
    from ajet.utils.terminal import tell
    from ajet_online.keys import Keys
    from ajet_online.processes import explore, given

    if key and keys:
        raise ConfigError("--key and --keys: give one of them.")
    if rate and keys:
        raise ConfigError("--rate and --keys: write the rate of each key into the file.")
    single = checked_key(key)
    import_from_here()
    function = load_named(redact, "--redact") if redact else None
    with make_progress() as progress:
        what = given(
            model,
            engine=engine,
            store=store,
            temperature=temperature,
            max_tokens=max_tokens,
            seed=seed,
            sets=sets or (),
            progress=progress,
        )
    keyless = what.settings.keyless and is_loopback(host or what.settings.host) and not key
    one = Keys.unasked(rate) if keyless else Keys.single(single, rate)
    explore(
        what,
        Keys.read(keys) if keys else one,
        host=host,
        port=port,
        most_calls=most_calls,
        redact=function,
        say=tell,
        ready=lambda url: print(
            f"exploring with {what.model} at {url}/v1, recorded in {what.settings.store} (Ctrl-C stops it)"
            + ("" if key or keys or keyless else f"\nkey: {single}"),
            flush=True,
        ),
    )


@app.command("train")
def train_command(
    job_file: JobFile,
    store: Annotated[str | None, typer.Option(help="The store, instead of the job's.")] = None,
    updates: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many updates; default: never.")
    ] = None,
    sets: Sets = None,
) -> None:
    """Train a job on what users have rated, and publish what passes the gate."""
    from ajet_online.processes import train

    train(job_file, store=store, updates=updates, sets=sets or ())


@app.command("job")
def job_command(
    job_file: JobFile,
    port: Port = None,
    key: Annotated[
        str | None,
        typer.Option(envvar="AJET_SERVE_KEY", help="API key; default: a new one, which is printed."),
    ] = None,
    keys: KeysFile = None,
    rate: Rate = None,
    redact: Redact = None,
    sets: Sets = None,
) -> None:
    """Run the explorer and the trainer of a job together, and show what they do."""
    from ajet_online.together import together

    given = {"--port": port, "--keys": keys, "--rate": rate, "--redact": redact}
    further = [part for name, value in given.items() if value is not None for part in (name, str(value))]
    together(job_file, key=key, further=further, sets=sets or ())


@app.command("rollback")
def rollback_command(
    store: Where,
    version: Annotated[
        int | None, typer.Argument(help="The version to serve; default: the one before the served one.")
    ] = None,
) -> None:
    """Withdraw the served version, or all after VERSION; explorers load the one before within seconds."""
    from ajet import ConfigError
    from ajet_online.store import opened
    from ajet_online.versions import Versions

    with opened(store, "write") as database:
        versions = Versions(database)
        published = versions.published()
        if version is None and len(published) < 2:
            raise ConfigError(f"store {store}: there is no version before the served one.")
        to = published[-2].number if version is None else version
        withdrawn = versions.withdraw(to, "by hand")
    print(f"version {to} is served; withdrawn: {', '.join(map(str, withdrawn)) or 'none'}")


@app.command("status")
def status_command(
    store: Where, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
) -> None:
    """Count traces by state, and show the versions of the weights with their ratings."""
    import json

    from ajet.utils.terminal import table
    from ajet_online.overview import overview
    from ajet_online.store import opened

    with opened(store, "read") as database:
        seen = {**overview(database), "bytes": database.size()}
    if as_json:
        print(json.dumps(seen))
        return
    print(table([("TRACES", ""), *((name, f"{count:,}") for name, count in seen["traces"].items())]))
    rows = [
        (
            number,
            v["stage"] or "",
            _shown(v["validation"]),
            f"{v['rated']:,}",
            _shown(v["rating"]),
            v["reason"] or "",
        )
        for number, v in seen["versions"].items()
    ]
    if rows:
        print("\n" + table([("VERSION", "STAGE", "VALIDATION", "RATED", "RATING", "REASON"), *rows]))
    print(f"\n{seen['bytes'] / 2**20:,.1f} MiB")


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


@app.command("export")
def export_command(
    store: Where, output: Annotated[Path, typer.Argument(help="The file to write, one JSON object per line.")]
) -> None:
    """Write all traces, with their tokens and their feedback, to a file."""
    import json
    import os

    from ajet.interfaces.helpers import check_output
    from ajet.reports.progress import make_progress
    from ajet.utils.files import writing
    from ajet_online.store import opened
    from ajet_online.trace import to_json

    check_output("OUTPUT", output)
    partial = output.with_name(f".partial_{output.name}")
    with opened(store, "read") as database, make_progress() as progress, writing(output):
        total, count = database.count(), 0
        try:
            with partial.open("w", encoding="utf-8") as file:
                for count, trace in enumerate(database.all(), 1):
                    file.write(json.dumps(to_json(trace)) + "\n")
                    if count % EVERY == 0:
                        progress.stage("export", min(count / total, 1), {"traces": count})
            os.replace(partial, output)
        finally:
            partial.unlink(missing_ok=True)
    print(f"{count:,} traces in {output}")


@app.command("prune")
def prune_command(
    store: Where,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Such as 12h or 90d.")],
    compact: Annotated[
        bool,
        typer.Option(
            "--compact",
            help="Rewrite the file of SQLite, which takes as much space again; calls and feedback wait meanwhile.",
        ),
    ] = False,
) -> None:
    """Delete conversations whose last reply is older, unless a trainer has taken some of it, while calls go on, and give the space
    back."""
    import re
    import time

    from ajet import ConfigError
    from ajet.reports.progress import make_progress
    from ajet_online import pruning
    from ajet_online.store import opened

    match = re.fullmatch(r"(\d+)([mhd])", older_than)
    if not match:
        raise ConfigError(
            f"--older-than {older_than}: is not an age. Write minutes, hours or days: 30m, 12h, 90d."
        )
    seconds = int(match[1]) * {"m": 60, "h": 3600, "d": 86400}[match[2]]
    with opened(store, "write") as store_, make_progress() as progress:

        def told(stage: str, unit: str) -> Callable[[int, int], None]:
            return lambda done, total: progress.stage(stage, min(done / max(total, 1), 1), {unit: done})

        deleted = pruning.prune(store_, time.time() - seconds, told("prune", "traces"))
        if compact:
            pruning.compact(store_)
        free = pruning.give_back(store_, told("giving space back", "pages"))
    print(f"{deleted:,} traces deleted")
    if free > MOST_FREE:
        print(
            f"{free / 2**20:,.1f} MiB of the file are free for later replies; `ajet online prune --compact` gives them back to the "
            "disk"
        )
