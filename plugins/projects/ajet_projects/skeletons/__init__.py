"""What ``ajet plugin new`` writes: a package with one plugin and a test that passes.

The template files are in this folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ajet_projects.project import filled


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kind of plugin consists of: its description, the files of its package, and its dependencies."""

    about: str
    modules: Mapping[str, str] = field(default_factory=dict)
    """Further modules of the package: name to template file."""
    needs: tuple[str, ...] = ("ajet",)
    show: str = "ajet plugins show «name»"


KINDS = {
    "judge": Kind("A judge for AgentJet: `judge: {type: «name»}` in a job."),
    "reader": Kind("A reader for AgentJet: `task: {reader: {type: «name»}}` in a job."),
    "workflow": Kind(
        "A workflow for AgentJet: `workflow: {type: «name»}` in a job.",
    ),
    "logger": Kind("A logger for AgentJet: `run: {loggers: [«name»]}` in a job."),
    "filter": Kind("A filter for AgentJet: `train: {filters: [«name»]}` in a job."),
    "algorithm": Kind(
        "An algorithm for AgentJet: `train: {algorithm: «name»}` in a job.", needs=("ajet", "numpy")
    ),
    "service": Kind("A service for AgentJet: `ajet run job.yaml --with «name»`."),
    "wire": Kind(
        "An HTTP format of LLM requests for AgentJet: `POST BASE_URL/«name»` in an episode.",
        show="ajet plugins",
    ),
    "engine": Kind(
        "An engine for AgentJet: `eval: {engine: «name»}` in a job, or `ajet serve MODEL --engine «name»`.",
        {"engine": "pairs"},
        ("ajet[chat]", "numpy", "transformers"),
    ),
    "backbone": Kind(
        "A backbone for AgentJet: `ajet run job.yaml --backbone «name»`, then `ajet eval job.yaml --model CHECKPOINT "
        "--set eval.engine=«name»`.",
        {"engine": "pairs", "trainer": "trainer"},
        ("ajet[chat]", "numpy", "torch", "transformers"),
    ),
}


def files(kind: str, name: str) -> dict[str, str]:
    """The package's files by path, for a plugin of this name (lower case, digits, underscores)."""
    words, package = name.split("_"), f"ajet_{name}"
    about = KINDS[kind]
    values = {
        "about": about.about,
        "show": about.show,
        "dependencies": ", ".join(f'"{need}"' for need in about.needs),
        "kind": kind,
        "article": "an" if kind[0] in "aeiou" else "a",
        "name": name,
        "package": package,
        "distribution": f"ajet-{name.replace('_', '-')}",
        "title": " ".join(words).capitalize(),
        "class": "".join(word.capitalize() for word in words),
    }
    written = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "readme.md",
        f"{package}/__init__.py": f"{kind}.py",
        **{f"{package}/{module}.py": f"{file}.py" for module, file in about.modules.items()},
        f"tests/test_{name}.py": f"{kind}_test.py",
    }
    here = Path(__file__).parent
    filled_in = {path: filled(here / f"{file}.txt", values) for path, file in written.items()}
    return filled_in | {f"{package}/py.typed": ""}
