"""``ajet config``: what a key does, its default, its value and where that came from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ajet.job.config import KeyHelp, Layers

app = typer.Typer(
    help="Explain the keys of a job, and make job files.", rich_markup_mode=None, no_args_is_help=True
)

SLOTS = {
    "task.reader": "reader",
    "task.validation": "reader",
    "workflow": "workflow",
    "judge": "judge",
    "train.algorithm": "algorithm",
}
"""Keys that hold a plugin, with its kind."""


@app.callback()
def _config() -> None:
    pass


@app.command()
def explain(
    key: Annotated[
        str | None, typer.Argument(metavar="KEY", help="A key or a section; default: all keys.")
    ] = None,
    job_file: Annotated[
        Path | None,
        typer.Argument(metavar="JOB.yaml", help="Also show the job's values and where each came from."),
    ] = None,
) -> None:
    """Show what a key does, its default, and where its value came from."""
    from ajet.job.config import explain
    from ajet.job.layers import job_layers

    if key is not None and key.endswith((".yaml", ".yml")):  # the two in the other order, or the file alone
        job_file, key = Path(key), str(job_file) if job_file is not None else None
    layers = job_layers(job_file) if job_file is not None else None
    further = list(plugin_keys(layers))
    every = key is None and layers is None
    keys = explain(key or "", [k for k in further if not every or not _of_a_plugin(k.key)])
    if len(keys) == 1:
        print(describe_key(keys[0], layers))
        keys = [k for k in further if k.key.startswith(f"{key}.")]
    for k in keys:
        print(listed(k, layers))
    if every:
        print("The fields of a reader, a judge or an algorithm: ajet plugins show NAME")


def listed(key: KeyHelp, layers: Layers | None) -> str:
    """A key with its type and value, and below it what it does."""
    from ajet.utils.terminal import entry

    value, *source = _value(key, layers)
    return entry(f"{key.key}  {key.type} = {value}{''.join(f' ({where})' for where in source)}", key.help)


def _of_a_plugin(key: str) -> bool:
    return any(key.startswith(f"{slot}.") and key != f"{slot}.type" for slot in SLOTS)


def describe_key(key: KeyHelp, layers: Layers | None) -> str:
    """The full description of one key."""
    from ajet.utils.terminal import table

    rows = [("type", key.type), ("default", _show(key.default))]
    if layers is not None:
        value, source = _value(key, layers)
        rows += [("value", value), ("from", source)]
    return f"{key.key}: {key.help}\n{table(rows, indent='  ')}"


def plugin_keys(layers: Layers | None) -> Iterator[KeyHelp]:
    """Keys of plugins: every backbone's section, and the fields of readers, judges and algorithms. With a job only
    those of the chosen plugin, without one those of all plugins."""
    from ajet.interfaces.service import Command
    from ajet.job.config import KeyHelp, TargetSettings, all_keys, backbone_keys
    from ajet.plugins import load_plugins

    plugins = load_plugins().classes.values()
    yield from backbone_keys()
    for slot, kind in SLOTS.items():
        yield KeyHelp(f"{slot}.type", "str", "required", f"Name of the {kind}.")
        chosen = _at(layers, f"{slot}.type") if layers is not None else None
        fields = [
            (installed.name, key)
            for installed in plugins
            if installed.kind == kind and chosen in (None, installed.name)
            for key in all_keys(installed.cls, f"{slot}.")
        ]
        yield from _merged(fields)
    yield from all_keys(TargetSettings, "targets.NAME.")
    yield from all_keys(Command, "services.NAME.")


def _merged(fields: list[tuple[str, KeyHelp]]) -> Iterator[KeyHelp]:
    """One entry for each key, type and default; plugins that describe it alike share a description."""
    from dataclasses import replace

    entries: dict[tuple[str, str, str], tuple[KeyHelp, dict[str, list[str]]]] = {}
    for name, key in fields:
        entry = entries.setdefault((key.key, key.type, str(key.default)), (key, {}))
        entry[1].setdefault(key.help, []).append(name)
    order = list(dict.fromkeys(key.key for key, _ in entries.values()))
    for key, helps in sorted(entries.values(), key=lambda entry: order.index(entry[0].key)):
        yield replace(key, help="; ".join(f"{text} ({', '.join(names)})" for text, names in helps.items()))


def _value(key: KeyHelp, layers: Layers | None) -> tuple[str, ...]:
    """(default,) without a job, (value, source) with one."""
    if layers is None:
        return (_show(key.default),)
    value = _at(layers, key.key)
    return _show(key.default if value is None else value), layers.source_of(key.key)


def _at(layers: Layers, key: str) -> Any:
    """A key's value in the validated job, None if it has none."""
    node: Any = layers.job().model_dump(mode="json")
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def _show(value: Any) -> str:
    return value if isinstance(value, str) else str(value)
