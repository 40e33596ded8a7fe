"""Backbones that train in another program: which versions of it they accept, and the defaults of a platform."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from ajet.types import ConfigError
from ajet_foreign.versions import Needed, Requirements, platform_defaults

PROGRAM = Needed("program", ("1.2",), "pip install program==1.2", exact=True)
LIBRARY = Needed("library", ("3",), "pip install library", own=("2.9",), instead=("library-cpu",))
ANY = Needed("any", (), "pip install any")
REQUIREMENTS = Requirements("program", (PROGRAM, LIBRARY, ANY), prefix="for program: ")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The installed distributions, which a test may change."""
    there = {"program": "1.2.5", "library": "3.0", "any": "0.1"}

    def version(name: str) -> str:
        if name not in there:
            raise importlib.metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return there


@pytest.mark.parametrize("version", ["3", "3.7", "2.9.1"])
def test_tested_versions_and_those_that_the_program_requires_are_well(
    version: str, installed: dict[str, str]
) -> None:
    installed["library"] = version
    assert REQUIREMENTS.check() == []
    assert [(line.what, line.found, line.remedy) for line in REQUIREMENTS.findings()] == [
        ("for program: program", "1.2.5", ""),
        ("for program: library", version, ""),
        ("for program: any", "0.1", ""),
    ]


def test_another_distribution_with_the_same_module_counts(installed: dict[str, str]) -> None:
    del installed["library"]
    installed["library-cpu"] = "3.1"
    assert REQUIREMENTS.check() == []


def test_an_untested_version_is_a_warning_with_the_tested_ones_and_the_command(
    installed: dict[str, str],
) -> None:
    installed["library"] = "30.1"
    line = "library 30.1 was not tested (tested: 3; program's own: 2.9). pip install library"
    assert REQUIREMENTS.check() == [f"backbone program: {line}"]
    (finding,) = (line for line in REQUIREMENTS.findings() if line.remedy)
    assert (finding.remedy, finding.optional) == (line, True)


@pytest.mark.parametrize(
    ("name", "version", "line"),
    [
        ("program", "1.3", "program 1.3 was not tested (tested: 1.2). pip install program==1.2"),
        ("program", None, "program is not installed (tested: 1.2). pip install program==1.2"),
        ("any", None, "any is not installed. pip install any"),
    ],
)
def test_what_is_missing_and_another_version_of_what_must_be_exact_is_an_error(
    name: str, version: str | None, line: str, installed: dict[str, str]
) -> None:
    del installed[name]
    installed |= {name: version} if version else {}
    with pytest.raises(ConfigError) as error:
        REQUIREMENTS.check()
    assert str(error.value) == f"backbone program: {line}"


def test_without_the_program_the_doctor_has_one_line_which_is_no_problem(installed: dict[str, str]) -> None:
    installed.clear()
    (finding,) = REQUIREMENTS.findings()
    assert (finding.what, finding.found, finding.optional) == ("backbone program", "not installed", True)
    assert finding.remedy == "in a separate environment (`ajet docs program`): pip install program==1.2"


def test_a_platform_is_the_entry_point_that_the_variable_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "small-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: small\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ajet_program.platforms]\nsmall = ajet_test_platform:DEFAULTS\n")
    (tmp_path / "ajet_test_platform.py").write_text("DEFAULTS = {'a.b': 1}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert platform_defaults("program") == {}
    monkeypatch.setenv("PROGRAM_PLATFORM", "small")
    assert platform_defaults("program") == {"a.b": 1}
    monkeypatch.setenv("PROGRAM_PLATFORM", "large")
    assert platform_defaults("program") == {}
