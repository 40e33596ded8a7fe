"""``ajet online``: look at the store of online training, and take from it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import Sets, flag

app = typer.Typer(help="Train on the feedback of users.", no_args_is_help=True, rich_markup_mode=None)
Where = Annotated[str, typer.Argument(metavar="STORE", help="The store: a file of SQLite, or a URL.")]


@app.callback()
def online() -> None:
    """Train on the feedback of users."""


@app.command("explore")
def explore_command(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT", help="Checkpoint folder, Hugging Face id, or a recipe such as `starter`."
        ),
    ],
    store: Annotated[
        str, typer.Option(help="The store: a file of SQLite, which is created, or a URL.")
    ] = "traces.db",
    port: Annotated[int, typer.Option(help="Port; 0 means a free one.", min=0, max=65535)] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but a loopback address is open to the network.")
    ] = "127.0.0.1",
    key: Annotated[
        str | None,
        typer.Option(
            envvar="AJET_SERVE_KEY", help="One API key for everything; default: a new one, which is printed."
        ),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with several keys, NAME: {key: SECRET, roles: [chat, feedback]}, instead of --key."
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="The engine: auto, or any that `ajet plugins` lists.")] = "auto",
    temperature: Annotated[
        float,
        typer.Option(
            min=0, max=10, help="Temperature of calls that set none; greedy replies are never trained."
        ),
    ] = 1.0,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens of an answer, for calls that set none.")
    ] = None,
    most_calls: Annotated[
        int, typer.Option(min=1, help="Maximum concurrent calls; further calls get status 429.")
    ] = 256,
    seed: Annotated[int, typer.Option(help="Random seed for recipes.")] = 0,
    sets: Sets = None,
) -> None:
    """Serve a checkpoint, record each reply in a store, and take feedback."""
    from ajet.capture.gateway.stopping import stopped
    from ajet.capture.sampling import SamplingPolicy
    from ajet.cli.layers import tell
    from ajet.cli.progress import make_progress
    from ajet.job.config import parse_set
    from ajet.runs.serve import answering, checked_key, served, warn_of_network
    from ajet.types import ConfigError
    from ajet_online.explorer import exploring
    from ajet_online.keys import Keys
    from ajet_online.store import Store

    if key and keys:
        raise ConfigError("--key and --keys: give one of them.")
    single = checked_key(key, flag)
    known = Keys.read(keys) if keys else Keys.single(single)
    warn_of_network(host, tell)
    settings = dict(parse_set(text) for text in sets or ())
    opened = Store.open(store)
    try:
        with make_progress() as progress:
            what = served(checkpoint, engine, settings, seed, progress, flag)
            policy = SamplingPolicy(False, temperature, max_tokens=max_tokens)
            with (
                answering(what.engine, policy) as (portal, answerer),
                exploring(
                    portal,
                    answerer,
                    opened,
                    known,
                    models=[what.name],
                    host=host,
                    port=port,
                    most_calls=most_calls,
                ) as (url, gateway),
                stopped() as stop,
            ):
                print(f"exploring with {what.model} at {url}/v1, recorded in {store} (Ctrl-C stops it)")
                if not key and not keys:
                    print(f"key: {single}")
                sys.stdout.flush()
                while not stop.wait(1.0):
                    pass
        print(f"{gateway.meter.calls.total()} calls answered")
    finally:
        opened.close()


@app.command("status")
def status_command(
    store: Where, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
) -> None:
    """Count traces by state, and ratings by weight version."""
    import json

    from ajet.cli.table import table
    from ajet_online.store import opened

    with opened(store) as found:
        status, size = found.status(), found.size()
    states = {state.name.lower(): count for state, count in status.states.items()}
    if as_json:
        ratings = {
            str(version): {"rated": n, "reward": mean} for version, (n, mean) in status.ratings.items()
        }
        print(json.dumps({"traces": states, "versions": ratings, "bytes": size}))
        return
    print(table([("TRACES", ""), *((name, f"{count:,}") for name, count in states.items())]))
    if status.ratings:
        rows = [(str(v), f"{n:,}", f"{mean:.3f}") for v, (n, mean) in status.ratings.items()]
        print("\n" + table([("VERSION", "RATED", "REWARD"), *rows]))
    print(f"\n{size / 2**20:,.1f} MiB")


@app.command("export")
def export_command(
    store: Where, output: Annotated[Path, typer.Argument(help="The file to write, one JSON object per line.")]
) -> None:
    """Write all traces, with their tokens and their feedback, to a file."""
    import json

    from ajet.cli.options import check_output
    from ajet.utils.files import writing
    from ajet_online.store import opened
    from ajet_online.trace import to_json

    check_output("OUTPUT", output)
    count = 0
    with opened(store) as found, writing(output), output.open("w", encoding="utf-8") as file:
        for trace in found.all():
            file.write(json.dumps(to_json(trace)) + "\n")
            count += 1
    print(f"{count:,} traces in {output}")


@app.command("prune")
def prune_command(
    store: Where,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Such as 12h or 90d.")],
) -> None:
    """Delete conversations whose last reply is older, unless a trainer has taken some of it."""
    import re
    import time

    from ajet.types import ConfigError
    from ajet_online.store import opened

    found = re.fullmatch(r"(\d+)([mhd])", older_than)
    if not found:
        raise ConfigError(
            f"--older-than {older_than}: is not an age. Write minutes, hours or days: 30m, 12h, 90d."
        )
    seconds = int(found[1]) * {"m": 60, "h": 3600, "d": 86400}[found[2]]
    with opened(store) as store_:
        print(f"{store_.prune(time.time() - seconds):,} traces deleted")
