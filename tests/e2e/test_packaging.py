"""Wheels in an environment of their own: the core alone is light, and installing a plugin is all it takes."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.patience import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.slow]  # wheels of all distributions, and an environment for them

REPOSITORY = Path(__file__).parents[2]
HEAVY = ("torch", "ray", "transformers", "openai")
FRAMEWORKS = ("langgraph", "agentscope", "openai_agents", "autogen")


def pip(*arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


class Environment:
    """A virtual environment apart from the one that runs the tests."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.bin = folder / "bin"
        self._python = str(self.bin / "python")

    def pip(self, *arguments: str) -> str:
        return pip("--python", self._python, *arguments)

    @contextmanager
    def having(self, distributions: dict[str, Path], *options: str) -> Iterator[None]:
        """A block in which further distributions are installed."""
        self.pip("install", "-q", *options, *map(str, distributions.values()))
        try:
            yield
        finally:
            self.pip("uninstall", "-q", "-y", *distributions)

    @contextmanager
    def borrowing(self) -> Iterator[None]:
        """A block in which what the tests' own environment holds can be imported too, except what is
        installed there from source."""
        (folder,) = self.bin.parent.glob("lib/python*/site-packages")
        link = folder / "borrowed.pth"
        link.write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
        try:
            yield
        finally:
            link.unlink()

    def run(self, *command: str, cwd: Path | None = None, code: int = 0) -> str:
        """Run a program of the environment; its output."""
        outside = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        outside["OPENAI_API_KEY"] = "none"  # SDKs insist on one
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=cwd or self.bin,
            env=outside,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def plugins(self) -> dict[tuple[str, str], str]:
        """(kind, name) -> distribution, as `ajet plugins` lists them."""
        return {(kind, name): distribution for kind, name, distribution in self.listed()}

    def listed(self) -> list[tuple[str, str, str]]:
        """(kind, name, distribution) of each line of `ajet plugins`."""
        rows = [re.split(" {2,}", line.strip()) for line in self.run("ajet", "plugins").splitlines()[1:]]
        return [(kind, name, distribution) for kind, name, distribution, *_ in rows]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels of the core and of all plugins, by distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    # What builds them is fetched once: pip's isolation would fetch it for each.
    pip("install", "-q", "--target", str(folder / "build"), "hatchling")
    sources = [REPOSITORY, *(path.parent for path in REPOSITORY.glob("plugins/*/pyproject.toml"))]
    options = ("-q", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder / "dist"))
    pip("wheel", *options, *map(str, sources), PYTHONPATH=str(folder / "build"))
    return {path.name.split("-")[0].replace("_", "-"): path for path in folder.glob("dist/*.whl")}


