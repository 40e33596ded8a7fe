"""The program ``ajet``: builds the commands, and turns each failure into one line and an exit code.

0 success · 1 the work failed · 2 the job, its flags or a plugin's fields are wrong · 3 compared models do not differ, or an
alarm has ended the run · 130 Ctrl-C · 143 SIGTERM · 129 a closed terminal · 131 Ctrl-\\.

Command modules import nothing at their top but typer, so that ``ajet --help`` is quick.
"""

from __future__ import annotations

import atexit
import faulthandler
import functools
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ajet.cli import (
    check,
    config,
    docs,
    doctor,
    evaluate,
    fine_tune,
    plugins,
    run,
    serve,
    show,
)
from ajet.cli.options import with_options

if TYPE_CHECKING:
    from ajet.types import AjetError

INTERRUPTED = 130
SECONDS_TO_END = 10.0


def main() -> None:
    """The entry point."""
    _open_streams()
    faulthandler.enable()  # a crash of native code prints where it happened
    ended_by = _signals_are_ctrl_c()
    code = 0

    def end_at_once() -> None:
        try:
            sys.stdout.flush()
        finally:  # flush fails if the program that read our output has ended
            os._exit(code)

    def end_what_is_left_behind() -> None:
        if _left_behind():
            end_at_once()

    # Registered first, so called last: tearing down leftover tasks or threads would print tracebacks.
    atexit.register(end_what_is_left_behind)
    code = run_program(sys.argv[1:])
    interrupted = code == INTERRUPTED
    if interrupted and ended_by:
        code = 128 + ended_by[0]

    def end_without_the_rest() -> None:
        try:
            if (left := unfinished()) and not interrupted:
                print(
                    f"ended without waiting longer for what the agent left: {'; '.join(left)}",
                    file=sys.stderr,
                )
            end_children()
        finally:
            end_at_once()

    if unfinished() or interrupted or _left_behind():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # shutdown takes seconds at most
        timer = threading.Timer(SECONDS_TO_END, end_without_the_rest)
        timer.daemon = True
        timer.start()
    sys.exit(code)


def _open_streams() -> None:
    """Open standard streams that the caller has closed (``2>&-``) as /dev/null. Otherwise errors are lost, and a file
    opened later gets the stream's number and receives what native code prints there. A terminal without a character shows "?"."""
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process lives
        elif stream.errors == "strict":
            stream.reconfigure(errors="replace")


def _signals_are_ctrl_c() -> list[int]:
    """Let SIGTERM, SIGHUP (a closed terminal) and SIGQUIT end a command as Ctrl-C does: stop what it started and print how to resume.
    The list gets the number of the signal."""
    own = os.getpid()
    ended: list[int] = []

    def terminate(number: int, _: object) -> None:
        if os.getpid() != own:  # a forked child of the user's agent keeps its own behaviour
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        ended.append(number)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a background job of a shell
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores SIGHUP
            signal.signal(number, terminate)
    return ended


def _left_behind() -> bool:
    """Whether a command has left tasks or threads behind that may keep the process from ending."""
    if "ajet.utils.asyncrun" not in sys.modules:  # most commands run nothing
        return False
    from ajet.utils.asyncrun import anything_left_behind

    return anything_left_behind()


