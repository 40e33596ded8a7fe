"""`ajet doctor`."""

from __future__ import annotations

import pytest

from ajet.cli import doctor

from .conftest import Folder


def test_a_sound_environment_is_exit_code_0(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "plugins", lambda: [("ajet", "0.1.0", "")])
    outcome = folder.ajet("doctor")
    assert outcome.code == 0, outcome.out
    assert {"python", "CPU", "torch", "transformers", "verl"} <= {
        line.split()[1] for line in outcome.out.splitlines()
    }


def test_a_problem_is_told_with_its_fix_and_exit_code_1(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "plugins", lambda: [("ajet-plugin-x", "0.2.0", "pip install it")])
    outcome = folder.ajet("doctor")
    assert outcome.code == 1
    assert outcome.out.splitlines()[-1] == "ajet-plugin-x: pip install it"


def test_plugins_of_another_version_than_the_core_are_problems() -> None:
    found = list(doctor.plugin_versions("0.1.0", [("ajet-plugin-a", "0.1.0"), ("ajet-plugin-b", "0.2.0")]))
    assert [bool(remedy) for _, _, remedy in found] == [False, True]
    assert "pip install ajet-plugin-b==0.1.0" in found[1][2]


@pytest.mark.parametrize(
    ("version", "fine"), [("4.57.1", False), ("5.9.0", False), ("5.10.0", True), ("6.0", True)]
)
def test_transformers_before_5_10_are_too_old(version: str, fine: bool) -> None:
    assert (doctor.too_old("transformers", version) == "") is fine
