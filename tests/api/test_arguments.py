"""The arguments of commands and functions: one table, and signatures that are written out and agree with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest

import ajet
from ajet.cli.check import check
from ajet.cli.evaluate import evaluate
from ajet.cli.fine_tune import sft
from ajet.cli.options import with_options
from ajet.cli.run import run
from ajet.job.arguments import ARGUMENTS, TUNING
from ajet.job.config import explain
from ajet_advice.commands.plan import plan
from ajet_prompts.commands import app as tune_prompt

ONLY_PYTHON = {"run_dir", "progress"}
"""On the command line ``--set run.dir=…``, and 2> /dev/null."""
OTHERWISE_NAMED = {
    "task_count": "first",
    "as_json": "",
    "break_": "",
    "dry_run": "",
    "from_": "",
    "record": "",
    "replay": "",
}
"""Parameters of commands that functions call otherwise, or do not have."""
OF_A_FILE = {"tasks", "validation", "judge"}
"""On the command line only a file or a name."""


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


@pytest.mark.parametrize(("command", "function"), [(run, ajet.run), (check, ajet.check), (sft, ajet.sft)])
def test_a_command_and_its_function_take_the_same(
    command: Callable[..., Any], function: Callable[..., Any]
) -> None:
    of_command = {OTHERWISE_NAMED.get(name, name) for name in parameters(command)} - {""}
    assert of_command == parameters(function).keys() - ONLY_PYTHON


@pytest.mark.parametrize("command", [run, check, evaluate, plan, tune_prompt])
def test_an_option_of_a_key_has_the_help_of_the_table_and_no_default_of_its_own(
    command: Callable[..., Any],
) -> None:
    table = {**ARGUMENTS, **(TUNING if command is tune_prompt else {})}
    hints = get_type_hints(command, include_extras=True)
    for name in (table.keys() & parameters(command).keys()) - {"reflection"}:
        assert get_args(hints[name])[1].help == table[name].help, name
        assert parameters(command)[name].default is None, name


@pytest.mark.parametrize(
    "function", [ajet.run, ajet.evaluate, ajet.check, ajet.tune_prompt, ajet.select_model, ajet.open]
)
def test_an_argument_of_a_key_defaults_to_what_the_job_says(function: Callable[..., Any]) -> None:
    table = {**ARGUMENTS, **(TUNING if function is ajet.tune_prompt else {})}
    for name in table.keys() & parameters(function).keys():
        assert parameters(function)[name].default is None, name


def test_an_argument_has_the_help_of_its_key() -> None:
    for row in ARGUMENTS.values():
        if row.key and row.name not in OF_A_FILE:
            key = "backbone.name" if row.key == "backbone" else row.key
            assert [found.help for found in explain(key)] == [row.help], row


@pytest.mark.parametrize(
    ("where", "written"),
    [
        ("resume= ./run", "--resume ./run"),
        ("run_dir=", "--run-dir"),
        ("deterministic=", "--[no-]deterministic"),
        ("endpoint= and endpoint_model=", "--endpoint and --endpoint-model"),
        ("set= train.steps", "--set train.steps"),
        ("job.yaml: train.steps", "job.yaml: train.steps"),
        ("a=b.yaml: train.steps", "a=b.yaml: train.steps"),
        ("workflow= cmd:env A= b", "--workflow cmd:env A= b"),
    ],
)
def test_the_command_line_writes_its_options_in_place_of_arguments(where: str, written: str) -> None:
    assert with_options(where) == written
