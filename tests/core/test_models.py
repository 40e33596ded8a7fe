"""What `model` means: folders and ids are left alone, recipes are built once for each seed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ajet import ConfigError, Recipe
from ajet.models import cached, find_recipe, model_source
from ajet.progress import Progress, Silent


class Counted(Recipe):
    """A recipe that writes its seed, and counts."""

    name = "counted"
    built: ClassVar[list[int]] = []

    def build(self, folder: Path, seed: int, progress: Progress) -> None:
        self.built.append(seed)
        (folder / "model").write_text(str(seed))

    def tokenizer(self, seed: int) -> tuple[Any, str]:
        return None, "none"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("AJET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Counted, "built", [])
    return tmp_path / "cache"


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


def test_a_broken_build_leaves_nothing_behind(cache: Path) -> None:
    class Breaks(Counted):
        def build(self, folder: Path, seed: int, progress: Progress) -> None:
            super().build(folder, seed, progress)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached(Breaks(), 0, Silent())
    assert not [path for path in cache.iterdir() if path.is_dir()]
    assert (cached(Counted(), 0, Silent()) / "model").is_file()


def test_whoever_comes_second_waits_for_the_first_build() -> None:
    started, finish = threading.Event(), threading.Event()
    calls = []

    class Slow(Counted):
        def build(self, folder: Path, seed: int, progress: Progress) -> None:
            calls.append(seed)
            started.set()
            assert finish.wait(10)
            (folder / "model").write_text("slow")

    results: list[Path] = []
    threads = [threading.Thread(target=lambda: results.append(cached(Slow(), 0, Silent()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert started.wait(10)
    finish.set()
    for thread in threads:
        thread.join(10)
    assert calls == [0] and results[0] == results[1]


def test_a_recipe_in_a_file_is_built_anew_when_a_file_beside_it_changes(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(FILE)
    named = f"{tmp_path / 'recipe.py'}:Mine"
    first = Path(model_source(named, 0, Silent()))
    assert (first / "model").read_text() == "mine" and first == Path(model_source(named, 0, Silent()))
    (tmp_path / "words.py").write_text("WORDS = 1\n")
    assert Path(model_source(named, 0, Silent())) != first


def test_folders_and_ids_are_left_alone() -> None:
    for model in ("Qwen/Qwen3-4B", "/some/folder", "starter-like"):
        assert find_recipe(model) is None and model_source(model, 0, Silent()) == model


def test_what_is_no_recipe_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(FILE)
    with pytest.raises(ConfigError, match=r"recipe\.py:not_a_recipe: is no subclass of ajet\.Recipe"):
        find_recipe(f"{tmp_path / 'recipe.py'}:not_a_recipe")
    with pytest.raises(ConfigError, match=r"has no 'Min'.*Mine"):
        find_recipe(f"{tmp_path / 'recipe.py'}:Min")
