"""The skill for coding agents: `ajet skill install` copies it, and its commands do what it says."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ajet_projects.commands import SKILL
from tests.pages import ROOT
from tests.program import Program

TEXT = (SKILL / "SKILL.md").read_text()
COMMANDS = re.findall(r"^\$ (.+)$", TEXT, re.MULTILINE)
SKILL_NAME = "ajet"
AGENT = """
from openai import AsyncOpenAI


async def answer(question: str) -> str:
    client = AsyncOpenAI(api_key="unset")
    messages = [{"role": "user", "content": question}]
    reply = await client.chat.completions.create(model="gpt-5-mini", messages=messages, max_tokens=16)
    return reply.choices[0].message.content
"""


def test_it_is_installed_where_coding_agents_look_for_skills(tmp_path: Path, ajet: Program) -> None:
    assert ajet("skill", "install").out.startswith("Installed .agents/skills/ajet.")
    (tmp_path / ".claude").mkdir()
    assert ajet("skill", "install").out.startswith("Installed .claude/skills/ajet.")
    ajet("skill", "install", "elsewhere")
    for folder in (".agents/skills", ".claude/skills", "elsewhere"):
        copied = {
            p.relative_to(tmp_path / folder / "ajet") for p in (tmp_path / folder / "ajet").rglob("*.*")
        }
        assert copied == {Path("SKILL.md"), Path("scripts/scripted_answers.py")}


def test_a_copy_is_replaced_and_any_other_folder_is_not(tmp_path: Path, ajet: Program) -> None:
    ajet("skill", "install", str(tmp_path))
    (tmp_path / "ajet" / "SKILL.md").write_text("an older one")
    ajet("skill", "install", str(tmp_path))
    assert (tmp_path / "ajet" / "SKILL.md").read_text() == TEXT
    (tmp_path / "ajet" / "SKILL.md").unlink()
    refused = ajet("skill", "install", str(tmp_path))
    assert refused.code == 2 and "has no SKILL.md" in refused.err and (tmp_path / "ajet" / "scripts").is_dir()


def test_a_link_is_not_replaced(tmp_path: Path, ajet: Program) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "SKILL.md").write_text("mine")
    (tmp_path / "ajet").symlink_to(tmp_path / "mine")
    refused = ajet("skill", "install", str(tmp_path))
    assert refused.code == 2 and "is a link" in refused.err
    assert (tmp_path / "mine" / "SKILL.md").read_text() == "mine"


def test_its_head_is_what_readers_of_skills_want() -> None:
    head = yaml.safe_load(TEXT.split("---\n")[1])
    assert head["name"] == SKILL_NAME and 40 < len(head["description"]) <= 1024
    assert (ROOT / "skills" / SKILL_NAME).resolve() == SKILL.resolve()


def test_every_page_that_it_names_is_there(ajet: Program) -> None:
    for topic in re.findall(r"`ajet docs ([a-z-]+)`", TEXT):
        assert ajet("docs", topic).code == 0, topic


def test_the_script_needs_the_field_with_the_answer(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"query": "a", "solution": "b"}\n')
    script = [sys.executable, str(SKILL / "scripts" / "scripted_answers.py"), str(tmp_path / "tasks.jsonl")]
    refused = subprocess.run(script, capture_output=True, text=True)
    assert refused.returncode == 1 and "1 of 1 tasks have no field answer" in refused.stderr
    assert subprocess.run([*script, "solution"], capture_output=True).returncode == 0
    assert json.loads((tmp_path / "right.yaml").read_text()) == [{"when": "a", "say": "b"}]


@pytest.mark.whole
@pytest.mark.models("starter")
def test_its_commands_lead_from_an_agent_to_a_verdict(
    folder: Path, ajet: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "agent.py").write_text(AGENT)
    printed = {}
    for command in COMMANDS:
        words = shlex.split(command.replace("SKILL", str(SKILL)))
        if words[0] == "cd":
            monkeypatch.chdir(words[1])
            # In place of the language model, which takes minutes here.
            job = yaml.safe_load(Path("job.yaml").read_text())
            Path("job.yaml").write_text(yaml.safe_dump(job | {"model": "starter"}))
        elif words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], check=True)
        else:
            words += {"run": ["--steps", "2"], "forecast": ["--episodes", "16"]}.get(words[1], [])
            done = ajet(*words[1:])
            # A forecast ends with 1 where something keeps the job from learning: this model knows the answers already.
            assert done.code in ((0, 1) if words[1] == "forecast" else (0,)), (
                f"{command}\n{done.out}{done.err}"
            )
            printed[command] = done.out
    assert re.search(r"reward +1\.00", printed["ajet check job.yaml --answers right.yaml"])
    assert re.search(r"reward +0\.00", printed["ajet check job.yaml --answers wrong.yaml"])
    assert re.search(r"calls captured +16", printed["ajet check job.yaml"]), printed["ajet check job.yaml"]
    assert "once each, in the context in which they were sampled" in printed["ajet audit runs"]
