"""examples/bfcl: questions of a public benchmark, in parts that share nothing, and its own checker as the judge."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ajet import ConfigError, Task
from ajet.cli import run_program
from tests.tiny import save_tiny_model

FOLDER = Path(__file__).parents[2] / "examples" / "bfcl"
MODULES = ("agent", "questions", "judge", "recipe")
with_benchmark = pytest.mark.skipif(
    importlib.util.find_spec("bfcl_eval") is None,
    reason="needs the benchmark: pip install --no-deps bfcl-eval==2026.3.23",
)
FUNCTION = {
    "name": "hotel.find_rooms",
    "description": "Find free rooms.",
    "parameters": {
        "type": "dict",
        "properties": {
            "city": {"type": "string", "description": "The city."},
            "nights": {"type": "integer", "description": "How many nights."},
            "price": {"type": "float", "description": "The highest price.", "default": 99.5},
            "beds": {"type": "array", "items": {"type": "string", "enum": ["single", "double"]}, "description": "Which beds."},
            "guest": {"type": "dict", "description": "Who comes."},
        },
        "required": ["city", "nights"],
    },
}  # fmt: skip
ANSWER = {
    "hotel.find_rooms": {
        "city": ["Vienna", "Vienna, Austria"],
        "nights": [3],
        "price": ["", 80.0],
        "beds": ["", ["double"]],
        "guest": [{"name": ["Ada", "Ada L."], "pets": ["", True]}],
    }
}
RIGHT = "hotel.find_rooms(city='Vienna', nights=3, guest={'name': 'Ada'})"
QUESTION = Task(
    "simple_python_0",
    "A room in Vienna.",
    metadata={"category": "simple_python", "functions": [FUNCTION], "answer": ANSWER},
)


@pytest.fixture(autouse=True)
def modules_of_this_example(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Other examples have modules of the same names: those of this one come first, and leave with the test."""
    for name in set(MODULES) & set(sys.modules):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(FOLDER)
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def of(module: str) -> Any:
    return importlib.import_module(module)


def reward(answer: str, task: Task = QUESTION) -> float:
    return float(of("judge").judge(task, SimpleNamespace(response=answer)))


# ------------------------------------------------------------------ the agent


def test_the_prompt_declares_functions_as_python_does() -> None:
    system, user = of("agent").prompt("A room in Vienna.", [FUNCTION, {**FUNCTION, "name": "other"}])
    assert user == {"role": "user", "content": "A room in Vienna."}
    declared = system["content"].split("\n\n")
    assert len(declared) == 3 and declared[2].startswith("def other(")
    assert declared[1].splitlines() == [
        "def hotel.find_rooms(city: str, nights: int, price: float = 99.5, beds: list[str] = None, guest: dict = None):",
        "    # Find free rooms.",
        "    # city: The city.",
        "    # nights: How many nights.",
        "    # price: The highest price.",
        "    # beds: Which beds. One of 'single', 'double'.",
        "    # guest: Who comes.",
    ]


def test_no_line_of_the_agent_knows_us() -> None:
    assert "ajet" not in (FOLDER / "agent.py").read_text().lower()


# ------------------------------------------------------------------ the questions


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in the place of the benchmark's, with 80 questions of each category about 40 functions."""
    folder = tmp_path / "bfcl_eval"
    (folder / "data" / "possible_answer").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('it is not imported')")
    for category in ("simple_python", "multiple"):
        questions, answers = [], []
        for number in range(80):
            name = f"tool_{number % 40}"
            chat = [[{"role": "user", "content": f"Use {name}."}]]
            key = f"{category}_{number}"
            questions.append({"id": key, "question": chat, "function": [{**FUNCTION, "name": name}]})
            answers.append({"id": key, "ground_truth": [{name: {"city": ["Vienna"], "nights": [1]}}]})
        for place, lines in (("", questions), ("possible_answer/", answers)):
            text = "".join(f"{json.dumps(line)}\n" for line in lines)
            (folder / "data" / f"{place}BFCL_v4_{category}.json").write_text(text)
    monkeypatch.delitem(sys.modules, "bfcl_eval", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def assert_parts_share_nothing(total: int) -> None:
    read = of("questions").questions
    parts = [read(part) for part in ("held_out", "examples", "training")]
    assert sum(map(len, parts)) == total and all(parts)
    for what in (lambda t: t.id, lambda t: t.query, lambda t: next(iter(t.metadata["answer"]))):
        sets = [set(map(what, tasks)) for tasks in parts]
        assert len(set.union(*sets)) == sum(map(len, sets))


def test_no_two_parts_share_a_question_or_the_function_that_answers_it(package: Path) -> None:
    assert_parts_share_nothing(160)


def test_the_seed_decides_the_order_of_the_questions_and_not_which_are_held_out(package: Path) -> None:
    def read(**fields: Any) -> list[str]:
        return [task.id for task in of("questions").Questions(**fields).tasks()]

    for held_out in (False, True):
        first, again, other = (read(seed=seed, held_out=held_out) for seed in (0, 0, 1))
        assert first == again != other and set(first) == set(other)
        assert read(count=5, held_out=held_out) == first[:5]


def test_the_right_call_takes_the_first_value_and_leaves_out_what_may_be_left_out() -> None:
    assert of("questions").gold(QUESTION) == RIGHT
    required = {**FUNCTION, "parameters": {**FUNCTION["parameters"], "required": ["city", "price"]}}  # type: ignore[dict-item]
    task = Task("t", "", metadata={**QUESTION.metadata, "functions": [required]})
    assert "price=80.0" in of("questions").gold(task)


def test_the_warm_start_shows_right_calls_of_its_part_only_each_once(package: Path) -> None:
    batches = of("recipe").Caller().chats(0)
    chats = [chat for batch in batches for chat in batch]
    (tasks,) = {tuple(chat.tasks) for chat in chats if len(chat.tasks) != 1} or {()}
    assert not tasks and max(map(len, batches)) == of("recipe").BATCH
    examples = {task.id: task for task in of("questions").questions("examples")}
    assert sorted(key for chat in chats for key in chat.tasks) == sorted(examples)
    for chat in chats:
        task = examples[chat.tasks[0]]
        asked = of("agent").prompt(task.query, task.metadata["functions"])
        assert chat.messages == [*asked, {"role": "assistant", "content": of("questions").gold(task)}]
    assert [chat.tasks for chat in chats] != [
        chat.tasks for batch in of("recipe").Caller().chats(1) for chat in batch
    ]


def test_without_the_benchmark_one_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^task.reader: .*pip install --no-deps bfcl-eval==2026.3.23$"):
        of("questions").Questions().tasks()


# ------------------------------------------------------------------ the judge


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("f(a=1)", [{"f": {"a": 1}}]),
        ("[f(a=-1.5), g.h(b='x')]", [{"f": {"a": -1.5}}, {"g.h": {"b": "x"}}]),
        ("```\nf(a=[1, two])\n```", [{"f": {"a": [1, "two"]}}]),
        ("f(a=True, b={'c': (1, 2)})", [{"f": {"a": True, "b": {"c": (1, 2)}}}]),
        ("[]", []),
    ],
)
def test_an_answer_is_read_as_calls_with_or_without_brackets(text: str, calls: Any) -> None:
    assert of("judge").decoded(text) == calls


