"""The capture tests under other releases of the SDKs, the quick starts of agent frameworks and the loggers' tools that do not
fit beside each other in .venv, libraries of environments, and a server with Tinker's API: each group in an environment of its own.

    python tests/matrix.py                 # all of them; `make test-matrix`
    python tests/matrix.py openai-1.66     # one
    python tests/matrix.py agentscope-1 -- tests/plugins/agentscope/samples     # some of its tests

uv installs them, as pip's resolver takes tens of minutes for some of these sets. Environments lie in
.cache/matrix and are kept. The last lines are a summary; the exit status is 1 if a test failed anywhere.
"""

from __future__ import annotations

import contextlib
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
    "google-genai",
    "hypothesis",
    "jsonschema-rs",
    "pytest",
    "requests",
    "tokenizers",
    "transformers",
)
# It asks for an openai that is newer than the oldest we support, but does not need it. What it needs follows.
RENDERERS = ("renderers", "jinja2", "numpy", "openai-harmony", "prime-pydantic-config", "tiktoken")


@dataclass(frozen=True)
class Library:
    """A library of environments, or a server. AgentJet is not installed there: its tests run elsewhere, and get this Python."""

    packages: tuple[str, ...]
    test: str
    python: str
    """The oldest Python that it takes."""
    alone: str = ""
    """What is installed without its requirements and on a Python that it does not name; ``packages`` has what it imports."""

    @property
    def subjects(self) -> list[str]:
        """The distributions that are pinned."""
        return [name_of(package) for package in (self.alone, *self.packages) if "==" in package]


@dataclass(frozen=True)
class Environment:
    """What is installed besides the core, and which tests run there."""

    packages: tuple[str, ...]
    plugins: tuple[str, ...]
    tests: tuple[str, ...]
    constrained: bool = True
    """Whether everything else is what constraints.txt names; frameworks have upper bounds of their own."""
    server: Library | None = None
    """What runs beside it, in an environment of its own."""

    @property
    def subjects(self) -> list[str]:
        """The distributions that the environment is about: those that are pinned, else the first."""
        pinned = [name_of(package) for package in self.packages if "==" in package]
        return pinned or [name_of(self.packages[0])]


def name_of(requirement: str) -> str:
    """The distribution that a requirement names."""
    return re.split(r"[=<>\[]", requirement)[0]


SDK = (("openai_sdk",), ("tests/capture", "tests/plugins/openai_sdk"))


def frameworks(packages: tuple[str, ...], *tests: str) -> Environment:
    """Frameworks beside each other, with the tests of their quick starts."""
    files = tuple(f"tests/plugins/quick_starts/test_{name}.py" for name in tests)
    return Environment(packages, ("openai_sdk", "langgraph"), files, constrained=False)


# What the server of skyrl[tinker,jax] imports; it starts its engine by uv. It asks for Python 3.12, for which PyPI's torch brings
# 2.7 GB of CUDA, and for the flax of that Python. On 3.11, a CPU build of torch may be at hand.
SKYRL = (
    "tinker==0.25.0",
    "torch==2.13.0",
    "peft==0.18.1",
    "transformers>=5.6.1,<=5.16.1",
    "jax>=0.8,<1",
    "flax>=0.12",
    "optax>=0.2.5",
    "aiohttp",
    "aiosqlite",
    "cloudpathlib>=0.23.0",
    "fastapi",
    "orjson",
    "psutil",
    "rich>=14.1.0",
    "sqlalchemy[asyncio]",
    "sqlmodel",
    "uv",
    "uvicorn",
    "zstandard>=0.23.0",
)

QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_DISABLE_TRACKING": "true",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "OTEL_SDK_DISABLED": "true",
}
"""Frameworks fetch price lists and send statistics while they are imported, if nothing forbids it."""

