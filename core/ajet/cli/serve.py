"""``ajet serve``: an OpenAI-compatible server for a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import Sets


def serve(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT", help="Checkpoint folder, Hugging Face id, or a recipe such as `starter`."
        ),
    ],
    port: Annotated[int, typer.Option(help="Port; 0 means a free one.", min=0, max=65535)] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but a loopback address is open to the network.")
    ] = "127.0.0.1",
    key: Annotated[
        str | None,
        typer.Option(
            envvar="AJET_SERVE_KEY",
            help="The API key that clients must send; default: a new one, which is printed.",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="The engine: auto (vllm if it and CUDA are available, else local), or any that `ajet plugins` lists."
        ),
    ] = "auto",
    temperature: Annotated[
        float, typer.Option(min=0, max=10, help="Temperature of calls that set none; 0 is greedy.")
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
    """Serve a checkpoint: chat completions, responses, completions and messages, with and without streaming."""
    import ipaddress
    import secrets
    import sys

    from ajet.capture.sampling import SamplingPolicy
    from ajet.cli.progress import make_progress
    from ajet.interfaces.engine import EnginePlugin
    from ajet.job.config import parse_set
    from ajet.plugins import load_plugins, validated
    from ajet.runs.runtime import preferred_engine
    from ajet.runs.serve import serve as run
    from ajet.types import ConfigError

    if key is not None and not (key.isascii() and key.isprintable() and key.strip()):
        raise ConfigError("--key must be printable ASCII, because clients send it in an HTTP header.")
    given = key or f"ajet-{secrets.token_urlsafe(24)}"
    place = Path(checkpoint).expanduser()
    model = str(place.resolve()) if place.exists() else checkpoint
    plugins = load_plugins()
    name = preferred_engine(plugins, model) if engine == "auto" else engine
    cls = plugins.get("engine", name, "--engine")
    plugin = validated(cls, dict(parse_set(text) for text in sets or ()), "--set")
    assert isinstance(plugin, EnginePlugin)
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        print(
            f"warning: {host} is not a loopback address: anyone who can reach it and has the key can use the model; HTTP is "
            "not encrypted.",
            file=sys.stderr,
        )

    def ready(url: str) -> None:
        print(f"serving {model} at {url}/v1 (Ctrl-C stops it)")
        if key is None:
            print(f"key: {given}")
        sys.stdout.flush()

    with make_progress() as progress:
        built = plugin.build(model, seed, progress)
        answered = run(
            built,
            models=[place.name or checkpoint],
            key=given,
            host=host,
            port=port,
            most_calls=most_calls,
            policy=SamplingPolicy(False, temperature, max_tokens=max_tokens),
            ready=ready,
        )
    print(f"{answered} calls answered")
