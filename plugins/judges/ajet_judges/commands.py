"""``ajet judge learn``: learn a rubric from labelled responses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ajet_judges.endpoint import JudgeEndpoint

app = typer.Typer(help="Make judges.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def judge() -> None:
    """Make judges."""


@app.command("learn")
def learn_command(
    examples: Annotated[
        Path,
        typer.Option(help='Labelled responses, {"query": …, "response": …, "label": "good"} per line.'),
    ],
    output: Annotated[Path, typer.Option(help="YAML file to write the rubric to.")],
    base_url: Annotated[
        str, typer.Option(help="Base URL of the judge model's OpenAI-compatible API, including /v1.")
    ],
    model: Annotated[str, typer.Option(help="Name of the judge model at this endpoint.")],
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that contains the API key.")
    ] = None,
    about: Annotated[
        str, typer.Option(help="One sentence for the judge model about the kind of tasks.")
    ] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of proposals.")] = 3,
    criteria: Annotated[int, typer.Option(min=1, help="Maximum criteria proposed per round.")] = 8,
    cache: Annotated[
        Path | None,
        typer.Option(help="Folder that caches verdicts, so a second run does not pay for them again."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed for the split and the examples shown.")] = 0,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any field of the endpoint: timeout=120, parameters.max_tokens=500. Repeatable.",
        ),
    ] = None,
) -> None:
    """Learn a rubric for the `rubric` judge from labelled responses."""
    import asyncio

    from ajet.interfaces.helpers import check_output
    from ajet_judges.learn import learn, read_examples
    from ajet_judges.rubric import write_rubric

    endpoint = _endpoint(base_url, model, api_key_env, cache, sets)
    read = read_examples(examples)
    check_output("--output", output)
    learned = asyncio.run(
        learn(read, endpoint, about=about, rounds=rounds, count=criteria, seed=seed, say=print)
    )
    heading = [
        "A rubric: what a good response does. Edit it freely; the judge reads it at the start of each run.",
        "A response meets a criterion or not. A negative weight is for what a good response avoids.",
    ]
    write_rubric(output, learned.rubric, heading)
    print(
        f"held-out pairs ranked correctly: {learned.held_out:.0%}; cross-validated: {learned.cross_validated:.0%}"
    )
    print(f"judge model: {learned.usage}")
    print(f"rubric  {output}  {len(learned.rubric.criteria)} criteria")


def _endpoint(
    base_url: str, model: str, api_key_env: str | None, cache: Path | None, sets: list[str] | None
) -> JudgeEndpoint:
    from pydantic import ValidationError

    from ajet import ConfigError
    from ajet.interfaces.helpers import nearest
    from ajet_judges.endpoint import JudgeEndpoint

    given: dict[str, Any] = {"base_url": base_url, "model": model, "api_key_env": api_key_env, "cache": cache}
    for text in sets or ():
        _set(given, text)
    try:
        return JudgeEndpoint(**given)
    except ValidationError as error:
        fault = error.errors()[0]
        place = f"endpoint.{'.'.join(map(str, fault['loc']))}"
        if fault["type"] == "extra_forbidden":
            known = JudgeEndpoint.model_fields
            hint = nearest(str(fault["loc"][-1]), known)
            raise ConfigError(f"{place}: unknown key{hint}. Known: {', '.join(known)}.") from None
        reason = fault["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{place}: {reason[0].lower()}{reason[1:]} (found {fault['input']!r}).") from None


def _set(given: dict[str, Any], text: str) -> None:
    """Apply ``a.b=value``, where the value is YAML. Raises ConfigError."""
    from ajet import ConfigError
    from ajet.interfaces.helpers import parse_yaml

    key, equals, value = text.partition("=")
    *parents, last = key.split(".")
    for parent in parents:
        given = given.setdefault(parent, {})
    try:
        if not equals or not isinstance(given, dict):
            raise ValueError
        given[last] = parse_yaml(value, key)
    except (ValueError, ConfigError):
        raise ConfigError(f"--set {text}: write --set key=value, the value in YAML.") from None