MALFORMED = ("", "I do not know.", "f", "f(a=1", "f(a=g())", "f(a=9**9**9)", "f(a=__import__('os').getcwd())", "(" * 300,
             "f(a=\0)", "[[f(a=1)]]")  # fmt: skip


@pytest.mark.parametrize("text", MALFORMED)
def test_nothing_that_an_answer_says_is_run(text: str) -> None:
    assert reward(text) == 0


@with_benchmark
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (RIGHT, 1),
        (f"[{RIGHT}]", 1),
        ("hotel.find_rooms(nights=3, city='vienna, austria', price=80, guest={'name': 'Ada L.'})", 1),
        (RIGHT.replace("3", "4"), 0),
        (RIGHT.replace("3", "'3'"), 0),
        (RIGHT.replace(", nights=3", ""), 0),
        (RIGHT.replace("nights=3", "nights=3, floor=1"), 0),
        (RIGHT.replace("hotel.", ""), 0),
        (f"{RIGHT}, {RIGHT}", 0),
        ("hotel.find_rooms('Vienna', 3, guest={'name': 'Ada'})", 0),
    ],
)
def test_the_benchmarks_checker_decides(answer: str, expected: float) -> None:
    assert reward(answer) == expected


@with_benchmark
def test_a_question_with_several_functions_wants_the_right_one() -> None:
    metadata = {
        **QUESTION.metadata,
        "category": "multiple",
        "functions": [{**FUNCTION, "name": "other"}, FUNCTION],
    }
    task = Task("multiple_0", "", metadata=metadata)
    assert reward(RIGHT, task) == 1 and reward(RIGHT.replace("hotel.find_rooms", "other"), task) == 0


@with_benchmark
def test_the_checker_leaves_no_stand_in_behind() -> None:
    of("judge").checker()
    assert "bfcl_eval.constants.model_config" not in sys.modules


@pytest.mark.whole
@with_benchmark
def test_the_benchmarks_600_questions_are_in_three_parts_and_the_checker_accepts_every_right_call() -> None:
    assert_parts_share_nothing(600)
    read, gold = of("questions").questions, of("questions").gold
    categories = [task.metadata["category"] for task in read("held_out")]
    assert (categories.count("simple_python"), categories.count("multiple")) == (98, 52)
    for part in ("held_out", "examples", "training"):
        assert all(reward(gold(task), task) == 1 for task in read(part))


# ------------------------------------------------------------------ the jobs


@pytest.mark.whole
@with_benchmark
def test_the_agent_answers_and_is_judged_with_a_scripted_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Any, capsys: Any
) -> None:
    save_tiny_model(tmp_path / "model", tokenizer, context=4096)
    monkeypatch.chdir(tmp_path)
    first, _ = of("questions").Questions().tasks()[:2]
    script = [{"when": first.query, "say": of("questions").gold(first)}, {"say": "I do not know."}]
    Path("answers.yaml").write_text(yaml.safe_dump(script))
    words = [
        "--answers",
        "answers.yaml",
        "--group-size",
        "1",
        "--model",
        "model",
        "--set",
        "task.reader.count=2",
    ]
    assert run_program(["check", str(FOLDER / "job.yaml"), *words]) == 0
    said = capsys.readouterr().out
    assert "2 run" in said and "0 failed" in said and "0.50 (0 to 1)" in said, said


@with_benchmark
@pytest.mark.parametrize("job", ["job.yaml", "gpu.yaml"])
def test_both_jobs_pass_the_checks_before_a_run(job: str, capsys: Any) -> None:
    assert run_program(["run", str(FOLDER / job), "--dry-run"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["task"]["validation"]["held_out"] is True