def run_program(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code. Errors are printed only here."""
    from ajet.own_plugins import remedy
    from ajet.types import AjetError, ConfigError

    try:
        _refuse_option(arguments)
        commands = _commands()
        for words in (arguments[:1], arguments[:2]):
            if (hint := remedy("command", ".".join(words))) and not _is_command(commands, words):
                raise ConfigError(f"the command `ajet {' '.join(words)}` is not installed.{hint}")
        commands(list(arguments), prog_name="ajet")
    except SystemExit as end:
        stopped = end.__context__ and end.__context__.__cause__
        if isinstance(stopped, KeyboardInterrupt):  # which typer makes an exit
            print(str(stopped) or "interrupted", file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except AjetError as error:
        _tell(error)
        return error.exit_code
    except Exception as error:
        if limit := _limit_of_machine(error):
            _tell(limit)
            return 1
        import traceback

        traceback.print_exc()
        _tell(f"{type(error).__name__}: {error}. This is a bug in AgentJet or in a plugin: please report it.")
        return 1
    return 0


def _limit_of_machine(error: Exception) -> str | None:
    """The message and remedy for an error caused by the machine's limits; None for any other error."""
    from ajet.utils.files import remedy_for

    if isinstance(error, OSError):
        remedy = remedy_for(error)
        return remedy and f"{f'{error.filename}: ' if error.filename else ''}{error.strerror}. {remedy}."
    # Threads and shared libraries for which there was no memory.
    texts = ("can't start new thread", "failed to map segment")
    if not (isinstance(error, MemoryError) or any(text in str(error) for text in texts)):
        return None
    said = f" ({error})" if str(error) else ""
    return f"out of memory{said}. Free some, or raise the limits of this process (ulimit -v, ulimit -u)."


@functools.cache  # a notebook or a test runs several in one process, and each would inspect all signatures again
def _commands() -> TyperGroup:
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
    app.command("sft")(fine_tune.sft)
    app.command("dpo")(fine_tune.dpo)
    app.command("list")(show.list_runs)
    app.command("show")(show.show)
    app.command("check")(check.check)
    app.command("serve")(serve.serve)
    app.add_typer(plugins.app, name="plugins")
    app.add_typer(config.app, name="config")
    app.command("doctor")(doctor.doctor)
    app.command("docs")(docs.docs)
    _add_plugin_commands(app)
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    _summarize(group)
    return group


def _refuse_option(arguments: Sequence[str]) -> None:
    """Ask plugins if the arguments begin with an option that `ajet` does not have, or `ajet run` has one. Raises ConfigError if one
    knows it, or SystemExit if it has run what is meant."""
    import importlib.metadata

    from ajet.own_plugins import remedy
    from ajet.types import ConfigError

    at_start = [
        word for word in arguments[:1] if word.startswith("--") and word not in ("--help", "--version")
    ]
    in_run = (
        [word for word in arguments if word.startswith("--with-")] if list(arguments[:1]) == ["run"] else []
    )
    option = next((word.partition("=")[0] for word in (*at_start, *in_run)), "")
    if not option:
        return
    for entry in importlib.metadata.entry_points(group="ajet.options"):
        entry.load()(arguments)
    if hint := remedy("option", option):
        raise ConfigError(f"ajet has no option {option}. A plugin reads it.{hint}")


def _is_command(group: object, words: Sequence[str]) -> bool:
    """Whether words name a command, such as ``config explain``."""
    for word in words:
        group = group.commands.get(word) if isinstance(group, TyperGroup) else None
    return group is not None


def _summarize(group: TyperGroup) -> None:
    """Let lists of commands show the first sentence of each one's help whole, on several lines if need be."""
    for command in group.commands.values():
        first = " ".join((command.help or "").partition("\n\n")[0].split())
        command.short_help = command.short_help or first.partition(". ")[0].rstrip(".") or None
        if isinstance(command, TyperGroup):
            _summarize(command)


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
    """Add the commands of plugins: entry points of the group ``ajet.commands``, each a function or a `typer.Typer`. They
    have a group of their own because loading every plugin would take most of the time of ``ajet --help``. The name
    ``config.NAME`` stands for ``ajet config NAME``."""
    import importlib.metadata

    groups = {"": app, "config": config.app}

    for entry in sorted(importlib.metadata.entry_points(group="ajet.commands"), key=lambda entry: entry.name):
        try:
            command = entry.load()
            group, _, name = entry.name.rpartition(".")
            if isinstance(command, typer.Typer):
                groups[group].add_typer(command, name=name)
            else:
                groups[group].command(name)(command)
        except Exception as error:
            print(
                f"warning: the command {entry.name} ({entry.value}) is missing: {type(error).__name__}: {error}",
                file=sys.stderr,
            )


def _tell(error: AjetError | str) -> None:
    """Print an error in one line, with options in place of the arguments in `AjetError.where`."""
    if not isinstance(error, str) and error.where:
        error = f"{with_options(error.where)}: {error.text}"
    print(f"error: {' '.join(str(error).splitlines())}", file=sys.stderr)


# What an agent has left running when a command is over, and Python would wait for: threads, and child processes of
# `multiprocessing`.


def unfinished() -> list[str]:
    """Each of them, with the line of the user's code where a thread is."""
    main = threading.main_thread()
    threads = [t for t in threading.enumerate() if t is not main and not t.daemon]
    return [*map(_described, threads), *(f"process {child.pid} ({child.name})" for child in _children())]


def end_children() -> None:
    """Send SIGTERM to the child processes."""
    for child in _children():
        child.terminate()


def _children() -> list[Any]:
    multiprocessing = sys.modules.get("multiprocessing")
    return multiprocessing.active_children() if multiprocessing else []


def _described(thread: threading.Thread) -> str:
    from ajet.capture.process.uncaptured import location_on_stack

    frame = sys._current_frames().get(thread.ident or 0)
    at = location_on_stack(frame, through_loops=True)
    return f"thread {thread.name}{f' at {at}' if at else ''}"
