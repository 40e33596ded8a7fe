"""Installs each wheel of dist/ alone, in an empty environment, and checks that it works there; writes what each needs as an SBOM.

    python tools/wheels_alone.py [ajet-plugin-langgraph ...]

A wheel passes if its requirements agree, its packages are imported, `ajet --help`, `ajet plugins` and `ajet doctor` work, and a
workflow runs on scripted answers. What needs a model's tokenizer or a trainer, `ajet check` and `ajet run`, works or says in one line
what to install. dist/sbom/ then holds one CycloneDX file for each wheel, with the versions that were installed. The last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from install import find_uv, uv_environment

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
APART = ("ajet-plugin-verl",)
"""What needs other versions than constraints.txt names. Only torch is pinned there, so that its CPU build is found."""
JOB = {
    "agent.py": """
import ajet
import httpx


class Questions(ajet.Reader):
    name = "questions"

    def tasks(self):
        yield ajet.Task("sum", "What is 2 + 3?", metadata={"answer": "5"})


async def run(task):
    ask = {"model": "any", "messages": [{"role": "user", "content": task.query}]}
    async with httpx.AsyncClient() as client:
        answer = await client.post("https://api.example.com/v1/chat/completions", json=ask)
    return answer.json()["choices"][0]["message"]["content"]


def judge(task, output):
    return float(output.response == task.metadata["answer"])
""",
    "answers.yaml": '- say: "5"\n',
    "job.yaml": """
workflow: agent.py:run
judge: agent.py:judge
task: {reader: {type: agent.py:Questions}}
backbone: {name: local, debug: {answers: {type: script, path: answers.yaml}, group_size: 1}}
""",
}
"""An agent that needs no plugin."""
VARIABLES = {**{k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}, "OPENAI_API_KEY": "unset"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="DISTRIBUTION", help="default: all in dist/")
    options = parser.parse_args()
    wheels = {path.name.split("-")[0].replace("_", "-"): path for path in sorted(DIST.glob("*.whl"))}
    if not wheels:
        raise SystemExit("dist/ holds no wheels: run tools/release.py first")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        # One place for all environments, one after the other: uv links the same files into each, which are compiled once.
        VARIABLES["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "compiled")
        for name in options.names or wheels:
            found[name] = check(name, wheels[name], Environment(Path(folder) / "environment"))
            print(f"{name}: {found[name]}", flush=True)
    print(json.dumps(found))


class Environment:
    """A virtual environment in a folder, into which uv installs from dist/ and from where pip would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._uv = [*find_uv(), "--quiet"]
        self.uv("venv", "--clear", str(folder))
        self.python = folder / "bin" / "python"

    def uv(self, *arguments: str) -> None:
        """Run uv; raises `SystemExit` with its output if it fails."""
        variables = uv_environment()
        variables["UV_FIND_LINKS"] = ",".join(filter(None, [str(DIST), variables.get("UV_FIND_LINKS")]))
        run([*self._uv, *arguments], variables)

    def install(self, *arguments: str, apart: bool = False) -> None:
        """Install, with the versions that AgentJet was tested with, or, if `apart`, with the newest that fit."""
        pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines(keepends=True)
        constraints = self.folder / "constraints.txt"
        constraints.write_text(
            "".join(pin for pin in pins if not apart or pin.startswith("torch==")), encoding="utf-8"
        )
        self.uv("pip", "install", "--python", str(self.python), "-c", str(constraints), *arguments)

    def megabytes(self) -> float:
        """What is installed, in MiB."""
        return sum(path.lstat().st_size for path in self.folder.rglob("*") if path.is_file()) / 2**20

    def run(self, *command: str, codes: tuple[int, ...] = (0,)) -> str:
        """The output of a program of the environment; raises `SystemExit` with it if the program ends with another code."""
        return run([str(self.folder / "bin" / command[0]), *command[1:]], VARIABLES, self.folder, codes)


def run(
    command: list[str], variables: dict[str, str], cwd: Path | None = None, codes: tuple[int, ...] = (0,)
) -> str:
    """The output of a program; raises `SystemExit` with it if the program ends with another code."""
    done = subprocess.run(
        command,
        env=variables,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode not in codes:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}")
    return done.stdout


def check(name: str, wheel: Path, environment: Environment) -> dict[str, Any]:
    """Install one wheel alone and use it."""
    started = time.monotonic()
    environment.install(str(wheel), apart=name in APART)
    environment.uv("pip", "check", "--python", str(environment.python))
    environment.run("python", "-c", f"import {', '.join(packages(wheel))}")
    listed = environment.run("ajet", "plugins")
    if f" {name} " not in f"{listed} ".replace("\n", " ") or "broken" in listed:
        raise SystemExit(f"{name}: its plugins are missing or broken:\n{listed}")
    use(name, environment, listed)
    megabytes = environment.megabytes()
    bill(name, environment)
    return {"megabytes": round(megabytes, 1), "seconds": round(time.monotonic() - started, 1)}


def use(name: str, environment: Environment, listed: str) -> None:
    """Run the commands that a newcomer begins with; ``listed`` is what `ajet plugins` prints."""
    for file, text in JOB.items():
        (environment.folder / file).write_text(text, encoding="utf-8")
    environment.run("ajet", "--help")
    # 1 where a plugin names another program that it needs.
    found = environment.run("ajet", "doctor", codes=(0, 1))
    if not re.search(r"^ok +ajet +\d", found, re.MULTILINE):
        raise SystemExit(f"{name}: `ajet doctor` fails:\n{found}")
    scripted = environment.run("ajet", "run", "job.yaml", "--backbone", "debug")
    if "reward 1.000, failures: none" not in scripted:
        raise SystemExit(f"{name}: a workflow on scripted answers fails:\n{scripted}")
    able = re.search(r"^backbone +local ", listed, re.MULTILINE)
    commands = [["check", "job.yaml", "--answers", "answers.yaml", "--model", "calculator"]]
    if not able:  # training is checked by bench/from_wheels.py
        commands.append(["run", "job.yaml"])
    for command in commands:
        told = environment.run("ajet", *command, codes=(0,) if able else (2,)).strip()
        if not able and ("\n" in told or "pip install 'ajet[local]'" not in told):
            raise SystemExit(f"{name}: `ajet {command[0]}` does not say in one line what to install:\n{told}")


def packages(wheel: Path) -> list[str]:
    """The packages at the top of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        files = [name.split("/") for name in archive.namelist()]
    return sorted(parts[0] for parts in files if len(parts) == 2 and parts[1] == "__init__.py")


def bill(name: str, environment: Environment) -> None:
    """Write the software bill of materials of an environment."""
    (DIST / "sbom").mkdir(exist_ok=True)
    target = DIST / "sbom" / f"{name}.cdx.json"
    # Not in the tests' environment: there, a package that it needs makes `import jsonschema` take seconds.
    python = ROOT / ".venv-build" / "bin" / "python"
    command = [str(python), "-m", "cyclonedx_py", "environment", "--output-reproducible", "--of", "JSON"]
    run([*command, "-o", str(target), str(environment.python)], VARIABLES)


if __name__ == "__main__":
    main()
