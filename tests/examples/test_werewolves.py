"""examples/werewolves: the rules of the game, who hears what, the rewards of the players, and the agents with a scripted model."""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ajet import Task, WorkflowOutput
from ajet.cli import run_program
from ajet.testing import ScriptedEngine
from ajet.tracker.timelines import timelines

FOLDER = Path(__file__).parents[2] / "examples" / "werewolves"
MODULES = ("game", "players", "deals", "recipe", "agent")
ROLES = {
    "Ada": "wolf", "Ben": "wolf", "Cleo": "seer", "Dan": "guard", "Eve": "villager", "Finn": "villager", "Gus": "villager",
}  # fmt: skip


@pytest.fixture(scope="module")
def example() -> Iterator[Callable[[str], Any]]:
    """Import a module of the example."""
    before = {name: sys.modules.pop(name, None) for name in MODULES}
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module
    sys.path.remove(str(FOLDER))
    for name in MODULES:
        sys.modules.pop(name, None)
        if before[name]:
            sys.modules[name] = before[name]


class Table:
    """Players with fixed answers: (player, a part of the request) -> answer; else they choose the first name."""

    def __init__(self, **answers: dict[str, str]) -> None:
        self.answers = answers
        self.heard: dict[str, str] = dict.fromkeys(ROLES, "")

    async def ask(self, player: str, text: str) -> str:
        self.heard[player] += text + "\n"
        request = text.splitlines()[-1]
        own = (answer for part, answer in self.answers.get(player, {}).items() if part in request)
        first = re.search(r": (\w+)", request)
        return next(own, f"I choose {first[1]}." if first else "I know nothing.")


def play(example: Callable[[str], Any], roles: dict[str, str] = ROLES, **answers: dict[str, str]) -> Any:
    """(game, table, winner) of a game with fixed answers."""
    table = Table(**answers)
    game = example("game").Game(roles, table.ask, seed="0")
    return game, table, asyncio.run(game.play())


def test_the_village_wins_when_no_wolf_is_left(example: Callable[[str], Any]) -> None:
    game, _, winner = play(example)  # all vote for the first on the list: Ada, then Ben
    assert winner == "village" and game.log[-1] == "The village wins."
    assert "Ada is voted out and was a wolf." in game.log and "Ben is voted out and was a wolf." in game.log


def test_the_wolves_win_when_they_are_half_of_the_players(example: Callable[[str], Any]) -> None:
    villagers = {name: {"vote for": "Gus, else Finn, else Eve."} for name in ROLES}
    game, _, winner = play(example, **villagers)
    assert winner == "wolves" and sorted(game.alive)[:2] == ["Ada", "Ben"] and len(game.alive) == 4


def test_no_player_dies_in_the_first_night_nor_one_whom_the_guard_protects(
    example: Callable[[str], Any],
) -> None:
    game, table, _ = play(
        example,
        Ada={"vote for": "Gus"},
        Ben={"vote for": "Gus", "kill": "Eve"},
        Cleo={"vote for": "Ada"},
        Dan={"vote for": "Ada", "protect": "I protect Eve."},
    )
    assert "Day 1. No player died." in game.log and "Day 2. No player died." in game.log
    assert "kill" not in table.heard["Ada"].partition("Day 1")[0]


def test_each_hears_only_what_it_may_hear(example: Callable[[str], Any]) -> None:
    votes = {name: {"vote for": "Gus"} for name in ROLES}
    votes["Ada"]["kill"], votes["Ben"]["kill"] = "Let us kill Dan.", "Then Dan."
    votes["Cleo"]["look at"] = "Ben"
    _, table, _ = play(example, **votes)
    assert "Ada: Let us kill Dan." in table.heard["Ben"], "a wolf hears the wolves before it"
    assert [n for n in ROLES if "Ben is a wolf." in table.heard[n]] == ["Cleo"]
    assert not [n for n in ROLES if "Let us kill" in table.heard[n] and n != "Ben"]
    briefings = {n: example("game").briefing(ROLES, n) for n in ROLES}
    assert briefings["Ada"].endswith("You are Ada, a wolf. With you: Ben.")
    assert briefings["Eve"].endswith("You are Eve, a villager.")


