"""docs/judges.md, run as it stands there; a scripted model listens where its judges ask."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet.cli import run_program
from ajet.plugins import InstalledPlugin, load_plugins
from ajet_judges import Exact
from ajet_judges.rubric import read_rubric
from tests.pages import files, page

from .judge_model import Asked, serving
from .test_sandbox import WALLS

PAGE = page("docs/judges.md")
ADDRESS = "http://127.0.0.1:8000/v1"


def sections() -> dict[str, str]:
    """The page's sections by title; what comes before the first is its own."""
    parts = re.split(r"^## (.+)\n", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def runs() -> list[tuple[str, str, str]]:
    """(section, command, the lines that follow it)"""
    return [
        (title, command, shown)
        for title, text in sections().items()
        if title != "A package"  # its commands install one: the site's build runs them
        for command, shown in re.findall(r"^\$ (ajet .*)\n((?:(?!```).*\n)*)", text, re.MULTILINE)
    ]


def answer(asked: Asked) -> Any:
    """A judge model that knows small sums and likes boxes."""
    response = asked.data.get("RESPONSE", "")
    if "criteria" in asked.fields:
        names = {"polite": "It is kind.", "unsure": "It sounds unsure: maybe, perhaps, who knows."}
        return {
            "reason": "",
            "criteria": [{"name": n, "text": t, "wanted": n == "polite"} for n, t in names.items()],
        }
    right = "42" in response
    unsure = re.search("(?i)maybe|perhaps|who knows|would say", response) is not None
    values = {
        "score": 10 if right else 0,
        "right": right,
        "polite": not unsure,
        "unsure": unsure,
    }
    if "better" in asked.fields:
        values["better"] = (
            "equal" if "42" in asked.data["FIRST"] else ("first" if asked.data["FIRST"] == "15" else "second")
        )
    return {"reason": "", **{name: values[name] for name in asked.fields}}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("agent", "env_agent", "code_agent"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield tmp_path


@pytest.mark.whole
@pytest.mark.parametrize(("title", "command", "shown"), runs(), ids=[f"{t}: {c[:20]}" for t, c, _ in runs()])
def test_what_a_section_shows_happens(
    title: str, command: str, shown: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if title in ("By running code", "Code as a tool") and WALLS is not None:
        pytest.skip(WALLS)
    with serving(answer) as model:
        for name, text in {**files(PAGE[: PAGE.index("\n## ")]), **files(sections()[title])}.items():
            (here / name).write_text(text.replace(ADDRESS, model.url), encoding="utf-8")
        code = run_program(shlex.split(command.replace(ADDRESS, model.url))[1:])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    for line in shown.replace("...", "").splitlines():
        assert re.sub(" +", " ", line) in re.sub(" +", " ", printed.out), printed.out
    if title == "Combinations":
        (job,) = here.glob("runs/*/job.yaml")
        assert f"{here / 'short.py'}:short" in job.read_text(), "a resumed run finds it from anywhere"
    if "learn" in command:
        assert read_rubric(here / "learned.yaml").criteria


def not_on_the_page() -> list[str]:
    """Our judges that the page's table lacks; others may be installed here, too."""
    installed = load_plugins().classes.values()
    ours = {i.name for i in installed if i.kind == "judge" and i.distribution == "ajet-plugin-judges"}
    assert len(ours) >= 10
    table = PAGE[: PAGE.index("Every block")]
    return [name for name in ours if f"`{name}`" not in table]


def test_every_judge_of_the_plugin_is_on_the_page_and_every_job_names_a_judge() -> None:
    assert not_on_the_page() == []
    jobs = [text for section in sections().values() for n, text in files(section).items() if n == "job.yaml"]
    assert len(jobs) == 8 and all("judge" in yaml.safe_load(job) for job in jobs)


def test_another_judge_that_is_installed_here_need_not_be_on_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    foreign = InstalledPlugin("judge", "of_somebody_else", Exact, "somebodys-judges", "1.0")
    monkeypatch.setitem(load_plugins().classes, ("judge", "of_somebody_else"), foreign)
    assert not_on_the_page() == []


def test_every_field_of_an_endpoint_is_told() -> None:
    from ajet_judges.endpoint import JudgeEndpoint

    assert all(f"`{name}`" in sections()["By a model"] for name in JudgeEndpoint.model_fields)


def test_the_other_judge_of_a_model_is_built_as_shown() -> None:
    from ajet_judges import MathLLM

    block = re.search(r"^```yaml\n(judge:\n  type: math_llm.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert block
    spec = yaml.safe_load(block[1])["judge"]
    assert MathLLM(**{k: v for k, v in spec.items() if k != "type"}).endpoint.model == "my-judge"


MODEL = {"base_url": ADDRESS, "model": "any", "retries": 0}
WRONG: dict[str, dict[str, Any]] = {
    "no such endpoint": {"type": "llm", "endpoint": {**MODEL, "base_url": "http://127.0.0.1:9/v1"}},
    "an endpoint that is too slow": {"type": "llm", "endpoint": {**MODEL, "timeout": 0.2}},
    "a malformed verdict": {"type": "llm", "endpoint": MODEL},
    "a judge that is too slow": {"type": "llm", "endpoint": MODEL},
    "a task without an answer": {"type": "math", "answer": "answer"},
    "a task without tests": {"type": "code", "isolation": "limits"},
    "a workflow without a score": {"type": "environment"},
    "a key that is not set": {"type": "llm", "endpoint": {**MODEL, "api_key_env": "NO_SUCH_KEY"}},
    "a rubric that is none": {"type": "rubric", "path": "rubric.yaml", "endpoint": MODEL},
    "an unknown judge": {"type": "exacct"},
    "a misspelt field": {"type": "math", "tolerence": 1},
}


@pytest.mark.whole
@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said_as_the_page_says(
    what: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = dict(
        re.findall(r"^\| ([\w ]+) \| `(.*)` \|$", sections()["When something is wrong"], re.MULTILINE)
    )
    assert table.keys() == WRONG.keys()
    slow = 60.0 if "too slow" in what else 0.0
    with serving(lambda asked: "Very good." if "malformed" in what else answer(asked), slow) as model:
        for name, text in files(PAGE[: PAGE.index("\n## ")]).items():
            (here / name).write_text(text.replace(', "answer": "42"', "") if "without an" in what else text)
        (here / "rubric.yaml").write_text("about: nothing\n")
        job = {"task": {"reader": "tasks.jsonl"}, "workflow": "agent.py:run", "judge": WRONG[what]}
        if what == "a judge that is too slow":
            job["rollout"] = {"judge_timeout": 0.3}
        (here / "job.yaml").write_text(yaml.safe_dump(job).replace(ADDRESS, model.url))
        run_program(["check", "job.yaml", "--answers", "answers.yaml", "--group-size", "1"])
    printed = capsys.readouterr()
    said = " ".join((printed.out + printed.err).split())
    wanted = re.escape(table[what]).replace("…", ".*")
    assert re.search(wanted, said), said
