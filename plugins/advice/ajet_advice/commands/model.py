"""``ajet model``: what a model can do before it is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ajet_advice.try_tools import Attempt

app = typer.Typer(help="Try a model.", rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def model() -> None:
    pass


@app.command("try")
def try_model(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="Folder, Hugging Face id, or a recipe such as `smollm2-tools`."),
    ],
    tools: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help='JSON: a list of tools as in a request of chat completions, or {"tools": […], "requests": […]}.',
        ),
    ],
    temperature: Annotated[float, typer.Option(min=0, max=10, help="0 is greedy.")] = 0.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens of an answer.")] = 128,
    tool_prompt: Annotated[
        str,
        typer.Option(metavar="FORMAT", help="hermes: show tools to a model whose chat template does not."),
    ] = "",
    seed: Annotated[int, typer.Option(help="Random seed for sampling, and for recipes.")] = 0,
) -> None:
    """Show what a model does with an agent's tools: one answer to each request. Exit code 1 if it calls none."""
    from ajet.plugins import load_plugins, validated
    from ajet.reports.progress import make_progress
    from ajet.rollout.settings import RolloutSettings
    from ajet.runs.runtime import make_chat, own_engine
    from ajet.types import Sampling
    from ajet.utils.asyncrun import run
    from ajet_advice.try_tools import attempts, read_tools

    offered, requests = read_tools(tools)
    settings = validated(RolloutSettings, {"tool_prompt": tool_prompt}, "rollout")
    with make_progress() as progress:
        engine = own_engine(load_plugins(), "local")().build(model, seed, progress)
        chat = make_chat(engine.tokenizer, engine.model_type, settings)
        sampling = Sampling(
            temperature=temperature, max_tokens=max_tokens, stop_token_ids=chat.stop_token_ids, seed=seed
        )
        tried = run(attempts(engine, chat, offered, requests, sampling), progress.say)
    print(page(tried))
    if not any(attempt.called for attempt in tried):
        raise typer.Exit(1)


def page(tried: list[Attempt]) -> str:
    """Each request with its call and what is wrong with it, and a line that counts them."""
    lines = []
    for attempt in tried:
        did = f"{attempt.called}({attempt.arguments})" if attempt.called else attempt.text
        lines += [attempt.request.text, f"  {did}{f'  [{attempt.fault}]' if attempt.fault else ''}"]
    called, right = sum(bool(a.called) for a in tried), sum(a.right_tool for a in tried)
    fitting = sum(a.right_tool and not a.fault for a in tried)
    counts = f"{len(tried)} requests; calls that can be read: {called}, of the right tool: {right}, with arguments that fit it: "
    counts += f"{fitting}."
    free = sum(not a.request.tool for a in tried)
    counts += (
        f" Any tool counts as right where a request names none ({free} of {len(tried)})." if free else ""
    )
    remedy = " Of the recipes, `smollm2-tools` calls tools; a model learns it from examples (`ajet sft`)."
    return "\n".join([*lines, counts + ("" if called else remedy)])