ENVIRONMENTS: dict[str, Environment | Library] = {
    "openai-1.66": Environment(("openai==1.66.5",), *SDK),
    "openai-2": Environment(("openai>=2,<3",), *SDK),
    "openai-3": Environment(("openai>=3,<4",), *SDK),
    "agentscope-1": Environment(
        ("agentscope==1.0.21", "openai<3", "mcp<2", "greenlet", "tqdm"),
        (
            "advice",
            "agentscope",
            "environments",
            "local",
            "loggers",
            "migrate",
            "online",
            "prompts",
            "readers[huggingface]",
        ),
        (
            "tests/plugins/agentscope",
            "tests/plugins/online/test_agentscope_1.py",
            "tests/examples/test_agentscope_tuner.py",
        ),
    ),
    "frameworks-openai-3": frameworks(
        (
            "dspy==3.4.1",
            "pydantic-ai-slim[openai]==2.68.0",
            "smolagents[openai]==1.26.0",
            "haystack-ai==3.4.0",
            "agno==3.1.10",
            "agent-framework-openai==1.17.0",
            "langgraph-supervisor==0.0.31",
            "langgraph-swarm==0.1.0",
            "deepagents==0.7.32",
            "langchain",
            "langchain-openai",
            "openai>=3,<4",
        ),
        *("dspy", "pydantic_ai", "smolagents", "haystack", "agno", "agent_framework", "langgraph_teams"),
    ),
    "frameworks-openai-2": frameworks(
        (
            "google-adk==2.13.0",
            "litellm==1.106.2",
            "instructor==1.17.0",
            "llama-index-core==0.14.25",
            "llama-index-llms-openai-like==0.8.1",
            "strands-agents[openai]==1.62.0",
            "openai<3",
        ),
        *("google_adk", "litellm", "instructor", "llama_index", "strands"),
    ),
    "loggers": Environment(  # MLflow, SwanLab, Trackio and an S3 server want other versions of what constraints.txt pins
        (
            "mlflow==3.17.2",
            "swanlab==0.10.3",
            "trackio==0.43.0",
            "moto[server,s3]==5.2.5",
            "obstore",
            "opentelemetry-exporter-otlp-proto-http",
            "openai",
        ),
        ("environments", "loggers", "readers"),
        ("tests/plugins/loggers",),
        constrained=False,
    ),
    "skyrl": Environment(  # a server that speaks Tinker's API, and the client's version that it speaks
        ("tinker==0.25.0", "starlette"),
        ("local", "tinker"),
        ("tests/plugins/tinker/test_skyrl.py",),
        server=Library(SKYRL, "", "3.11", alone="skyrl==0.4.0"),
    ),
    "crewai": frameworks(("crewai==1.15.30", "openai<3"), "crewai"),
    # Its harnesses are programs of uv. The words are of TextArena's games.
    "verifiers": Library(("verifiers==0.4.0", "textarena==0.7.4", "nltk", "uv"), "verifiers", "3.11"),
    "openenv": Library(("openenv==0.10.0", "openenv-dipg-safety==0.1.67"), "openenv", "3.11"),
    "nemo-gym": Library(("nemo-gym==0.4.0", "tiktoken"), "nemo_gym", "3.12"),
    "inspect": Library(("inspect-ai==0.3.285", "inspect-evals==0.26.0", "openai"), "inspect", "3.11"),
    "mcp-servers": Library(("mcp-server-time==2026.10.19", "mcp-server-git==2026.10.19"), "mcp", "3.11"),
}


