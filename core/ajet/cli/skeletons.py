"""What ``ajet plugin new`` writes: a package with one plugin and a test that passes."""

from __future__ import annotations

KINDS = ("judge", "reader", "workflow")

_PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{distribution}"
version = "0.1.0"
description = "{title}: a {kind} for AgentJet"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["ajet"]

[project.entry-points.ajet]
{package} = "{package}"

[tool.hatch.build.targets.wheel]
packages = ["{package}"]
"""
_README = """# {distribution}

{about}

```
pip install -e .
pytest
ajet plugins show {name}
```

{use}
"""
_ABOUT = {
    "judge": "A judge for AgentJet: `judge: {{type: {name}}}` in a job.",
    "reader": "A reader for AgentJet: `task: {{reader: {{type: {name}}}}}` in a job.",
    "workflow": "Workflows for AgentJet by a scheme of their own: `workflow: {name}:WORDS` in a job.",
}
_CODE = {
    "judge": '''"""{title}: what an episode is worth."""

from __future__ import annotations

from pydantic import Field

import ajet


class {cls}(ajet.Judge):
    """Reward 1 for a response of at most so many words, else 0."""

    name = "{name}"

    words: int = Field(default=20, ge=1, description="Most words of a good response.")

    async def judge(
        self, task: ajet.Task, output: ajet.WorkflowOutput, episode: ajet.EpisodeView
    ) -> ajet.JudgeOutput:
        """The verdict. An exception fails this episode only."""
        count = len(str(output.response or "").split())
        good = 0 < count <= self.words
        return ajet.JudgeOutput(reward=float(good), is_success=good, metrics={{"words": float(count)}})


@ajet.hookimpl
def ajet_judges() -> list[type[ajet.Judge]]:
    return [{cls}]
''',
    "reader": '''"""{title}: where tasks come from."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

import ajet
from ajet.reader import SelectingReader


class {cls}(SelectingReader):
    """Multiplication tasks. Filters, order, parts, limit and repetition come with the base."""

    name = "{name}"

    largest: int = Field(default=9, ge=2, description="The largest factor.")

    def source(self) -> Iterator[ajet.Task]:
        """All tasks in the source's order, each with an id of its own. Raise ajet.ConfigError, with the
        place, where the data is bad."""
        for first in range(2, self.largest + 1):
            for second in range(first, self.largest + 1):
                yield ajet.Task(
                    id=f"{{first}}x{{second}}",
                    query=f"What is {{first}} * {{second}}?",
                    metadata={{"answer": str(first * second), "first": first}},
                )


@ajet.hookimpl
def ajet_readers() -> list[type[ajet.Reader]]:
    return [{cls}]
''',
    "workflow": '''"""{title}: workflows by the scheme ``{name}:``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ajet


@ajet.hookimpl
def ajet_workflows(workflow: Any, folder: Path) -> ajet.Workflow | None:
    """``{name}:WORDS`` asks the model the task's question after these words."""
    if not isinstance(workflow, str) or not workflow.startswith("{name}:"):
        return None
    words = workflow.removeprefix("{name}:").strip()
    if not words:
        raise ajet.ConfigError(f"workflow {{workflow}}: write {name}: and what to ask before the question.")

    async def run(task: ajet.Task, tuner: ajet.Tuner) -> str:
        import httpx2  # inside an episode every client on httpx is answered by the model in training

        ask = {{"model": "any", "messages": [{{"role": "user", "content": f"{{words}} {{task.query}}"}}]}}
        headers = {{"authorization": f"Bearer {{tuner.api_key}}"}}
        async with httpx2.AsyncClient(headers=headers) as client:
            answer = await client.post(f"{{tuner.base_url}}/chat/completions", json=ask)
        answer.raise_for_status()
        return str(answer.json()["choices"][0]["message"]["content"])

    return ajet.Workflow(workflow, run, True, 2)
''',
}
_TEST = {
    "judge": """from __future__ import annotations

import asyncio

import ajet
import pytest

from {package} import {cls}


@pytest.mark.parametrize(("response", "reward"), [("a short one", 1.0), ("word " * 21, 0.0), ("", 0.0), (None, 0.0)])
def test_long_and_empty_responses_are_worth_nothing(response: object, reward: float) -> None:
    task, output = ajet.Task("t", "question"), ajet.WorkflowOutput(response=response)
    verdict = asyncio.run({cls}().judge(task, output, ajet.EpisodeView("e", "t", 0, 0)))
    assert verdict.reward == reward
""",
    "reader": """from __future__ import annotations

from ajet.testing.readers import check_reader

from {package} import {cls}


def test_it_keeps_to_the_contract_of_readers() -> None:
    tasks = check_reader({cls}(largest=5))
    assert len(tasks) == 10 and tasks[0].metadata["answer"] == "4"


def test_tasks_can_be_chosen() -> None:
    assert [t.id for t in {cls}(largest=5, where={{"first": 4}}).tasks()] == ["4x4", "4x5"]
""",
    "workflow": """from __future__ import annotations

from pathlib import Path

import ajet
import pytest

from {package} import ajet_workflows


def test_it_makes_workflows_of_its_scheme_only() -> None:
    assert ajet_workflows("other:words", Path()) is None
    found = ajet_workflows("{name}: Answer briefly.", Path())
    assert found is not None and found.is_async


def test_a_scheme_without_words_is_an_error() -> None:
    with pytest.raises(ajet.ConfigError, match="write {name}:"):
        ajet_workflows("{name}:", Path())
""",
}


def files(kind: str, name: str) -> dict[str, str]:
    """The package's files, by their path, for a plugin of such a name (lower case, digits, underscores)."""
    words = name.split("_")
    values = {
        "kind": kind,
        "name": name,
        "package": f"ajet_{name}",
        "distribution": f"ajet-{name.replace('_', '-')}",
        "title": " ".join(words).capitalize(),
        "cls": "".join(word.capitalize() for word in words),
    }
    about = _ABOUT[kind].format(**values)
    use = "`ajet plugins` lists it." if kind != "workflow" else "`ajet plugins` lists its hook."
    readme = _README if kind != "workflow" else _README.replace("ajet plugins show {name}", "ajet plugins")
    package = values["package"]
    return {
        "pyproject.toml": _PYPROJECT.format(**values),
        "README.md": readme.format(**values, about=about, use=use),
        f"{package}/__init__.py": _CODE[kind].format(**values),
        f"{package}/py.typed": "",
        f"tests/test_{name}.py": _TEST[kind].format(**values),
    }
