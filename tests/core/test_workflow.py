"""Workflows: where they are loaded from, what they may be, how errors name the place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ajet.interfaces.workflow import Tuner, coerce_output, load_object, load_workflow
from ajet.testing import ScriptedEngine
from ajet.types import ConfigError, Task, WorkflowOutput

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a file into a folder that is on the path; the path of the file as text."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name: str, code: str) -> str:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code)
        return str(file)

    return make


def outcome(spec: str) -> Any:
    """What one fresh call of a workflow gives, with a task "t" and a tuner without handles."""
    workflow = load_workflow(spec)
    returned = workflow.fresh()(Task("t"), Tuner("http://x", "key", {}))
    return asyncio.run(returned) if workflow.is_async else returned


def error_of(spec: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_workflow(spec)
    return str(caught.value)


# ------------------------------------------------------------------ where from


def test_a_function_of_a_module_of_a_package(write: Write) -> None:
    write("flows_pkg/__init__.py", "")
    write("flows_pkg/agent.py", "class Agents:\n    @staticmethod\n    def run(task): return task.id\n")
    assert outcome("flows_pkg.agent:Agents.run") == "t"


def test_a_function_of_a_file_that_imports_its_neighbours(write: Write) -> None:
    write("sub/beside_flow.py", "answer = 42\n")
    path = write("sub/flow.py", "import beside_flow\ndef run(task): return beside_flow.answer\n")
    assert outcome(f"{path}:run") == 42


def test_two_files_of_one_stem_in_different_folders_do_not_collide(write: Write) -> None:
    one, two = (write(f"{name}/agent.py", f"def run(task): return {name!r}\n") for name in ("one", "two"))
    assert (outcome(f"{one}:run"), outcome(f"{two}:run")) == ("one", "two")


def test_a_file_is_loaded_once_however_its_path_is_written(write: Write) -> None:
    path = write("state.py", "seen = []\ndef run(task): return seen\n")
    around = Path(path).parent / "." / ".." / Path(path).parent.name / "state.py"
    assert load_object(f"{path}:seen", "workflow") is load_object(f"{around}:seen", "workflow")


def test_a_file_that_failed_to_load_can_be_mended_and_loaded(write: Write) -> None:
    path = write("mended.py", "raise ValueError('not yet')\n")
    assert "not yet" in error_of(f"{path}:run")
    write("mended.py", "def run(task): return 'it loads now'\n")
    assert outcome(f"{path}:run") == "it loads now"


# ------------------------------------------------------------------ what it may be


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def run(task): return task.id", "t"),
        ("def run(task, tuner): return task.id + tuner.api_key", "tkey"),
        ("async def run(task): return task.id", "t"),
        ("async def run(task, tuner): return task.id + tuner.api_key", "tkey"),
        ("def run(*args): return len(args)", 2),
        ("def run(tuner): return tuner.api_key", "key"),
        ("def run(tuner, task): return tuner.api_key + task.id", "keyt"),
        ("def run(question, tuner): return question.id + tuner.api_key", "tkey"),
        ("def run(question): return question.id", "t"),
        ("def run(task, verbose=False): return verbose", False),
        ("def run(*, task): return task.id", "t"),
        ("def run(task, tuner, style='plain'): return style", "plain"),
        ("class run:\n    def execute(self, task): return task.id", "t"),
        ("class run:\n    def execute(self, task, tuner): return task.id + tuner.api_key", "tkey"),
        ("class run:\n    async def execute(self, task, tuner): return task.id + tuner.api_key", "tkey"),
        ("class run:\n    def execute(self, *args): return len(args)", 2),
        ("class run:\n    def execute(self, tuner, task): return task.id + tuner.api_key", "tkey"),
        ("class run:\n    @staticmethod\n    def execute(task): return task.id", "t"),
        ("class run:\n    @classmethod\n    async def execute(cls, task, tuner): return cls.__name__", "run"),
        ("import functools\ndef f(n, task): return n\nrun = functools.partial(f, 3)", 3),
    ],
)
def test_functions_and_classes_sync_and_async_with_task_or_task_and_tuner(
    write: Write, code: str, expected: Any
) -> None:
    assert outcome(f"{write('shapes.py', code)}:run") == expected


def test_each_episode_gets_a_fresh_instance_of_a_class(write: Write) -> None:
    code = "class Flow:\n    def __init__(self): self.n = 0\n    def execute(self, task):\n        self.n += 1\n        return self.n\n"
    workflow = load_workflow(f"{write('fresh.py', code)}:Flow")
    tuner = Tuner("", "", {})
    assert [workflow.fresh()(Task("t"), tuner) for _ in range(3)] == [1, 1, 1]


def test_a_coroutine_that_a_plain_function_returns_is_awaited(bench: Any, tokenizer: Any) -> None:
    import httpx2

    async def agent(task: Task) -> str:
        async with httpx2.AsyncClient() as client:
            ask = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            answer = await client.post("http://127.0.0.1:9/v1/chat/completions", json=ask)
        return str(answer.json()["choices"][0]["message"]["content"])

    def wrapped(task: Task) -> Any:  # as a decorator or a callable object would
        return agent(task)

    (episode,) = bench(ScriptedEngine(tokenizer, lambda request, prompt: "yes")).run(wrapped)
    assert (episode.failure, episode.output.response, len(episode.record.calls)) == (None, "yes", 1)


@pytest.mark.parametrize("returned", ["text", 3, None, {"a": 1}, ["b"]])
def test_whatever_a_workflow_returns_is_its_response(returned: Any) -> None:
    assert coerce_output(returned) == WorkflowOutput(response=returned)


def test_a_workflow_output_is_taken_as_it_is() -> None:
    output = WorkflowOutput(reward=0.5, response="r", is_success=True, metrics={"m": 1.0})
    assert coerce_output(output) is output


# ------------------------------------------------------------------ what plugins make of it


def test_a_plugin_turns_objects_into_workflows(write: Write) -> None:
    import pluggy

    from ajet import hookimpl, hookspecs
    from ajet.interfaces.workflow import LoadedWorkflow

    class Graphs:
        @hookimpl
        def ajet_workflows(self, workflow: Any) -> LoadedWorkflow | None:
            if isinstance(workflow, frozenset):
                return LoadedWorkflow("", lambda task: sorted(workflow), False, 1)
            return None

    manager = pluggy.PluginManager("ajet")
    manager.add_hookspecs(hookspecs)
    manager.register(Graphs())

    def of(spec: str) -> Any:
        workflow = load_workflow(spec, manager.hook)
        assert workflow.spec == spec
        return workflow.fresh()(Task("t"), Tuner("", "", {}))

    path = write("graphs.py", "graph = frozenset('ab')\ndef run(task): return task.id\n")
    assert of(f"{path}:graph") == ["a", "b"]
    assert of(f"{path}:run") == "t"


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("import json\n\nimport no_such_module_at_all\n", 3),
        ("def run(task):\n    return 1\n\n1 / 0\n", 4),
        ("def run(task)\n    return 1\n", 1),
        ("import json\njson.loads('{')\n", 2),
        ("import sys\ndef run(task): pass\nsys.exit(0)\n", 3),
    ],
    ids=["a missing module", "a fault", "a syntax error", "a fault in a library's code", "an exit"],
)
def test_a_file_that_does_not_import_is_named_with_the_users_own_line(
    write: Write, code: str, line: int
) -> None:
    path = write("faulty.py", code)
    said = error_of(f"{path}:run")
    assert said.startswith(f"workflow {path}:run: does not import: ")
    assert said.endswith(f"(at {path}:{line})")


def test_a_module_that_is_not_there_is_named_without_a_line_of_our_own_code() -> None:
    said = error_of("no_such_package.agent:run")
    assert said == (
        "workflow no_such_package.agent:run: does not import: "
        "ModuleNotFoundError: No module named 'no_such_package'"
    )


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert error_of(f"{tmp_path}/absent.py:run") == f"workflow {tmp_path}/absent.py: no such file."


def test_a_name_that_is_not_there_comes_with_the_nearest(write: Write) -> None:
    path = write("names.py", "def solve_task(task): pass\n")
    assert f"{path} has no 'solve_tusk'; did you mean 'solve_task'" in error_of(f"{path}:solve_tusk")


@pytest.mark.parametrize("spec", ["agent", "agent.py", "agent:", ":run", ""])
def test_a_spec_without_place_or_name_shows_the_form(spec: str) -> None:
    assert "write `pkg.module:Name` or `path/to/file.py:Name`" in error_of(spec)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("run = 3", "int is not callable; name a class with `execute` or a function"),
        ("class run: pass", "the class has no method `execute(self, task, tuner)`"),
        ("class run:\n    execute = 'now'", "the class has no method `execute(self, task, tuner)`"),
        (
            "class run:\n    def __init__(self, model): pass\n    def execute(self, task): pass",
            "must be constructible without arguments",
        ),
        (
            "class run:\n    def __init__(self, *, model): pass\n    def execute(self, task): pass",
            "must be constructible without arguments",
        ),
        ("def run(): pass", "must take (task) or (task, tuner), but takes ()"),
        ("def run(a, b, c): pass", "must take (task) or (task, tuner), but takes (a, b, c)"),
        ("def run(task, *, model): pass", "must take (task) or (task, tuner), but takes (task, *, model)"),
        ("class run:\n    def execute(self): pass", "must take (task) or (task, tuner), but takes (self)"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(write: Write, code: str, said: str) -> None:
    path = write("wrong.py", code)
    assert error_of(f"{path}:run").startswith(f"workflow {path}:run: ")
    assert said in error_of(f"{path}:run")


# ------------------------------------------------------------------ handles


def test_a_handle_calls_its_plugin_with_the_tuner_and_the_arguments() -> None:
    seen: list[Any] = []
    tuner = Tuner(
        "http://base", "key", {"as_some_model": lambda *args, **kwargs: seen.append((args, kwargs))}
    )
    tuner.as_some_model("fast", agent="solver")
    assert seen == [((tuner, "fast"), {"agent": "solver"})]


def test_an_unknown_handle_names_the_nearest_the_installed_and_the_remedy() -> None:
    tuner = Tuner("", "", {"as_openai_client": print, "as_langchain_model": print})
    with pytest.raises(AttributeError) as caught:
        tuner.as_openai_cleint()
    said = str(caught.value)
    assert "tuner.as_openai_cleint is not installed; did you mean 'as_openai_client'" in said
    assert "Installed: as_langchain_model, as_openai_client" in said
    assert "handles come with framework plugins" in said


def test_without_its_plugin_a_framework_that_expects_a_model_is_told_so(write: Write) -> None:
    path = write("no_plugin.py", "async def run(task, model): return await model.complete()")
    with pytest.raises(AttributeError, match=r"no attribute 'complete'.*install the framework's plugin"):
        outcome(f"{path}:run")


def test_what_is_no_handle_is_an_ordinary_missing_attribute() -> None:
    assert not hasattr(Tuner("", "", {}), "model")
    with pytest.raises(AttributeError, match="Installed: none"):
        Tuner("", "", {}).as_anything()