def main() -> int:
    """Run the environments that the command line names, or all; after ``--``, instead of their tests those named there."""
    given = sys.argv[1:]
    names, tests = (
        (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    )
    names = names or list(ENVIRONMENTS)
    unknown = [name for name in names if name not in ENVIRONMENTS]
    if unknown:
        print(f"{unknown[0]}: no such environment. Known: {', '.join(ENVIRONMENTS)}", file=sys.stderr)
        return 2
    lines, failed = [], False
    for name in names:
        environment = ENVIRONMENTS[name]
        if isinstance(environment, Library):
            python = make_library(name, environment)
            runs, given = Path(sys.executable), (f"tests/plugins/environments/test_{environment.test}.py",)
        else:
            python = runs = make(name, environment)
            given = environment.tests
            if environment.server:
                python = make_library(f"{name}-server", environment.server)
        done = subprocess.run(
            [
                *(runs, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu"),
                *(tests or given),
            ],
            env={**os.environ, **QUIET, "AJET_LIBRARY_PYTHON": str(python)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        failed = failed or done.returncode != 0
        if done.returncode:
            print(done.stdout)
        last = done.stdout.strip().splitlines()[-1].strip("= ")
        lines.append(
            f"{name:20} {versions(python, (getattr(environment, 'server', None) or environment).subjects)}: {last}"
        )
        print(lines[-1], flush=True)
    print("\nsummary\n" + "\n".join(lines))
    return int(failed)


def make(name: str, environment: Environment) -> Path:
    """The Python of an environment, which is made unless it is there."""
    folder = CACHE / name
    python = folder / "bin" / "python"
    wanted = repr((environment, (ROOT / "pyproject.toml").read_text(), TESTS, RENDERERS))
    stamp = folder / "stamp"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"{name}: installing {', '.join(environment.packages)}", flush=True)
    venv.create(folder, clear=True)
    constraints = folder / "constraints.txt"
    constraints.write_text(pins_besides(environment.packages) if environment.constrained else "")
    given = ("-c", str(constraints))
    plugins = [part for plugin in environment.plugins for part in ("-e", f"plugins/{plugin}")]
    install(python, "-e", ".", *plugins, *environment.packages, *TESTS, *RENDERERS[1:], *given)
    others = [
        part
        for name in ("local", "environments", "readers", "judges", "audit")
        for part in ("-e", f"plugins/{name}")
    ]
    install(python, "--no-deps", *others)
    install(python, "--no-deps", RENDERERS[0], *given)
    stamp.write_text(wanted)
    return python


def make_library(name: str, library: Library) -> Path:
    """The Python of a library's environment, which is made unless it is there."""
    folder = CACHE / name
    stamp, wanted = folder / "stamp", repr(library)
    if not (stamp.exists() and stamp.read_text() == wanted):
        print(f"{name}: installing {', '.join(library.packages)}", flush=True)
        subprocess.run([python_from(library.python), "-m", "venv", "--clear", folder], check=True)
        install(folder / "bin" / "python", *library.packages)
        if library.alone:
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-qq", "--no-deps"]
            subprocess.run([*pip, "--ignore-requires-python", library.alone], check=True)
        stamp.write_text(wanted)
    return folder / "bin" / "python"


def python_from(oldest: str) -> str:
    """A Python that is new enough, perhaps one of pyenv's. Exits if there is none."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    test = f"import sys; sys.exit(sys.version_info < {tuple(map(int, oldest.split('.')))})"
    for python in (
        sys.executable,
        "python3.12",
        "python3.13",
        *sorted(map(str, versions.glob("3.1[2-9]*/bin/python"))),
    ):
        with contextlib.suppress(OSError):
            if subprocess.run([python, "-c", test], capture_output=True).returncode == 0:
                return python
    sys.exit(f"Python {oldest} or newer is needed. Install one.")


def pins_besides(packages: tuple[str, ...]) -> str:
    """Our tested versions, without those of the packages themselves and of other frameworks."""
    named = {name_of(package) for package in packages}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return "\n".join(line for line in lines if line.partition("==")[0] not in named)


def install(python: Path, *arguments: str) -> None:
    """Install quietly into the environment of a Python, from where pip would."""
    tools = CACHE / "tools"
    if not (tools / "bin" / "uv").exists():
        venv.create(tools, with_pip=True, clear=True)
        pip = [str(tools / "bin" / "python"), "-m", "pip", "install", "-qq", "--no-input", "uv"]
        subprocess.run([*pip, "--disable-pip-version-check"], cwd=ROOT, check=True)
    as_pip = {"UV_FIND_LINKS": "PIP_FIND_LINKS", "SSL_CERT_FILE": "PIP_CERT"}
    variables = {ours: os.environ.get(ours) or os.environ.get(pips) for ours, pips in as_pip.items()}
    environment = {k: v for k, v in {**os.environ, **variables}.items() if v}
    command = [str(tools / "bin" / "uv"), "pip", "install", "-q", "--python", str(python), *arguments]
    subprocess.run(command, cwd=ROOT, check=True, env=environment)


def versions(python: Path, distributions: list[str]) -> str:
    """``dspy 3.4.1, agno 3.1.10``: what is installed."""
    code = f"import importlib.metadata as m; print(', '.join(f'{{d}} {{m.version(d)}}' for d in {distributions!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