@pytest.fixture(scope="module")
def core(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the core's wheel and what it declares to need, nothing else."""
    environment = Environment(tmp_path_factory.mktemp("environment"))
    environment.pip("install", "-q", "-c", str(REPOSITORY / "constraints.txt"), str(wheels["ajet"]))
    return environment


def test_the_core_declares_all_it_needs_and_nothing_heavy(core: Environment) -> None:
    assert "No broken requirements" in core.pip("check")
    installed = {line.split("==")[0].lower() for line in core.pip("freeze").splitlines()}
    assert {"pluggy", "pydantic", "typer"} <= installed
    assert not installed & {*HEAVY, "renderers"}


def test_help_of_the_core_alone_takes_half_a_second_at_most(core: Environment) -> None:
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert "Usage: ajet" in core.run("ajet", "--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # The processor's time, of the fastest: other work on the machine has less of a say in it, but it has one.
    assert any(seconds() <= 0.5 for _ in range(30))


@pytest.mark.parametrize("command", ["--help", "plugins"])
def test_the_core_alone_imports_nothing_heavy(core: Environment, command: str) -> None:
    code = f"import sys; from ajet.cli import run_program; run_program([{command!r}])\n"
    code += f"print('heavy:', [m for m in {HEAVY} if m in sys.modules])"
    assert core.run("python", "-c", code).splitlines()[-1] == "heavy: []"


def test_the_core_alone_lists_only_its_own_plugins(core: Environment) -> None:
    listed = core.plugins()
    assert set(listed.values()) == {"ajet"}
    assert {("backbone", "debug"), ("algorithm", "grpo"), ("chat model", "script")} <= set(listed)


def test_installing_a_plugins_wheel_makes_it_appear(core: Environment, wheels: dict[str, Path]) -> None:
    assert ("judge", "math") not in core.plugins()
    judges = "ajet-plugin-judges"
    with core.having({judges: wheels[judges]}):
        assert core.plugins()["judge", "math"] == "ajet-plugin-judges"
    assert ("judge", "math") not in core.plugins()


def test_the_wheels_of_all_plugins_are_found_and_work_with_their_frameworks(
    core: Environment, wheels: dict[str, Path], tmp_path: Path
) -> None:
    plugins = {name: path for name, path in wheels.items() if name != "ajet"}
    with core.having(plugins, "--no-deps"):
        assert {distribution for _, _, distribution in core.listed()} == set(wheels)
        assert "broken" not in {kind for kind, _, _ in core.listed()}
        with core.borrowing(), ThreadPoolExecutor(len(FRAMEWORKS)) as pool:
            modules = ", ".join(["ajet", *(f"ajet_{name}" for name in FRAMEWORKS)])
            files = core.run("python", "-c", f"import {modules}; print(*(m.__file__ for m in ({modules})))")
            assert all(file.startswith(str(core.bin.parent)) for file in files.split())
            told = pool.map(lambda name: checked(core, tmp_path / name), FRAMEWORKS)
            for name, text in zip(FRAMEWORKS, told, strict=True):
                assert re.search(r"calls captured +32, .*; by agent: solver 32$", text, re.MULTILINE), name
                assert re.search(r"reward +0.75 ", text) and "breaks: none" in text, name


def checked(core: Environment, folder: Path) -> str:
    """What `ajet check` says of the example of a framework."""
    shutil.copytree(REPOSITORY / "examples" / folder.name, folder)
    return core.run("ajet", "check", "job.yaml", "--answers", "answers.yaml", cwd=folder)


# ------------------------------------------------------------------ a plugin written elsewhere

OUTSIDE = {
    "pyproject.toml": """
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"
[project]
name = "brevity"
version = "3.1"
dependencies = ["ajet"]
[project.entry-points.ajet]
brevity = "brevity"
[tool.hatch.build.targets.wheel]
packages = ["brevity"]
""",
    "brevity/__init__.py": '''
"""Short answers are good answers."""
import ajet
from pydantic import Field


class Brevity(ajet.Judge):
    """Reward 1 for an answer of at most so many words."""

    name = "brevity"
    words: int = Field(ge=1, description="Most words of a good answer.")

    async def judge(self, task, output, episode):
        good = len(str(output.response).split()) <= self.words
        return ajet.JudgeOutput(float(good), good)


@ajet.hookimpl
def ajet_plugins():
    from brevity.cities import Cities
    return [Brevity, Cities]
''',
    "brevity/cities.py": '''
import ajet


class Cities(ajet.Reader):
    """Questions about cities."""

    name = "cities"
    cities: tuple[str, ...]

    def tasks(self):
        for city in self.cities:
            yield ajet.Task(city.lower(), f"Where is {city}?")
''',
}
USER = {
    "agent.py": """
import httpx2

def run(task):
    ask = {"model": "any", "messages": [{"role": "user", "content": task.query}]}
    answer = httpx2.post("https://api.example.com/v1/chat/completions", json=ask)
    return answer.json()["choices"][0]["message"]["content"]
""",
    "script.yaml": "- {when: Paris, say: In France.}\n- {say: 'That I would have to look up first.'}\n",
    "job.yaml": """
task: {reader: {type: cities, cities: [Paris, Kyoto]}}
workflow: agent.py:run
judge: {type: brevity, words: 3}
backbone: {name: debug, debug: {answers: {type: script, path: script.yaml}, group_size: 1}}
""",
}


@pytest.fixture(scope="module")
def outside(core: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """The core's environment with a plugin that was written outside of the repository."""
    source = tmp_path_factory.mktemp("brevity")
    write(source, OUTSIDE)
    with core.having({"brevity": source}):
        yield core


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def test_a_plugin_written_elsewhere_is_found_and_shown_with_its_fields(outside: Environment) -> None:
    assert outside.plugins()["judge", "brevity"] == "brevity"
    shown = outside.run("ajet", "plugins", "show", "brevity")
    assert "judge brevity  (brevity 3.1)" in shown and "Most words of a good answer." in shown


def test_a_plugin_written_elsewhere_is_configured_from_yaml_and_used(
    outside: Environment, tmp_path: Path
) -> None:
    write(tmp_path, USER)
    told = outside.run("ajet", "run", "job.yaml", cwd=tmp_path).splitlines()
    verdicts = {line.split()[1].split("/")[1]: line.split()[0] for line in told if "  reward " in line}
    assert verdicts == {"paris": "pass", "kyoto": "miss"}
    told = outside.run("ajet", "run", "job.yaml", "--set", "judge.words=9", cwd=tmp_path).splitlines()
    assert sum(line.startswith("pass") for line in told) == 2


def test_a_misspelt_field_of_such_a_plugin_is_named_with_the_nearest(
    outside: Environment, tmp_path: Path
) -> None:
    write(tmp_path, USER)
    said = outside.run("ajet", "run", "job.yaml", "--set", "judge.wrods=9", cwd=tmp_path, code=2)
    assert said.startswith("error: judge.wrods: unknown key; did you mean 'words'")
