"""The capture tests under other releases of the SDKs, each in an environment of its own.

    python tests/matrix.py                 # all of them; `make test-matrix`
    python tests/matrix.py openai-1.66     # one

Environments lie in .cache/matrix and are kept. The last lines are a summary; the exit status is 1 if a test
failed anywhere.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "matrix"
TESTS = (
    "aiohttp",
    "anthropic",
    "google-re2",
    "hypothesis",
    "jsonschema",
    "pytest",
    "requests",
    "tokenizers",
    "transformers",
)
# It asks for an openai that is newer than the oldest we support, but does not need it. What it needs follows.
RENDERERS = ("renderers", "jinja2", "numpy", "openai-harmony", "prime-pydantic-config", "tiktoken")


@dataclass(frozen=True)
class Environment:
    """What is installed besides the core, and which tests run there."""

    packages: tuple[str, ...]
    plugins: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def subject(self) -> str:
        """The distribution that the environment is about."""
        return re.split("[=<>]", self.packages[0])[0]


SDK = (("openai_sdk",), ("tests/capture", "tests/plugins/openai_sdk"))
ENVIRONMENTS = {
    "openai-1.66": Environment(("openai==1.66.5",), *SDK),
    "openai-2": Environment(("openai>=2,<3",), *SDK),
    "openai-3": Environment(("openai>=3,<4",), *SDK),
    "agentscope-1": Environment(
        ("agentscope==1.0.21", "openai<3", "mcp<2", "greenlet", "tqdm"),
        ("agentscope",),
        ("tests/plugins/agentscope",),
    ),
}


def main() -> int:
    """Run the environments that the command line names, or all."""
    names = sys.argv[1:] or list(ENVIRONMENTS)
    unknown = [name for name in names if name not in ENVIRONMENTS]
    if unknown:
        print(f"{unknown[0]}: no such environment. Known: {', '.join(ENVIRONMENTS)}", file=sys.stderr)
        return 2
    lines, failed = [], False
    for name in names:
        environment = ENVIRONMENTS[name]
        python = make(name, environment)
        done = subprocess.run(
            [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *environment.tests],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        failed = failed or done.returncode != 0
        if done.returncode:
            print(done.stdout)
        last = done.stdout.strip().splitlines()[-1].strip("= ")
        lines.append(f"{name:14} {environment.subject} {version(python, environment.subject):10} {last}")
        print(lines[-1], flush=True)
    print("\nsummary\n" + "\n".join(lines))
    return int(failed)


def make(name: str, environment: Environment) -> str:
    """The Python of an environment, which is made unless it is there."""
    folder = CACHE / name
    python = folder / "bin" / "python"
    wanted = repr((environment, (ROOT / "pyproject.toml").read_text(), TESTS, RENDERERS))
    stamp = folder / "stamp"
    if stamp.exists() and stamp.read_text() == wanted:
        return str(python)
    print(f"{name}: installing {', '.join(environment.packages)}", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    constraints = folder / "constraints.txt"
    constraints.write_text(pins_besides(environment.packages))
    plugins = [part for plugin in environment.plugins for part in ("-e", f"plugins/{plugin}")]
    pip(python, "-e", ".", *plugins, *environment.packages, *TESTS, "-c", str(constraints))
    pip(python, "--no-deps", "-e", "plugins/local", "-e", "plugins/readers", "-e", "plugins/judges")
    pip(python, *RENDERERS[1:], "-c", str(constraints))
    pip(python, "--no-deps", RENDERERS[0], "-c", str(constraints))
    stamp.write_text(wanted)
    return str(python)


def pins_besides(packages: tuple[str, ...]) -> str:
    """Our tested versions, without those of the packages themselves and of other frameworks."""
    named = {re.split("[=<>]", package)[0] for package in packages}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return "\n".join(line for line in lines if line.partition("==")[0] not in named)


def pip(python: Path, *arguments: str) -> None:
    """Install quietly."""
    command = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", *arguments]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "PIP_NO_INPUT": "1"})


def version(python: str, distribution: str) -> str:
    """The installed version."""
    code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
