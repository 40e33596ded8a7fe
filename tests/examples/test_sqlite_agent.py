"""examples/sqlite_agent: its database, its questions, its judge, and its agent with a scripted model."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ajet import Task
from ajet.cli import run_program
from tests.tiny import save_tiny_model

pytest.importorskip("langchain.agents")
FOLDER = Path(__file__).parents[2] / "examples" / "sqlite_agent"
MODULES = ("agent", "office", "questions")


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    """The modules of the example."""
    before = {name: sys.modules.pop(name, None) for name in MODULES}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name, module in before.items():
        sys.modules.pop(name, None)
        if module:
            sys.modules[name] = module


# ------------------------------------------------------------------ the database


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("DROP TABLE staff", "not authorized"),
        ("DELETE FROM staff", "not authorized"),
        ("UPDATE staff SET pay = 1", "not authorized"),
        ("INSERT INTO staff VALUES ('x', 'y', 'z', 1, 2)", "not authorized"),
        ("PRAGMA writable_schema = 1", "not authorized"),
        ("ATTACH DATABASE 'other.db' AS other", "not authorized"),
        (
            "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT max(x) FROM t",
            "not authorized",
        ),
        ("SELECT load_extension('x')", "not authorized"),
        ("SELECT count(*) FROM staff a, staff b, staff c, staff d, staff e", "interrupted"),
        ("SELECT zeroblob(100000000)", "string or blob too big"),
        ("SELECT 1; DROP TABLE staff", "one statement at a time"),
        ("SELECT 1 -- \0", "null character"),
        ("SELECT " + "1 +" * 5000 + " 1", "too"),
        ("SELECT wage FROM staff", "no such column: wage"),
        ("hello", "syntax error"),
    ],
)
def test_a_hostile_or_wrong_statement_is_answered_with_its_error_and_does_no_harm(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    everything = "SELECT count(*), sum(age), sum(pay) FROM staff"
    before = example.office.ask(7, everything)
    answer = example.office.ask(7, sql)
    assert answer.startswith("error: ") and told in answer and len(answer) < 200
    assert example.office.ask(7, everything) == before
    assert not list(tmp_path.iterdir())


def test_results_are_short_texts(example: Any) -> None:
    ask = example.office.ask
    assert ask(7, "SELECT 1, 'two'") == "1, two"
    assert ask(7, "SELECT name FROM staff WHERE age > 99") == "nothing"
    assert (
        ask(7, "SELECT name FROM staff").endswith("; …") and ask(7, "SELECT name FROM staff").count(";") == 3
    )
    assert ask(7, "") == "nothing"


def test_equal_numbers_give_equal_databases(example: Any) -> None:
    everything = "SELECT sum(age * pay) FROM staff"
    assert (
        example.office.ask(7, everything)
        == example.office.ask(7, everything)
        != example.office.ask(8, everything)
    )


# ------------------------------------------------------------------ questions and judge


def read(example: Any, **fields: Any) -> list[Task]:
    return list(example.questions.Questions(**fields).tasks())


@pytest.mark.whole
def test_questions_are_reproducible_and_those_held_out_are_in_no_training_set(example: Any) -> None:
    training = {task.query for seed in range(3) for task in read(example, count=80, seed=seed)}
    held = read(example, count=32, held_out=True)
    assert read(example, count=32, held_out=True) == held != read(example, count=32, held_out=True, seed=1)
    assert training.isdisjoint(task.query for task in held)


@pytest.mark.whole
def test_a_third_of_the_held_out_questions_have_wordings_that_training_never_shows(example: Any) -> None:
    held = read(example, count=90, held_out=True)
    assert 18 <= sum(task.id.startswith("new-") for task in held) <= 42
    assert all(task.id.startswith("known-") for task in read(example, count=90))
    assert {q for q, _ in example.questions.KNOWN}.isdisjoint(q for q, _ in example.questions.NEW)


@pytest.mark.whole
def test_no_question_is_one_of_the_prompt_and_each_answer_is_one_value_that_the_question_does_not_give(
    example: Any,
) -> None:
    values = example.questions.VALUE
    for held_out in (False, True):
        for task in read(example, count=80, seed=5, held_out=held_out):
            answer = task.metadata["answer"]
            assert values.findall(answer) == [answer] and answer not in values.findall(task.query)
            assert task.query not in example.agent.SYSTEM


def test_the_statements_of_the_prompt_run(example: Any) -> None:
    assert all(not example.office.ask(7, sql).startswith("error") for sql in example.agent.SHOWN.values())


@pytest.mark.parametrize(
    ("response", "found", "reward"),
    [
        ("5210", "5210", 1),
        ("The pay in team 7 is 5210.", "Ada, 5210", 1),
        ("5210 or 5300", "5210", 0.5),
        ("5210, as Ben says", "5210", 0.5),
        ("52100", "5210", 0.5),
        ("Adam says 5210", "5210", 1),
        ("", "5210", 0.5),
        ("5210", "error: no such table", 0),
        ("5210", "5210; 4310; …", 0),
        ("5210", "52100", 0),
    ],
)
def test_half_is_for_a_query_that_finds_the_value_and_half_for_the_answer(
    example: Any, response: str, found: str, reward: float
) -> None:
    task = Task("t", "What is the highest pay in team 7?", metadata={"answer": "5210"})
    chat = [{"role": "user", "content": task.query}, {"role": "tool", "content": found}]
    chat.append({"role": "assistant", "content": response})
    output, episode = SimpleNamespace(response=response), SimpleNamespace(messages=[chat])
    assert example.questions.judge(task, output, episode) == reward


# ------------------------------------------------------------------ the agent


def test_no_line_of_the_agent_knows_us() -> None:
    for name in ("agent.py", "office.py"):
        assert "ajet" not in (FOLDER / name).read_text().lower()


@pytest.mark.whole
def test_an_episode_of_the_agent_is_one_timeline_and_its_calls_are_bounded(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Any, capsys: Any
) -> None:
    save_tiny_model(tmp_path / "model", tokenizer, context=4096)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    right, endless = read(example, count=2)
    assert right.query != endless.query
    call = {"name": "query", "arguments": {"sql": f"SELECT {right.metadata['answer']!r}"}}
    again = {"name": "query", "arguments": {"sql": "SELECT wage FROM staff"}}
    script = [
        {"turn": 0, "when": right.query, "call": call},
        {"turn": 1, "when": right.query, "say": f"It is {right.metadata['answer']}."},
        {"call": again},
    ]
    Path("answers.yaml").write_text(yaml.safe_dump(script))
    words = ["--answers", "answers.yaml", "--group-size", "1", "--first", "2", "--model", "model"]
    assert run_program(["check", str(FOLDER / "job.yaml"), *words, "--set", "task.reader.count=2"]) == 0
    said = capsys.readouterr().out
    assert "2 run" in said and ", 0 failed" in said and "reward              0.50 (0 to 1)" in said, said
    assert (
        f"{2 + example.agent.CALLS}, 2.5 an episode" in said and "timelines           1.0 an episode" in said
    ), said
    assert "breaks: none" in said, said


@pytest.mark.whole
@pytest.mark.parametrize("job", ["job.yaml", "gpu.yaml"])
def test_both_jobs_pass_the_checks_before_a_run(job: str, capsys: Any) -> None:
    assert run_program(["run", str(FOLDER / job), "--dry-run"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["task"]["validation"]["held_out"] is True


def test_the_gpu_job_fits_one_gpu(capsys: Any) -> None:
    words = ["--gpus", "H100", "--prompt-tokens", "600", "--answer-tokens", "90"]
    assert run_program(["plan", str(FOLDER / "gpu.yaml"), *words]) == 0
    assert "on each GPU, fits" in capsys.readouterr().out
