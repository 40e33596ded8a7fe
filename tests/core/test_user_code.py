"""Lines are the user's if they are not of Python, of an installed package, of AgentJet or of its plugins."""

from __future__ import annotations

import importlib
import sysconfig

import openai
import pytest

import ajet
from ajet.plugins import entry_points
from ajet.utils.user_code import is_users


def test_a_users_own_file_is_the_users_wherever_it_lies(tmp_path) -> None:
    assert is_users(__file__)
    assert is_users(str(tmp_path / "ajet_experiments" / "agent.py"))
    assert is_users(str(tmp_path / "my-site-packages-tool" / "agent.py"))


@pytest.mark.parametrize("module", [entry.module for entry, *_ in entry_points()])
def test_a_line_of_a_plugin_is_never_the_users_also_where_it_is_installed_in_place(module: str) -> None:
    if module.startswith("ajet_"):
        assert not is_users(str(importlib.import_module(module).__file__))


def test_lines_of_python_packages_and_programs_are_not_the_users() -> None:
    scripts = sysconfig.get_path("scripts")
    for file in (importlib.__file__, openai.__file__, ajet.__file__, f"{scripts}/ajet", "<string>"):
        assert not is_users(str(file))
