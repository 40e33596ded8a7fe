"""`ajet doctor` and jobs name missing and wrong versions."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from ajet.types import ConfigError
from ajet_trinity.versions import NEEDED, check, findings

TESTED = {
    "trinity-rft": "0.6.0",
    "verl": "0.8.0",
    "ray": "2.60.0",
    "transformers": "5.23.0",
    "tensordict": "0.10.0",
    "numpy": "2.4.6",
    "greenlet": "3.5.6",
    "fastapi": "0.165.0",
    "cachetools": "8.0.2",
}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is installed; a test may change it."""
    found = dict(TESTED)

    def version(name: str) -> str:
        if name not in found:
            raise PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr("importlib.metadata.version", version)
    return found


def test_the_tested_versions_are_well(installed: dict[str, str]) -> None:
    assert {needed.name for needed in NEEDED} == installed.keys()
    assert check() == []
    assert not [finding for finding in findings() if finding.remedy]


def test_without_trinity_doctor_says_how_to_install_it(installed: dict[str, str]) -> None:
    del installed["trinity-rft"]
    (finding,) = findings()
    assert finding.optional and finding.found == "not installed"
    assert "ajet docs trinity" in finding.remedy and "pip install trinity-rft==0.6.0" in finding.remedy
    with pytest.raises(
        ConfigError, match=r"backbone trinity: trinity-rft is not installed \(tested: 0.6.0\)"
    ):
        check()


@pytest.mark.parametrize("name", [name for name in TESTED if name != "trinity-rft"])
def test_a_missing_requirement_is_an_error(installed: dict[str, str], name: str) -> None:
    del installed[name]
    (finding,) = (f for f in findings() if f.remedy)
    assert finding.what == f"trinity: {name}" and not finding.optional
    with pytest.raises(ConfigError, match=f"backbone trinity: {name} is not installed"):
        check()


@pytest.mark.parametrize(("name", "version"), [("verl", "0.9.1"), ("trinity-rft", "0.6.10")])
def test_another_trinity_or_verl_is_an_error(installed: dict[str, str], name: str, version: str) -> None:
    installed[name] = version
    with pytest.raises(
        ConfigError, match=rf"{name} {version} was not tested \(tested: {TESTED[name]}\). pip install"
    ):
        check()


@pytest.mark.parametrize(
    ("name", "version"), [("ray", "2.61.0"), ("numpy", "1.26.4"), ("transformers", "5.2.0")]
)
def test_another_version_of_the_rest_is_a_warning(installed: dict[str, str], name: str, version: str) -> None:
    installed[name] = version
    (warning,) = check()
    assert f"{name} {version} was not tested" in warning
    (finding,) = (f for f in findings() if f.remedy)
    assert finding.optional
