"""examples/apps: every errand can be run, nothing else may change, and the whole road works with a scripted model."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.ports import free_port

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "apps"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"apps_{name}", FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


service, expert = load("service"), load("expert")
Apps = service.Apps


def say(app: Any, call: str) -> str:
    return str(app.step({"role": "assistant", "content": call}).messages[0]["content"])


def run_errand(app: Any) -> list[str]:
    """The replies to an expert's calls."""
    request, replies = app.start(), []
    while (call := expert.next_call(request, replies)) is not None:
        replies.append(say(app, call))
    return replies


def find(word: str, *, of: int = 0) -> Any:
    """A world whose errand begins with a word."""
    found = (app for n in range(200) if (app := Apps(f"train-{of}-{n}", {})).errand.request.startswith(word))
    return next(found)


@pytest.mark.whole
@pytest.mark.parametrize("split", ["train", "validation"])
def test_every_errand_can_be_run_in_two_or_three_calls(split: str) -> None:
    kinds: Counter[str] = Counter()
    ids = Apps.task_ids(split, {})
    for task_id in ids:
        app = Apps(task_id, {})
        replies = run_errand(app)
        assert app.evaluate() == 1.0 and len(replies) in (2, 3), (app.start(), replies, app.info({}))
        kinds[app.errand.request.split()[0]] += 1
    assert set(kinds) == {"Pay", "Do", "Tell", "Meet"} and min(kinds.values()) > len(ids) / 8


def test_errands_of_the_splits_are_different_and_a_seed_makes_other_worlds() -> None:
    def requests(split: str, seed: int) -> set[str]:
        return {service.opening(*service.make(i)) for i in Apps.task_ids(split, {"seed": seed, "count": 400})}

    train = requests("train", 0) | requests("train", 1)
    assert not train & (requests("validation", 0) | requests("validation", 7))
    assert service.make("train-0-5") == service.make("train-0-5") != service.make("train-1-5")
    assert len(Apps.task_ids("train", {"count": 7})) == 7
    with pytest.raises(LookupError, match="has no split 'test'; it has train, validation"):
        Apps.task_ids("test", {})


@pytest.mark.parametrize("extra", ["mail {name} hi", "pay {number} 1", "again", "book fri {hour} {name}"])
def test_collateral_damage_costs_everything(extra: str) -> None:
    app = find("Pay")
    replies = run_errand(app)
    assert app.evaluate() == 1.0
    name = next(n for n, number in app.world.numbers.items() if number != replies[1])
    last = f"pay {' '.join(app.errand.change[1:])}"
    call = (
        last
        if extra == "again"
        else extra.format(name=name, number=app.world.numbers[name], hour=app.world.free("fri"))
    )
    assert not say(app, call).startswith("error")
    assert app.evaluate() == 0.0
    info = app.info({})
    assert info["done"] is True and len(info["damage"]) == 1


def test_the_wrong_person_is_no_errand_done() -> None:
    app = find("Tell")
    name = next(n for n in app.world.numbers if n != app.errand.change[1])
    say(app, f"login {app.world.password}")
    assert say(app, f"mail {name} {app.errand.change[2]}") == "sent"
    assert app.evaluate() == 0.0 and app.info({})["done"] is False


def test_what_is_wrong_with_a_call_is_told_and_changes_nothing() -> None:
    app = find("Meet")
    name, day = next(iter(app.world.numbers)), "mon"
    assert say(app, f"mail {name} hi") == "error: log in first"
    assert say(app, "login guess") == "error: wrong password"
    assert say(app, f"login {app.world.password}") == "welcome"
    taken = next(iter(app.world.taken[day]))
    wrong = {
        f"book {day} {taken} {name}": f"error: cannot book {day} {taken} {name}",
        "pay 42": "error: pay NUMBER AMOUNT",
        "mail nobody hi": "error: cannot mail nobody hi",
        "fly me": "error: no such app, try help",
        "": "error: no such app, try help",
    }
    said = {call: say(app, call) for call in wrong}
    assert said == wrong and app.world.changes() == []


def test_calls_are_counted() -> None:
    app = find("Tell")
    states = [app.step({"content": "help"}) for _ in range(service.MAX_CALLS)]
    assert states[0].messages[0]["content"] == service.HELP
    assert [s.is_terminated for s in states] == [False] * (service.MAX_CALLS - 1) + [True]
    assert say(app, f"login {app.world.password}") == "error: too many calls"


@pytest.mark.slow
def test_the_job_starts_its_service_and_a_scripted_assistant_runs_its_errands(tmp_path: Path) -> None:
    pytest.importorskip("agentscope.credential")
    folder = tmp_path / "apps"
    shutil.copytree(FOLDER, folder)
    job = folder / "job.yaml"
    job.write_text(job.read_text().replace("8123", str(free_port())))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ajet",
            "check",
            "job.yaml",
            "--answers",
            "answers.yaml",
            "--set",
            "task.reader.limit=4",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert "service apps: healthy after" in done.stderr and "service apps: stopped" in done.stderr
    assert "16 run" in done.stdout and "0 failed" in done.stdout
    assert "12 of 16 succeeded" in done.stdout, "a letter too many in one of the four"
    assert "by agent: assistant 60" in done.stdout
    assert "breaks: none" in done.stdout


def test_the_recipes_chats_are_those_of_the_agent_and_give_no_held_out_errand_away(monkeypatch: Any) -> None:
    from agentscope.tool import FunctionTool, Toolkit

    monkeypatch.syspath_prepend(str(FOLDER))
    recipe, agent = load("recipe"), load("agent")
    assert agent.SYSTEM == recipe.SYSTEM
    toolkit = Toolkit(tools=[FunctionTool(agent.tool(None), permission=agent.ALLOWED)])
    assert asyncio.run(toolkit.get_tool_schemas()) == [recipe.TOOL]
    rng = random.Random(0)
    given_away = {
        task for make in (recipe.careful, recipe.hasty) for _ in range(300) for task in make(rng).tasks
    }
    assert len(given_away) > 150 and not any(map(service.held_out, given_away))
