"""verl, Ray or vLLM missing or of another version: one line that says which, what was found, and the command."""

from __future__ import annotations

import importlib.metadata

import pytest

import ajet_verl
from ajet.types import ConfigError
from ajet_verl.versions import NEEDED, check


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """Versions that are told instead of the installed ones; None: not there."""
    told: dict[str, str | None] = {}
    real = importlib.metadata.version

    def version(name: str) -> str:
        found = told.get(name, name)
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name) if found == name else found

    monkeypatch.setattr(importlib.metadata, "version", version)
    return told


def test_this_environment_is_tested(installed: dict[str, str | None]) -> None:
    assert check() == []
    missing = [finding.found for finding in ajet_verl.ajet_doctor() if finding.remedy]
    assert missing == ["no flash_attn", "no cupy"], "which are for GPUs"


@pytest.mark.parametrize("needed", NEEDED, ids=lambda needed: needed.name)
def test_what_is_missing_is_named_with_the_command_that_installs_it(
    needed: object, installed: dict[str, str | None]
) -> None:
    assert isinstance(needed, type(NEEDED[0]))
    installed |= dict.fromkeys((needed.name, *needed.instead))
    with pytest.raises(ConfigError) as error:
        check()
    line = str(error.value)
    assert f"{needed.name} is not installed" in line and needed.install in line and "\n" not in line
    optional = needed.name == "verl"  # without verl nobody asks for the rest
    assert ("backbone verl" if optional else needed.name, "not installed", optional) in [
        (line.what, line.found, line.optional) for line in ajet_verl.ajet_doctor() if line.remedy
    ]


def test_another_verl_is_an_error_and_another_ray_a_warning(installed: dict[str, str | None]) -> None:
    installed["ray"] = "3.1.0"
    (warning,) = check()
    assert "ray 3.1.0 was not tested (tested: 2.60). pip install 'ray[default]==2.60.0'" in warning
    installed["verl"] = "0.10.2"
    with pytest.raises(
        ConfigError,
        match=r"verl 0\.10\.2 was not tested \(tested: 0\.9\.1\)\. pip install 'verl\[vllm,cupy-cu130\]==0\.9\.1'",
    ):
        check()


def test_the_doctor_shows_the_version_that_is_not_tested(installed: dict[str, str | None]) -> None:
    installed["vllm"] = "0.2.4"
    lines = {line.what: line for line in ajet_verl.ajet_doctor()}
    assert lines["vllm"].found == "0.2.4" and "was not tested" in lines["vllm"].remedy
    assert lines["vllm"].optional, "it is a warning when a job runs, too"
