"""examples/math_code: an agent that runs programs in the sandbox, an expert that solves every problem with it, and
transcripts that are exactly what the agent's calls would be."""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import agents
import pytest
import yaml

from ajet import Task, WorkflowOutput
from ajet.testing import ScriptedEngine
from ajet.types import GenerateRequest
from ajet_judges import NoSandbox, run_python

EXAMPLE = Path(__file__).parents[2] / "examples" / "math_code"
MODULES = ("agent", "problems", "recipe")


def walls() -> str | None:
    """Why this machine cannot build the sandbox; None if it can."""
    try:
        asyncio.run(run_python("pass"))
    except NoSandbox as error:
        return str(error)
    return None


WALLS = walls()
with_walls = pytest.mark.skipif(WALLS is not None, reason=str(WALLS))


@pytest.fixture(scope="module")
def example() -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of the example's folder, whose name other examples use too."""
    before = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    sys.path.insert(0, str(EXAMPLE))
    agents.set_tracing_disabled(True)  # nothing here is a job, in which traces are not uploaded
    yield importlib.import_module
    agents.set_tracing_disabled(False)
    sys.path.remove(str(EXAMPLE))
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(before)


def turns(prompt: str) -> tuple[str, list[str]]:
    """The question in a prompt, and the tool's results."""
    question, *results = [part.partition("<|im_end|>")[0] for part in prompt.split("<|im_start|>user\n")[1:]]
    return question, [r.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>") for r in results]


def call(code: str) -> str:
    """What a model writes to run a program."""
    return f"<tool_call>\n{json.dumps({'name': 'python', 'arguments': {'code': code}})}\n</tool_call>"


def played(
    bench: Any, engine: ScriptedEngine, agent: ModuleType, entries: Sequence[dict[str, Any]], judge: Any
) -> list[Any]:
    """An episode of each problem, judged by ``judge(task, output)``."""
    tasks = {f"t{i}": Task(f"t{i}", e["question"], metadata={"entry": e}) for i, e in enumerate(entries)}

    async def run(task: Task) -> str:
        answer: str = await agent.run(tasks[task.id])
        return answer

    return list(bench(engine).run(run, lambda task, output: judge(tasks[task.id], output), tasks=len(tasks)))


@pytest.mark.whole
@with_walls
def test_an_expert_solves_every_problem_through_the_agent_and_its_sandbox(
    example: Any, bench: Any, tokenizer: Any
) -> None:
    recipe, problems = example("recipe"), example("problems")
    rng = random.Random(5)
    entries = [problems.draw(rng, held_out=True) for _ in range(12)]
    assert {problems.kind(entry) for entry in entries} == set(problems.DATASETS)
    programs = {entry["question"]: recipe.program(entry) for entry in entries}

    def expert(request: GenerateRequest, prompt: str) -> str:
        question, results = turns(prompt)
        return results[-1] if results else call(programs[question])

    episodes = played(bench, ScriptedEngine(tokenizer, expert), example("agent"), entries, problems.judge)
    assert [(e.failure, e.reward) for e in episodes] == [(None, 1.0)] * 12


@pytest.mark.whole
@with_walls
def test_transcripts_are_the_tokens_of_the_agents_calls(example: Any, bench: Any, tokenizer: Any) -> None:
    """The recipe knows the tool's schema and computes what each program prints; here programs are run."""
    recipe, problems = example("recipe"), example("problems")
    rng = random.Random(6)
    entries = [problems.draw(rng) for _ in range(8)]
    transcripts = {e["question"]: recipe.session(rng, e, 0.0, 1.0, 0.5) for e in entries}

    def as_written(request: GenerateRequest, prompt: str) -> str:
        question, results = turns(prompt)
        said = [m for m in transcripts[question].messages if m["role"] == "assistant"][len(results)]
        if calls := said.get("tool_calls"):
            return call(json.loads(calls[0]["function"]["arguments"])["code"])
        return str(said["content"])

    engine = ScriptedEngine(tokenizer, as_written)
    episodes = played(bench, engine, example("agent"), entries, lambda task, output: 0.0)
    assert {episode.failure for episode in episodes} == {None}
    _, to_sample = recipe.Programmer().samples(None, tokenizer)
    for transcript in transcripts.values():
        sample = to_sample(transcript)
        starts = [span.start for span in sample.spans]
        assert len(starts) in (2, 3)
        for start in starts:
            assert any(list(r.prompt_ids) == sample.token_ids[:start].tolist() for r in engine.requests), (
                tokenizer.decode(sample.token_ids)
            )


@with_walls
@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("print(6 * 7)", "42"),
        ("print('a')\nprint('b')", "a\nb"),
        ("1 / 0", "exit 1: ZeroDivisionError: division by zero"),
        ("print(1", "exit 1: SyntaxError: '(' was never closed"),
        pytest.param("while True: pass", "stopped at its limit of cpu", marks=pytest.mark.slow),
        ("print('x' * 9999)", "stopped at its limit of output"),
    ],
)
def test_the_model_sees_what_its_program_prints_or_its_error(
    code: str, result: str, example: Any, bench: Any, tokenizer: Any
) -> None:
    def once(request: GenerateRequest, prompt: str) -> str:
        _, results = turns(prompt)
        return f"got {results[-1]}" if results else call(code)

    entry = {"question": "q"}
    seen: list[str] = []
    played(
        bench,
        ScriptedEngine(tokenizer, once),
        example("agent"),
        [entry],
        lambda task, output: bool(seen.append(output.response)),
    )
    assert seen == [f"got {result}"]