def test_who_is_called_a_wolf_is_on_trial_the_last_one_first(example: Callable[[str], Any]) -> None:
    game, table, _ = play(
        example,
        Ada={"say": "I am sure that Cleo is a wolf, I am."},
        Cleo={"say": "Ada is a wolf."},
        Eve={"say": "Cleo is a wolf."},
        Finn={"say": "Ben is not a wolf, and Finn is a wolf."},
        Gus={"say": "I am a wolf."},
    )
    assert next(line for line in game.log if "trial" in line) == "On trial: Gus, Ada, Cleo."
    assert all("On trial: Gus, Ada, Cleo.\nWhom do you vote for" in table.heard[name] for name in ROLES)


def test_the_seer_does_not_look_at_a_player_twice(example: Callable[[str], Any]) -> None:
    _, table, _ = play(example, **{name: {"vote for": "Gus"} for name in ROLES})
    first, second = re.findall(r"Whom do you look at: (.*)\?", table.heard["Cleo"])[:2]
    assert first.startswith("Ada") and "Ada" not in second


def test_an_answer_without_a_legal_name_is_replaced_and_shows_in_the_log(
    example: Callable[[str], Any],
) -> None:
    game, _, _ = play(example, Cleo={"look at": "Adam, or myself: Cleo."})
    assert any(
        re.match(r"That names no player who can be chosen; the moderator draws \w+ for Cleo", x)
        for x in game.log
    )


def test_what_a_player_says_is_one_line_of_limited_length(example: Callable[[str], Any]) -> None:
    _, table, _ = play(example, Ada={"say": "Ben is mine.\nFinn: I am the wolf. " + "x" * 500})
    line = next(x for x in table.heard["Ben"].splitlines() if x.startswith("Ada: "))
    assert "Ben is mine. Finn: I am" in line and len(line) == len("Ada: ") + example("game").LONGEST


@pytest.mark.parametrize(("players", "wolves"), [(5, 1), (7, 2), (10, 3), (12, 3)])
def test_almost_a_third_are_wolves(example: Callable[[str], Any], players: int, wolves: int) -> None:
    roles = example("game").role_list(players)
    assert len(roles) == players and roles.count("wolf") == wolves
    assert roles.count("seer") == roles.count("guard") == 1
    with pytest.raises(ValueError, match="players: 4 are too few"):
        example("game").role_list(4)


@pytest.mark.parametrize("players", [5, 7, 9])
def test_any_number_of_players_ends_a_game(example: Callable[[str], Any], players: int) -> None:
    deals, scripted = example("deals"), example("players")
    rng, honest = random.Random(0), scripted.Habits(tell=1, follow=1)
    winners = {scripted.play(deals.deal(rng, players), rng, scripted.Habits(), honest)[1] for _ in range(15)}
    assert winners == {"wolves", "village"}


# ------------------------------------------------------------------ tasks, rewards, recipe


@pytest.mark.whole
def test_held_out_deals_are_in_no_training_task_and_no_transcript(example: Callable[[str], Any]) -> None:
    deals, recipe = example("deals"), example("recipe")
    train, held = (list(deals.Deals(count=60, held_out=out).tasks()) for out in (False, True))
    assert [t.id for t in train] == [t.id for t in deals.Deals(count=60).tasks()]
    assert not {t.id for t in train} & {t.id for t in held}
    assert all(deals.is_held_out(t.metadata["roles"]) for t in held)
    rng = random.Random(0)
    phases = recipe.Townsfolk().phases()
    given_away = {
        task
        for p in phases
        for make in (p.echo, p.make)
        if make
        for _ in range(30)
        for task in make(rng).tasks
    }
    assert len(given_away) > 40 and not [
        t for t in given_away if deals.is_held_out(dict(x.split("-") for x in t.split()))
    ]


@pytest.mark.parametrize("side", ["wolves", "village"])
def test_each_players_reward_is_its_sides_win(example: Callable[[str], Any], side: str) -> None:
    task = Task("t", metadata={"roles": ROLES})
    output = WorkflowOutput(response={"winner": "wolves", "log": []})
    verdict = asyncio.run(example("deals").Winner(side=side).judge(task, output, None))
    assert verdict.reward == float(side == "wolves") and verdict.is_success == (side == "wolves")
    assert verdict.rewards == {f"{role}-{name}": float(role == "wolf") for name, role in ROLES.items()}


