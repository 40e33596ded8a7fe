"""Releases: the version comes from the tag, and every distribution carries what a package index and a type checker need."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.pages import tool

ROOT = Path(__file__).parents[2]
script = tool("release")
SOURCES = script.distributions(ROOT)
PLUGINS = [source for source in SOURCES if source != ROOT]


def project(source: Path, version: str = "1.2.3") -> dict:
    """The metadata of a distribution as it is released."""
    return tomllib.loads(script.released((source / "pyproject.toml").read_text(), version))["project"]


def requirements(metadata: dict) -> list[str]:
    extras = metadata.get("optional-dependencies", {}).values()
    return [*metadata["dependencies"], *(required for extra in extras for required in extra)]


@pytest.fixture
def repository(tmp_path: Path):
    """A git repository; calling it runs git there."""

    def git(*arguments: str) -> None:
        names = {f"GIT_{who}_{what}": "a" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        subprocess.run(
            ["git", *arguments], cwd=tmp_path, check=True, capture_output=True, env={**os.environ, **names}
        )

    git("init")
    git("commit", "--allow-empty", "-m", "first")
    return git


def test_the_version_is_that_of_the_tag(repository, tmp_path: Path) -> None:
    assert script.newest(tmp_path) == "0.0.1.dev1"
    repository("tag", "v0.3.0")
    assert script.newest(tmp_path) == "0.3.0"
    repository("commit", "--allow-empty", "-m", "later")
    assert script.newest(tmp_path) == "0.3.1.dev1"


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_distributions_require_each_other_in_the_version_that_is_released(source: Path) -> None:
    metadata = project(source)
    assert metadata["version"] == "1.2.3"
    for required in requirements(metadata):
        if re.match(r"ajet\b", required) and re.split(r"[\[=]", required)[0] != metadata["name"]:
            assert required.endswith("==1.2.3"), required


@pytest.mark.parametrize("source", PLUGINS, ids=lambda source: source.name)
def test_a_plugin_has_an_extra_of_the_core(source: Path) -> None:
    name = project(source)["name"]
    extra = {"openai-sdk": "openai"}.get(name.removeprefix("ajet-plugin-"), name.removeprefix("ajet-plugin-"))
    assert f"{name}==1.2.3" in project(ROOT)["optional-dependencies"][extra]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_a_distribution_is_typed_licensed_and_described(source: Path, tmp_path: Path) -> None:
    text = (source / "pyproject.toml").read_text()
    for package in tomllib.loads(text)["tool"]["hatch"]["build"]["targets"]["wheel"].get(
        "packages", ["core/ajet"]
    ):
        assert (source / package / "py.typed").exists(), package
    metadata = project(source)
    assert metadata["license"] == "Apache-2.0" and metadata["requires-python"] == ">=3.11"
    assert (source / metadata["readme"]).exists()
    (tmp_path / "pyproject.toml").write_text(text)
    script.prepare(tmp_path, "1.2.3", ROOT / "LICENSE")
    assert (tmp_path / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