@pytest.mark.whole
@with_walls
@pytest.mark.parametrize(("said", "calls"), [(call("print(1)"), 4), (call("1").replace("code", "cod"), 1)])
def test_a_fourth_program_or_an_invalid_call_is_no_answer(
    said: str, calls: int, example: Any, bench: Any, tokenizer: Any
) -> None:
    engine = ScriptedEngine(tokenizer, lambda request, prompt: said)
    seen: list[str] = []
    played(
        bench,
        engine,
        example("agent"),
        [{"question": "q"}],
        lambda task, output: bool(seen.append(output.response)),
    )
    assert seen == [""] and len(engine.requests) == calls


def test_the_score_is_reasoning_gyms(example: Any) -> None:
    entry = {"answer": "42", "metadata": {"source_dataset": "gcd"}}

    def score(response: Any) -> tuple[float, bool | None]:
        given = example("problems").judge(
            Task("t", "q", metadata={"entry": entry}), WorkflowOutput(response=response)
        )
        return given.reward, given.is_success

    assert score("42") == (1.0, True)
    assert score("It is 42") == (0.25, False)
    assert score("41") == score("") == score(None) == (0.0, False)


def test_answers_are_hard_to_guess_and_the_wrong_programs_do_not_print_them(example: Any) -> None:
    rng = random.Random(7)
    entries = [example("problems").draw(rng) for _ in range(200)]
    assert all(len(entry["answer"]) > 1 for entry in entries)
    assert not any(entry["answer"] in entry["question"].split() for entry in entries)
    assert not any(example("recipe").wrong(entry)[1] == entry["answer"] for entry in entries)


@with_walls
@pytest.mark.e2e
@pytest.mark.slow
def test_every_call_merges_into_one_timeline(command: Callable[..., str], tmp_path: Path) -> None:
    script = tmp_path / "answers.yaml"
    programs = ["print(math.gcd(4, 6))", "import math\nprint(math.gcd(4, 6))"]
    calls = [
        {"turn": turn, "call": {"name": "python", "arguments": {"code": code}}}
        for turn, code in enumerate(programs)
    ]
    script.write_text(yaml.safe_dump([*calls, {"say": "2"}]))
    output = command("check", str(EXAMPLE / "job.yaml"), "--answers", str(script))
    assert "calls captured      48, 3.0 an episode; by agent: solver 48" in output
    assert "1.0 an episode, at most 1" in output and "breaks: none" in output
