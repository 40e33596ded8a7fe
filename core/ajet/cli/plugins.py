"""``ajet plugins``: what is installed, and the fields of one."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ajet.plugins import InstalledPlugin, Plugins

app = typer.Typer(
    help="List the installed plugins, or show one.", rich_markup_mode=None, invoke_without_command=True
)


@app.callback()
def plugins(context: typer.Context) -> None:
    """List the installed plugins."""
    if context.invoked_subcommand is not None:
        return
    from ajet.interfaces.base import first_line
    from ajet.plugins import load_plugins
    from ajet.utils.terminal import table

    loaded = load_plugins()
    rows = [(i.kind, i.name, i.distribution, i.version, first_line(i.cls)) for i in loaded.classes.values()]
    rows += function_rows(loaded)
    rows += [
        (
            "command",
            entry.name,
            entry.dist.name if entry.dist else "?",
            entry.dist.version if entry.dist else "?",
            "",
        )
        for entry in importlib.metadata.entry_points(group="ajet.commands")
    ]
    print(table([("KIND", "NAME", "DISTRIBUTION", "VERSION", ""), *sorted(rows)]))
    for broken in loaded.broken:
        print(f"broken  {broken.entry_point}  {broken.distribution}  {broken.error}")


@app.command()
def hooks() -> None:
    """List every hook that a plugin may implement, with its arguments."""
    print(describe_hooks())


def describe_hooks() -> str:
    """Each hook's signature, followed by its description from `ajet.hookspecs`."""
    import inspect
    import textwrap

    from ajet import hookspecs

    specs = [f for name, f in vars(hookspecs).items() if name.startswith("ajet_")]
    return "\n".join(
        f"{spec.__name__}{str(inspect.signature(spec)).replace(chr(39), '')}\n"
        + textwrap.fill(
            " ".join((inspect.getdoc(spec) or "").split()),
            110,
            initial_indent="    ",
            subsequent_indent="    ",
        )
        for spec in specs
    )


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of a plugin, as `ajet plugins` lists it.")],
    kind: Annotated[str | None, typer.Option(help="Its kind, where several plugins share the name.")] = None,
) -> None:
    """Show a plugin's description and fields."""
    from ajet.plugins import load_plugins

    print("\n\n".join(describe_plugin(installed) for installed in find_plugins(load_plugins(), name, kind)))


def find_plugins(plugins: Plugins, name: str, kind: str | None) -> list[InstalledPlugin]:
    """The plugins with a name, of all kinds or of one. Raises ConfigError with the nearest name."""
    from ajet.types import ConfigError
    from ajet.utils.suggest import nearest

    kinds = {k for k, _ in plugins.classes}
    if kind is not None and kind not in kinds:
        raise ConfigError(
            f"--kind {kind}: unknown kind{nearest(kind, kinds)}. Known: {', '.join(sorted(kinds))}."
        )
    candidates = [i for i in plugins.classes.values() if kind in (None, i.kind)]
    matching = [i for i in candidates if i.name == name]
    if not matching:
        names = {i.name for i in candidates}
        reasons = "".join(f" ({b.distribution} did not load: {b.error})" for b in plugins.broken)
        raise ConfigError(f"{name}: no such plugin{nearest(name, names)}. `ajet plugins` lists all.{reasons}")
    return matching


def describe_plugin(installed: InstalledPlugin) -> str:
    """A plugin's name, its docstring and its fields."""
    import inspect

    from ajet.job.config import all_keys
    from ajet.utils.terminal import entry

    head = f"{installed.kind} {installed.name}  ({installed.distribution} {installed.version})"
    fields = [entry(f"{k.key}  {k.type} = {k.default}", k.help) for k in all_keys(installed.cls)]
    return "\n".join([head, "", inspect.getdoc(installed.cls) or "", "", *(fields or ["It has no fields."])])


def function_rows(plugins: Plugins) -> Iterator[tuple[str, str, str, str, str]]:
    """Rows for what no plugin class provides: wires, each named by the end of its path, model handles and other hooks."""
    from ajet.capture.wires.builtin import BUILTIN_WIRES
    from ajet.interfaces.base import first_line

    core = importlib.metadata.version("ajet")
    yield from (("wire", wire.path, "ajet", core, first_line(type(wire))) for wire in BUILTIN_WIRES)
    plugin: Any
    for label, plugin in plugins.manager.list_name_plugin():
        distribution = label.partition(":")[0]
        version = importlib.metadata.version(distribution)
        for caller in plugins.manager.get_hookcallers(plugin) or ():
            if caller.name == "ajet_handles":
                for name, handle in plugin.ajet_handles().items():
                    yield "handle", name, distribution, version, first_line(handle)
            elif caller.name == "ajet_wires":
                for wire in plugin.ajet_wires():
                    yield "wire", wire.path, distribution, version, first_line(type(wire))
            elif caller.name != "ajet_plugins":
                yield "hook", caller.name.removeprefix("ajet_"), distribution, version, ""
