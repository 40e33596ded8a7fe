"""``ajet serve``: an OpenAI-compatible server for a checkpoint."""

from __future__ import annotations

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
    call_example: Annotated[
        str,
        typer.Option(
            metavar="TEXT", help="A tool call as the model writes it: the key rollout.call_example."
        ),
    ] = "",
    tool_prompt: Annotated[
        str,
        typer.Option(
            metavar="FORMAT",
            help="hermes: show tools to a model whose chat template does not. The key rollout.tool_prompt.",
        ),
    ] = "",
    tool_calls: Annotated[
        str, typer.Option(metavar="read|text", help="text: tool calls stay text. The key rollout.tool_calls.")
    ] = "read",
    seed: Annotated[int, typer.Option(help="Random seed for recipes.")] = 0,
    sets: Sets = None,
) -> None:
    """Serve a checkpoint: chat completions, responses, completions and messages, with and without streaming."""
    import sys

    from ajet.capture.gateway.listening import warn_of_network
    from ajet.capture.sampling import SamplingPolicy
    from ajet.job.config import parse_set
    from ajet.plugins import validated
    from ajet.reports.progress import make_progress
    from ajet.rollout.settings import RolloutSettings
    from ajet.runs.serve import checked_key, served
    from ajet.runs.serve import serve as run
    from ajet.utils.terminal import tell

    given = checked_key(key)
    keys = {"call_example": call_example, "tool_prompt": tool_prompt, "tool_calls": tool_calls}
    reading = validated(RolloutSettings, keys, "rollout")
    settings = dict(parse_set(text) for text in sets or ())
    warn_of_network(host, tell)

    def ready(url: str) -> None:
        print(f"serving {what.model} at {url}/v1 (Ctrl-C stops it)")
        if key is None:
            print(f"key: {given}")
        sys.stdout.flush()

    with make_progress() as progress:
        what = served(checkpoint, engine, settings, seed, progress)
        answered = run(
            what.engine,
            models=[what.name],
            key=given,
            host=host,
            port=port,
            most_calls=most_calls,
            policy=SamplingPolicy(False, temperature, max_tokens=max_tokens),
            settings=reading,
            ready=ready,
        )
    print(f"{answered} calls answered")
