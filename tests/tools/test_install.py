"""tools/install.py: packages come through uv, as pip is configured, and through pip where uv fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.pages import page, tool
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "install.py"
PAGES = ("README.md", "docs/start.md", "docs/troubleshooting.md")


@pytest.fixture(scope="module")
def install() -> ModuleType:
    """The script as a module."""
    return tool("install")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder that holds one small wheel."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    info = "tiny_package-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_package-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_package.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return folder


def run(wheels: Path, target: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Install into ``target`` from the folder of wheels alone, without a terminal."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}
    clean |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--target", str(target), *arguments],
        env=clean | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.slow
def test_an_install_without_a_terminal_names_its_packages(wheels: Path, tmp_path: Path) -> None:
    done = run(wheels, tmp_path / "here", "tiny-package")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "here" / "tiny_package.py").is_file()
    assert re.search(r"tiny.package", done.stdout + done.stderr)


@pytest.mark.slow
def test_pip_installs_what_uv_cannot(wheels: Path, tmp_path: Path) -> None:
    done = run(wheels, tmp_path / "here", "tiny-package", UV_FIND_LINKS=str(tmp_path / "not-there"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "here" / "tiny_package.py").is_file()
    assert "using pip" in done.stdout and "Installing collected packages: tiny" in done.stdout


@pytest.mark.slow
def test_a_package_that_neither_finds_is_an_error(wheels: Path, tmp_path: Path) -> None:
    done = run(wheels, tmp_path / "here", "no-such-package")
    assert done.returncode == 1
    assert "no-such-package" in done.stderr


@pytest.mark.slow
def test_a_uv_on_the_path_is_used(wheels: Path, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    own = programs / "uv"
    own.write_text(f'#!/bin/sh\ntouch "{programs}/used"\nexec "{sys.executable}" -m uv "$@"\n')
    own.chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    done = run(wheels, tmp_path / "here", "tiny-package", PATH=path)
    assert done.returncode == 0, done.stderr
    assert (programs / "used").exists() and (tmp_path / "here" / "tiny_package.py").is_file()


def test_uv_looks_where_pip_is_told_to_look(install: ModuleType) -> None:
    printed = """\
:env:.default-timeout='180'
:env:.find-links='/wheels https://host/more'
:env:.no-color='1'
global.cert='/certificates.pem'
global.extra-index-url='https://one/simple\\nhttps://two/simple'
global.find-links='/other'
install.index-url='https://host/simple'
global.index-url='https://general/simple'
"""
    assert install.from_pip(printed) == {
        "UV_HTTP_TIMEOUT": "180",
        "UV_FIND_LINKS": "/wheels,https://host/more",
        "SSL_CERT_FILE": "/certificates.pem",
        "UV_INDEX": "https://one/simple https://two/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "https://host/simple",
    }


def test_uv_takes_the_command_of_the_pages_for_pytorchs_cpu_build(install: ModuleType, wheels: Path) -> None:
    found = [re.search(r"uv (pip install --torch-backend=cpu) ", page(name)) for name in PAGES]
    (command,) = {match[1] for match in found if match}
    assert all(found)
    resolve = [
        "--dry-run",
        "--no-config",
        "--offline",
        "--no-index",
        "--find-links",
        str(wheels),
        "tiny-package",
    ]
    done = subprocess.run(
        [*install.find_uv(), *command.split(), *resolve, "--python", sys.executable],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0 and "tiny-package==1.0" in done.stderr, done.stderr


def dry_run(*arguments: str) -> str:
    """The commands that `make` would run."""
    command = ["make", "--dry-run", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE
    ).stdout


def test_wheels_are_built_without_the_environment_of_the_tests() -> None:
    commands = dry_run("--always-make", "wheels")
    assert "tools/release.py" in commands and ".venv/" not in commands


def test_the_makefile_says_what_an_install_takes_before_it_starts() -> None:
    """As `make` prints the commands of a first install, without running them."""
    commands = dry_run("--what-if=pyproject.toml", "demo")
    announced, installs = commands.index("GB on disk"), commands.index("tools/install.py")
    assert announced < installs
    assert "-qq" not in commands
