"""The installations that the pages name, resolved as on a machine with GPUs (Linux on x86-64, Python 3.12): by uv in seconds, and by
pip's own resolver, which takes minutes.

Nothing is installed. AgentJet's own distributions are those of this clone.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pages import tool

ROOT = Path(__file__).parents[2]
PLATFORMS = ["linux_x86_64", "manylinux2014_x86_64", *(f"manylinux_2_{n}_x86_64" for n in range(5, 40))]
"""Tags of the wheels that such a machine takes."""


def command_of(page: str, word: str) -> list[str]:
    """What the page's `pip install` with ``word`` installs, from this clone where it is AgentJet's own."""
    text = (ROOT / "docs" / page).read_text().replace("\\\n", " ")
    (line,) = [line for line in text.splitlines() if line.startswith("pip install ") and word in line]
    asked = [one for one in shlex.split(line, comments=True)[2:] if one != "-e"]
    if any(one.startswith("ajet[local]") for one in asked):
        asked += tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][
            "local"
        ]
    here = [re.sub(r"^ajet-plugin-([\w-]+).*", _folder, re.sub(r"^ajet\[", "./[", one)) for one in asked]
    for folder in [one for one in here if one.startswith("./plugins/")]:
        needed = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]["dependencies"]
        here += [_folder(plugin) for one in needed if (plugin := re.match(r"^ajet-plugin-([\w-]+).*", one))]
    return list(dict.fromkeys(here))


def _folder(plugin: re.Match[str]) -> str:
    return f"./plugins/{plugin[1].replace('-', '_')}"


def by_uv(asked: list[str], folder: Path) -> dict[str, str]:
    """The versions that uv would install."""
    install = tool("install")
    command = [*install.find_uv(), "pip", "install", "--dry-run", "--target", str(folder)]
    command += ["--only-binary=:all:", "--python-version", "3.12"]
    command += ["--python-platform", "x86_64-manylinux_2_39"]
    done = subprocess.run(
        [*command, *asked], cwd=ROOT, env=install.uv_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(re.findall(r"^ \+ ([\w.-]+)(?:==| @ )(\S+)", done.stderr, re.MULTILINE))


def by_pip(asked: list[str], folder: Path) -> dict[str, str]:
    """The versions that pip would install."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += ["--report", str(report), "--target", str(folder / "nothing"), "--only-binary=:all:"]
    command += ["--implementation", "cp", "--python-version", "3.12"]
    command += [word for platform in PLATFORMS for word in ("--platform", platform)]
    done = subprocess.run([*command, *asked], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    packages = [one["metadata"] for one in json.loads(report.read_text())["install"]]
    return {one["name"].lower(): one["version"] for one in packages}


@pytest.mark.whole
@pytest.mark.parametrize("resolved", [by_uv, pytest.param(by_pip, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("page", "word", "versions"),
    [
        ("gpu.md", "ajet-plugin-vllm", {"vllm": "0.", "transformers": "5."}),
        (
            "verl.md",
            "plugins/verl",
            {"verl": "0.9.1", "vllm": "0.24", "transformers": "5.9", "torch": "2.11"},
        ),
    ],
)
def test_an_installation_for_gpus_resolves(
    tmp_path: Path,
    page: str,
    word: str,
    versions: dict[str, str],
    resolved: Callable[[list[str], Path], dict[str, str]],
) -> None:
    asked = command_of(page, word)
    assert "plugins/local" in " ".join(asked), "AgentJet's own requirements count too"
    found = resolved(asked, tmp_path)
    assert {"ajet", "torch"} <= found.keys()
    for name, version in versions.items():
        assert found[name].startswith(version), (name, found[name])
