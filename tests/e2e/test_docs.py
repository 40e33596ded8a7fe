"""What README and guides show, run as it stands there."""

from __future__ import annotations

import json
import re
import shlex
import statistics
from pathlib import Path

import pytest

from ajet.interfaces.workflow import load_object
from ajet.rollout.recorder import METRICS
from ajet.tracker.breaks import CAUSES
from ajet.types import Task, WorkflowOutput
from tests.pages import files, page

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def example(project) -> tuple[str, str]:
    """The README's files, in a folder of their own; its two commands, as printed."""
    shown = files(page("README.md"))
    assert set(shown) == {"my_agent.py", "tasks.jsonl"}
    for name, text in shown.items():
        (project.folder / name).write_text(text)
    commands = re.findall(
        r"^ajet (run --model smollm2 --workflow my_agent.*)$", page("README.md"), re.MULTILINE
    )
    assert len(commands) == 2
    return commands[0], commands[1]


@pytest.mark.kept
def test_your_own_agent_in_ten_lines_runs_as_the_readme_says(project, example, tiny_model) -> None:
    debugged = project.ajet(*shlex.split(example[0].replace("smollm2", str(tiny_model))))
    assert "batch:" in debugged
    lines = [line for line in files(page("README.md"))["my_agent.py"].splitlines() if line.strip()]
    assert len(lines) <= 10


@pytest.mark.slow
@pytest.mark.models("smollm2")
def test_the_readmes_example_learns(project, example) -> None:
    """As printed, in as many steps as printed: something to learn, and it is learned."""
    steps = int(re.search(r"--steps (\d+)", example[1])[1])
    project.ajet(*shlex.split(example[1]))
    (run,) = project.runs("runs")
    metrics = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    rewards = [line["reward"] for line in metrics if line["type"] == "train"]
    assert len(rewards) == steps
    start, end = statistics.mean(rewards[:2]), statistics.mean(rewards[-3:])
    assert start >= 0.05 and end - start >= 0.3, rewards


@pytest.mark.parametrize("answer", ["7", "The answer is 7.", "3 + 4 = 7"])
@pytest.mark.parametrize(("wrong", "reward"), [(False, 1.0), (True, 0.0)])
def test_the_readmes_judge_compares_numbers(example, project, answer, wrong, reward) -> None:
    judge = load_object(f"{project.folder / 'my_agent.py'}:judge", "judge")
    task = Task("t", "What is 3 + 4?", metadata={"answer": "7"})
    response = answer.replace("7", "17") if wrong else answer
    assert judge(task, WorkflowOutput(response=response)) == reward


@pytest.mark.parametrize(
    "path", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(path) -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", page(path)):
        assert ((ROOT / path).parent / link).exists(), f"{path}: {link}"


def test_the_trackers_guide_tells_every_cause_of_a_break_with_its_remedy() -> None:
    text = page("docs/tracker.md")
    assert re.findall(r"^\| ([a-z -]+) \| ([A-Z].+) \|$", text, re.MULTILINE) == list(CAUSES.items())


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("*/*/README.md")]
PIP = [
    (page.relative_to(ROOT), folder)
    for page in sorted(PAGES)
    for line in re.findall(
        r"^(?:\$ )?pip install .*", page.read_text(encoding="utf-8").replace("\\\n", " "), re.MULTILINE
    )
    for folder in re.findall(
        r"(?<=[ '])(?:-e '?)?(\.?[\w./-]*/[\w./-]*|\.)(?=[\['\s]|$)", line.partition("#")[0]
    )
    if f"\n`{folder.removeprefix('./')}/" not in page.read_text(encoding="utf-8")  # the page makes it
]


@pytest.mark.parametrize(("page", "folder"), PIP, ids=[f"{page}-{folder}" for page, folder in PIP])
def test_what_pip_is_told_to_install_from_a_clone_is_there(page: Path, folder: str) -> None:
    assert (ROOT / folder / "pyproject.toml").is_file(), f"{page}: pip install {folder}"


def test_some_of_these_folders_are_those_of_the_backbone_verl() -> None:
    assert {"plugins/verl", "plugins/local", "."} <= {f for page, f in PIP if str(page) == "docs/verl.md"}
