"""The program ``ajet``: builds the commands, and turns every way to fail into one line and an exit code.

0 success · 1 the work failed · 2 the job, its flags or a plugin's fields are wrong · 130 Ctrl-C.

Command modules import nothing at their top but typer, so that ``ajet --help`` is quick.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import Annotated

import typer

from ajet.cli import check, config, doctor, evaluate, export, plugins, run, serve, sft, show

INTERRUPTED = 130
SECONDS_TO_END = 10.0


def main() -> None:
    """The entry point."""
    code = run_program(sys.argv[1:])
    if code == INTERRUPTED:
        _end_within(SECONDS_TO_END, code)
    sys.exit(code)


def run_program(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code. Errors are told here and nowhere else."""
    from ajet.types import AjetError, ConfigError

    try:
        typer.main.get_command(build_app())(list(arguments), prog_name="ajet")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except AjetError as error:
        _tell(error)
        return 2 if isinstance(error, ConfigError) else 1
    except Exception as error:
        import traceback

        traceback.print_exc()
        _tell(f"{type(error).__name__}: {error}. This is a bug in AgentJet or in a plugin: please report it.")
        return 1
    return 0


def build_app() -> typer.Typer:
    """All commands, those of plugins included."""
    app = typer.Typer(
        name="ajet",
        help="AgentJet: make any agent program trainable.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_program)
    app.command("run")(run.run)
    app.command("eval")(evaluate.evaluate)
    app.command("sft")(sft.sft)
    app.command("show")(show.show)
    app.command("check")(check.check)
    app.command("serve")(serve.serve)
    app.command("export")(export.export)
    app.add_typer(plugins.app, name="plugins")
    app.add_typer(config.app, name="config")
    app.command("doctor")(doctor.doctor)
    _add_plugin_commands(app)
    return app


def _program(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=lambda asked: _print_version(asked),
            help="Print the version.",
        ),
    ] = False,
) -> None:
    pass


def _print_version(asked: bool) -> None:
    if asked:
        import importlib.metadata

        print(f"ajet {importlib.metadata.version('ajet')}")
        raise typer.Exit


def _add_plugin_commands(app: typer.Typer) -> None:
    """Let plugins add theirs. One that fails loses its commands only."""
    from ajet.plugins import load_plugins
    from ajet.types import ConfigError

    try:
        hook = load_plugins().manager.hook.ajet_commands
    except ConfigError:
        return  # whatever needs plugins raises it again
    for implementation in hook.get_hookimpls():
        try:
            implementation.function(app)
        except Exception as error:
            name = implementation.plugin_name
            print(
                f"warning: plugin {name}: its commands are missing: {type(error).__name__}: {error}",
                file=sys.stderr,
            )


def _tell(error: object) -> None:
    print(f"error: {' '.join(str(error).splitlines())}", file=sys.stderr)


def _end_within(seconds: float, code: int) -> None:
    """End the process even if a thread of the user's agent never returns."""
    timer = threading.Timer(seconds, os._exit, [code])
    timer.daemon = True
    timer.start()
