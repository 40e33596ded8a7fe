"""The tests under other Python versions and under the oldest requirements that are allowed, each in an environment of its own.

    python tests/versions.py 3.12 3.13 lowest      # `make test-versions`
    python tests/versions.py lowest tests/core     # what follows the versions is passed to pytest

`lowest` has the lowest version of each direct requirement, and Python 3.11. Environments lie in .cache/versions and are
kept while the pyproject files stay the same. The last lines are a summary; the exit status is 1 if a test failed anywhere.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tools"))

from install import find_uv, uv_environment  # noqa: E402

CACHE = ROOT / ".cache" / "versions"
VERSIONS = ("3.12", "3.13", "3.14", "lowest")
EXTRAS = {"local": "quantize", "loggers": "otel", "readers": "all", "online": "postgres"}
"""Plugins with the extras that the tests need."""
ALONE = ("verl", "trinity", "vllm")
"""Plugins whose requirements fit no other ones; the tests here use what they say where these are missing."""
TOOLS = (
    *(
        "aiohttp",
        "anthropic",
        "build",
        "dunamai",
        "google-genai",
        "hatchling",
        "hypothesis",
        "ipykernel",
        "langchain",
        "nbclient",
        "orjson",
        "playwright",
    ),
    *("pytest", "pytest-httpserver", "pytest-xdist", "reasoning-gym", "requests", "ruff", "uvloop"),
)
"""What the tests need besides, in the versions of constraints.txt."""


def main() -> int:
    arguments = sys.argv[1:]
    versions = [version for version in arguments if version in VERSIONS] or ["3.12", "3.13", "lowest"]
    given = [argument for argument in arguments if argument not in VERSIONS]
    lines, failed = [], False
    for version in versions:
        python = make(version)
        command = [
            str(python),
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *(given or ["-n", "2", "--dist", "loadfile"]),
        ]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        failed = failed or done.returncode != 0
        if done.returncode:
            print(done.stdout)
        lines.append(f"{version:8} {done.stdout.strip().splitlines()[-1].strip('= ')}")
        print(lines[-1], flush=True)
    print("\nsummary\n" + "\n".join(lines))
    return int(failed)


def make(version: str) -> Path:
    """The Python of an environment, which is made unless it is there."""
    folder = CACHE / version
    python = folder / "bin" / "python"
    projects = [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]
    wanted = "\n".join(
        path.read_text(encoding="utf-8") for path in [*projects, ROOT / "constraints.txt", Path(__file__)]
    )
    stamp = folder / "stamp"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    print(f"{version}: installing", flush=True)
    lowest = version == "lowest"
    uv("venv", "--clear", "--seed", "--python", "3.11" if lowest else version, str(folder))
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(pins(lowest)), encoding="utf-8")
    plugins = [path.parent.name for path in projects[1:]]
    together = [
        f"plugins/{name}" + (f"[{EXTRAS[name]}]" if name in EXTRAS else "")
        for name in plugins
        if name not in ALONE
    ]
    sources = [part for source in (".[chat]", *together) for part in ("-e", source)]
    resolution = ("--resolution", "lowest-direct") if lowest else ()
    install = ("pip", "install", "--python", str(python))
    uv(*install, *resolution, "-c", str(constraints), *sources, *TOOLS)
    uv(*install, "--no-deps", *(part for name in ALONE for part in ("-e", f"plugins/{name}")))
    stamp.write_text(wanted, encoding="utf-8")
    return python


def pins(lowest: bool) -> list[str]:
    """The constraints of an environment: what AgentJet was tested with, or, for the lowest versions, the tools of the tests."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not lowest:
        return lines
    # The build of torch that this environment has: an older one may exist for CUDA only. AgentScope 1 fits no openai 3;
    # tests/matrix.py has an environment for it.
    return [
        *(line for line in lines if line.partition("==")[0] in (*TOOLS, "agentscope")),
        f"torch=={importlib.metadata.version('torch')}",
    ]


def uv(*arguments: str) -> None:
    """Run uv quietly; raises `CalledProcessError` if it fails."""
    subprocess.run(
        [*find_uv(), "--quiet", *arguments], cwd=ROOT, check=True, env=uv_environment() | {"VIRTUAL_ENV": ""}
    )


if __name__ == "__main__":
    sys.exit(main())