@pytest.mark.whole
def test_the_untrained_wolves_lose_games_that_wolves_who_lie_win(example: Callable[[str], Any]) -> None:
    scripted, recipe, deals = example("players"), example("recipe"), example("deals")

    def rate(wolves: Any) -> float:
        rng = random.Random(0)
        games = [scripted.play(deals.deal(rng), rng, wolves, recipe.VILLAGE) for _ in range(80)]
        return sum(winner == "wolves" for _, winner, _ in games) / len(games)

    assert rate(recipe.WOLVES) < 0.65
    assert rate(scripted.Habits(lie=1, follow=1, spare=1, silence=1)) > 0.9


# ------------------------------------------------------------------ the agents


def expert(example: Callable[[str], Any], deals: list[dict[str, str]]) -> Callable[[Any, str], str]:
    """The script of a model that plays all players: wolves who lie, and a village as the recipe teaches it."""
    of_names = {", ".join(roles): roles for roles in deals}
    scripted, recipe = example("players"), example("recipe")
    liar = scripted.Habits(lie=1, follow=1, spare=1, silence=1)

    def say(request: Any, prompt: str) -> str:
        turns = re.findall(r"<\|im_start\|>(\w+)\n(.*?)(?=<\|im_end\|>|$)", prompt, re.S)
        names, name = re.findall(r"Players: (.*)\.\nYou are (\w+), ", turns[0][1])[0]
        roles = of_names[names]
        assert turns[0][1] == example("game").briefing(roles, name)
        habits = liar if roles[name] == "wolf" else recipe.VILLAGE
        player = scripted.Player(name, roles, habits, random.Random(prompt))
        return [player.answer(text) for role, text in turns if role == "user"][-1]

    return say


@pytest.mark.whole
def test_wolves_who_lie_win_through_the_real_agents_and_each_player_is_one_timeline(
    example: Callable[[str], Any], bench: Any, tokenizer: Any
) -> None:
    pytest.importorskip("agentscope.credential")
    from ajet.capture.process.install import install
    from ajet.plugins import load_plugins
    from ajet.runs.runtime import frameworks_prepared

    hook = load_plugins().manager.hook
    agent, tasks = example("agent"), list(example("deals").Deals(count=4, held_out=True).tasks())
    made = bench(ScriptedEngine(tokenizer, expert(example, [t.metadata["roles"] for t in tasks])))
    made.capture._resolve_agent = lambda episode, request: hook.ajet_resolve_agent(
        episode=episode, request=request
    )
    winners = []
    for task in tasks:
        with frameworks_prepared(hook, made.capture), install(made.capture), made.session() as session:
            winners.append(asyncio.run(agent.run(task))["winner"])
        lines = timelines(session.record.trained_calls)
        names = {f"{role}-{name}" for name, role in task.metadata["roles"].items()}
        assert {span.agent for line in lines for span in line.spans} <= names
        assert len(lines) == len({line.spans[0].agent for line in lines}), "its own memory, its own timeline"
    assert winners.count("wolves") >= 3


@pytest.mark.whole
@pytest.mark.e2e
def test_check_shows_the_merging_of_each_player(command: Callable[..., str]) -> None:
    pytest.importorskip("agentscope.credential")
    output = command(
        *("check", str(FOLDER / "job.yaml"), "--answers", str(FOLDER / "answers.yaml")),
        *("--set", "task.reader.count=2", "--set", "train.targets=[wolves,village]"),
    )
    assert "timelines           7.0 an episode, at most 7" in output
    assert "breaks: none" in output
    assert all(f"{role}-" in output for role in ("wolf", "seer", "guard", "villager"))


@pytest.mark.slow
@pytest.mark.models(f"{FOLDER / 'recipe.py'}:Townsfolk")
def test_both_sides_train_each_its_own_adapter(command: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("agentscope.credential")
    settings = {
        "train.targets": "[wolves,village]",
        "train.steps": 2,
        "train.batch_size": 2,
        "eval.episodes": 1,
        "run.dir": "runs",
    }
    command(
        *("run", str(FOLDER / "job.yaml")),
        *(part for key, value in settings.items() for part in ("--set", f"{key}={value}")),
    )
    (run,) = (tmp_path / "runs").iterdir()
    assert run_program(["audit", str(run)]) == 0
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [step for step in steps if step["type"] == "train"]
    for target in ("wolves", "village"):
        assert max(step.get(f"grad_norm/{target}", 0.0) for step in trained) > 0
        assert list(run.glob(f"checkpoints/*/adapters/{target}/adapter_model.safetensors"))
