"""What `model` means: folders and ids are left alone, recipes are built once for each seed."""

from __future__ import annotations

import copy
import json
import os
import re
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from ajet import AjetError, ConfigError, Recipe
from ajet.interfaces.progress import Progress, Silent
from ajet.job.models import (
    cached,
    check_model,
    check_reference,
    find_recipe,
    generation_config,
    model_source,
)
from ajet.rollout.settings import RolloutSettings
from ajet.runs.run_dir import checkpoint_step
from ajet.runs.runtime import make_chat
from tests import tokenizers
from tests.patience import PATIENCE


class Counted(Recipe):
    """A recipe that writes its seed, and counts."""

    name = "counted"
    built: ClassVar[list[int]] = []

    def build(self, folder: Path, seed: int, progress: Progress) -> None:
        self.built.append(seed)
        (folder / "model").write_text(str(seed))

    def tokenizer(self, seed: int) -> tuple[Any, str]:
        return None, "none"


class Heard(Silent):
    """What was said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.spoken = threading.Event()

    def say(self, text: str) -> None:
        self.said.append(text)
        self.spoken.set()


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("AJET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Counted, "built", [])
    return tmp_path / "cache"


class Hub:
    """A hub that gives one answer to everything, and what it was asked."""

    def __init__(self, server: HTTPServer) -> None:
        self.url = server.url_for("").rstrip("/")
        self.status, self.requests = 200, list[str]()
        server.expect_request(re.compile(".*")).respond_with_handler(self.answer)

    def answer(self, request: Request) -> Response:
        self.requests.append(f"{request.method} {request.path}")
        headers = {"X-Error-Code": "RepoNotFound"} if self.status in (401, 404) else {}
        return Response(json.dumps({"id": "owner/name", "siblings": []}), self.status, headers)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, httpserver: HTTPServer) -> Hub:
    import huggingface_hub.constants as constants

    made = Hub(httpserver)
    monkeypatch.setattr(constants, "ENDPOINT", made.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return made


FILE = '''
from ajet import Recipe

class Mine(Recipe):
    """Mine."""
    name = "mine"

    def build(self, folder, seed, progress):
        (folder / "model").write_text("mine")

    def tokenizer(self, seed):
        return None, "none"

def not_a_recipe():
    pass
'''


def test_the_cache_builds_once_for_each_seed() -> None:
    recipe = Counted()
    folders = [cached(recipe, seed, Silent()) for seed in (0, 1, 0)]
    assert folders[0] == folders[2] != folders[1] and recipe.built == [0, 1]
    assert (folders[1] / "model").read_text() == "1"


def test_an_interrupted_build_gives_no_model_and_leaves_its_files_for_the_next_one(cache: Path) -> None:
    class Breaks(Counted):
        def build(self, folder: Path, seed: int, progress: Progress) -> None:
            there = [path.name for path in folder.iterdir()]
            super().build(folder, seed, progress)
            if not there:
                raise KeyboardInterrupt
            (folder / "there").write_text(*there)

    progress = Heard()
    with pytest.raises(KeyboardInterrupt):
        cached(Breaks(), 0, progress)
    assert not list(cache.glob("counted-*"))
    (left,) = cache.glob(".counted-*.part")
    assert progress.said == [
        f"the build of the model counted was interrupted; the next one continues in {left}"
    ]
    assert (cached(Breaks(), 0, Silent()) / "there").read_text() == "model"
    assert [path.name for path in cache.iterdir() if path.is_dir()] == [cached(Breaks(), 0, Silent()).name]


def test_what_a_model_can_do_is_said_before_it_is_built_and_not_again() -> None:
    class Sums(Counted):
        """Only adds
        small numbers.

        Nothing else."""

    progress = Heard()
    for _ in range(2):
        cached(Sums(), 0, progress)
    said = "the model is built once, then kept; counted: Only adds small numbers. --model names another"
    assert progress.said == [said]


def test_an_error_in_ones_own_recipe_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(FILE.replace('write_text("mine")', "write_text(1 / 0)"))
    named = f"{tmp_path / 'recipe.py'}:Mine"
    with pytest.raises(AjetError) as caught:
        model_source(named, 0, Silent())
    said = "model mine: its recipe fails: ZeroDivisionError: division by zero"
    assert str(caught.value) == f"{said} (at {tmp_path / 'recipe.py'}:9). Fix that line."


def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AJET_CACHE", str(tmp_path / "file"))
    with pytest.raises(AjetError, match=rf"^{tmp_path / 'file'}: cannot be written: File exists\."):
        cached(Counted(), 0, Silent())


@pytest.mark.whole
def test_whoever_comes_second_waits_for_the_first_build_and_says_so() -> None:
    started, finish, calls = threading.Event(), threading.Event(), []
    first, second = Heard(), Heard()

    class Slow(Counted):
        def build(self, folder: Path, seed: int, progress: Progress) -> None:
            calls.append(seed)
            started.set()
            assert finish.wait(PATIENCE)
            (folder / "model").write_text("slow")

    results: list[Path] = []
    threads = [
        threading.Thread(target=lambda told=told: results.append(cached(Slow(), 0, told)))
        for told in (first, second)
    ]
    threads[0].start()
    assert started.wait(PATIENCE)
    threads[1].start()
    assert second.spoken.wait(PATIENCE)
    finish.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert calls == [0] and results[0] == results[1]
    assert second.said == [f"waiting for process {os.getpid()}, which builds the model {Slow.name}"]


def test_a_recipe_in_a_file_is_built_anew_when_a_file_changes_that_it_imports_and_that_lies_beside_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "recipe.py").write_text(
        FILE.replace("        (folder", "        import chats\n        (folder")
    )
    (tmp_path / "chats.py").write_text("from words import WORDS\n")
    (tmp_path / "words.py").write_text("WORDS = 1\n")
    (tmp_path / "agent.py").write_text("import recipe\n")
    recipe = find_recipe(f"{tmp_path / 'recipe.py'}:Mine")
    assert recipe
    first = recipe.key(0)
    (tmp_path / "agent.py").write_text("import recipe, words\n")
    (tmp_path / "new.py").write_text("")
    assert recipe.key(0) == first
    for name, text in {"words.py": "WORDS = 2\n", "chats.py": "from words import *\n"}.items():
        (tmp_path / name).write_text(text)
        assert recipe.key(0) != first
        first = recipe.key(0)


def test_the_step_of_a_checkpoint_is_read_from_it_or_from_above_its_adapters(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "step_000014"
    adapter = checkpoint / "adapters" / "critic"
    adapter.mkdir(parents=True)
    assert checkpoint_step(str(checkpoint)) is None
    (checkpoint / "ajet.json").write_text('{"step": 14, "version": 28}')
    assert checkpoint_step(str(checkpoint)) == checkpoint_step(str(adapter)) == 14
    assert checkpoint_step("starter") is None and checkpoint_step("Qwen/Qwen3-4B") is None
    (checkpoint / "ajet.json").write_text("")
    assert checkpoint_step(str(checkpoint)) is None


def test_folders_and_ids_are_left_alone(hub: Hub, tmp_path: Path) -> None:
    for model in ("Qwen/Qwen3-4B", str(tmp_path)):
        assert find_recipe(model) is None and model_source(model, 0, Silent()) == model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "starterr",
            "model starterr: no such recipe or folder; did you mean 'starter'. Name a recipe (calculator, gguf, smollm2",
        ),
        ("gpt2", "in the form owner/name, such as openai-community/gpt2."),
        ("my model", "model my model: no such recipe or folder. Name a recipe (calculator, gguf, smollm2"),
        ("./nowhere", "model ./nowhere: no such folder."),
        ("a/b/c", "model a/b/c: no such folder."),
        (__file__, f"model {__file__}: is not a directory."),
    ],
)
def test_a_model_that_is_neither_recipe_nor_folder_nor_id_is_refused_without_asking_the_hub(
    hub: Hub, model: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_model(model)
    assert hub.requests == []


def test_recipes_folders_and_ids_may_be_models_and_nothing_is_asked_yet(hub: Hub, tmp_path: Path) -> None:
    for model in ("starter", str(tmp_path), "Qwen/Qwen3-4B", "some.org/model_x"):
        check_model(model)
    assert hub.requests == []


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "has no such model, or it is private or gated. Check the id, or set HF_TOKEN."),
        (401, "has no such model, or it is private or gated."),
        (503, "answered 503. Try again later, or give the folder"),
    ],
)
def test_the_hub_is_asked_once_and_what_it_says_is_told_in_a_line(
    hub: Hub, status: int, message: str
) -> None:
    hub.status = status
    with pytest.raises(AjetError) as caught:
        model_source("owner/name", 0, Silent())
    assert str(caught.value).startswith("model owner/name: the Hugging Face Hub ") and message in str(
        caught.value
    )
    assert "\n" not in str(caught.value) and hub.requests == ["GET /api/models/owner/name"]


def test_a_hub_that_cannot_be_reached_is_named_with_a_remedy(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(AjetError, match=r"the Hugging Face Hub cannot be reached \(.+\)\. Give the folder"):
        model_source("owner/name", 0, Silent())


def test_what_the_hubs_cache_holds_needs_no_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache", lambda model, file: f"/cache/{model}/{file}"
    )
    assert model_source("owner/name", 0, Silent()) == "owner/name" and hub.requests == []


def test_what_is_no_recipe_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(FILE)
    with pytest.raises(ConfigError, match=r"recipe\.py:not_a_recipe: is not a subclass of ajet\.Recipe"):
        find_recipe(f"{tmp_path / 'recipe.py'}:not_a_recipe")
    with pytest.raises(ConfigError, match=r"has no 'Min'.*Mine"):
        find_recipe(f"{tmp_path / 'recipe.py'}:Min")


def test_a_reference_is_no_recipe() -> None:
    with pytest.raises(
        ConfigError, match=r"^train\.reference: starter is a recipe; name the folder of a model, or leave"
    ):
        check_reference("starter")
    with pytest.raises(ConfigError, match=r"^train\.reference \./none: no such folder"):
        check_reference("./none")


def test_the_stops_of_a_generation_config_are_found_for_folders_and_ids_of_the_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, snapshot = tmp_path / "model", tmp_path / "hub" / "models--owner--name" / "snapshots" / "a1"
    tokenizer = copy.deepcopy(tokenizers.qwen3())
    more = tokenizer.convert_tokens_to_ids("</tool_response>")
    for place in (folder, snapshot):
        place.mkdir(parents=True)
        (place / "generation_config.json").write_text(json.dumps({"eos_token_id": [more]}))
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("a1")
    for name, wanted in ((str(folder), True), ("owner/name", True), (str(tmp_path), False), ("", False)):
        tokenizer.name_or_path = name
        assert (more in make_chat(tokenizer, "qwen3", RolloutSettings()).stop_token_ids) is wanted, name


def test_a_model_of_the_hub_need_not_have_a_generation_config(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants as constants

    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{hub.url}/{{repo_id}}/{{revision}}/{{filename}}"
    )
    hub.status = 404
    assert generation_config("owner/name") is None
    assert [line.split()[1] for line in hub.requests] == ["/owner/name/main/generation_config.json"]
