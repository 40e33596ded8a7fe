"""Patches of packages that may come later, and their undoing."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest

from ajet.utils.patching import replaced, replaced_in_all, steps_with, when_imported


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a package that nobody has imported yet, with a module ``inner`` that it imports."""
    name = f"framework_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("from . import inner\nloaded = True\n")
    (tmp_path / name / "inner.py").write_text("class Agent:\n    def reply(self): return 'plain'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    for module in (name, f"{name}.inner"):
        sys.modules.pop(module, None)


@contextmanager
def patch(module: ModuleType) -> Iterator[None]:
    """Make agents shout."""
    with replaced(module.Agent, reply=lambda self: "PATCHED"):
        yield


def test_a_module_that_is_imported_later_is_patched_then(package: str) -> None:
    finders = list(sys.meta_path)
    undo = when_imported(f"{package}.inner", patch)
    assert package not in sys.modules, "nothing is imported for the sake of a patch"
    module = importlib.import_module(package)
    assert module.loaded and module.inner.Agent().reply() == "PATCHED"
    undo()
    assert module.inner.Agent().reply() == "plain"
    assert sys.meta_path == finders


def test_a_module_that_is_there_is_patched_at_once(package: str) -> None:
    module = importlib.import_module(package)
    undo = when_imported(f"{package}.inner", patch)
    assert module.inner.Agent().reply() == "PATCHED"
    undo()
    assert module.inner.Agent().reply() == "plain"


def test_two_patches_of_one_module_are_both_applied(package: str) -> None:
    seen: list[str] = []

    @contextmanager
    def look(module: ModuleType) -> Iterator[None]:
        seen.append(module.__name__)
        yield

    undo = [when_imported(f"{package}.inner", p) for p in (patch, look)]
    assert importlib.import_module(f"{package}.inner").Agent().reply() == "PATCHED"
    assert seen == [f"{package}.inner"]
    for function in reversed(undo):
        function()


def test_a_module_imported_after_the_end_is_left_alone(package: str) -> None:
    when_imported(f"{package}.inner", patch)()
    assert importlib.import_module(f"{package}.inner").Agent().reply() == "plain"


def test_a_patch_that_does_not_fit_is_a_warning(package: str, caplog: pytest.LogCaptureFixture) -> None:
    @contextmanager
    def of_another_release(module: ModuleType) -> Iterator[None]:
        """Tell the agents apart."""
        with replaced(module.Agent, renamed=None):
            yield

    with caplog.at_level(logging.WARNING, "ajet"):
        undo = when_imported(f"{package}.inner", of_another_release)
        assert importlib.import_module(f"{package}.inner").Agent().reply() == "plain"
    assert f"{package}.inner has changed, so this could not be done: Tell the agents apart" in caplog.text
    undo()


def test_a_file_of_the_user_that_hides_a_package_is_named(
    package: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "ajet"):
        undo = when_imported(package, patch)
        file = importlib.import_module(package).__file__
    assert f"{file} hides the package {package}. Rename it" in caplog.text
    assert "has changed" not in caplog.text
    undo()


def test_what_is_replaced_comes_back_as_it_was_stored() -> None:
    class Base:
        @classmethod
        def make(cls) -> str:
            return cls.__name__

        def inherited(self) -> str:
            return "base"

    class Derived(Base):
        pass

    with replaced(Base, make=None), replaced(Derived, inherited=None):
        assert Base.make is None and "inherited" in vars(Derived)
    assert Derived.make() == "Derived", "still a classmethod"
    assert "inherited" not in vars(Derived) and Derived().inherited() == "base"


def test_methods_are_replaced_in_all_subclasses_as_long_as_the_block_lasts() -> None:
    class Base:
        made: ClassVar[list[str]] = []

        def __init_subclass__(cls) -> None:
            cls.made.append(cls.__name__)

        def reply(self) -> str:
            return "base"

    class Before(Base):
        def reply(self) -> str:
            return f"before, {super().reply()}"

    def loud(original: Callable[..., str]) -> Callable[..., str]:
        return lambda self: original(self).upper()

    stored = dict(vars(Base))
    with replaced_in_all(Base, {"reply": loud}):

        class Within(Before):
            def reply(self) -> str:
                return f"within, {super().reply()}"

        assert (Base().reply(), Before().reply()) == ("BASE", "BEFORE, BASE")
        assert Within().reply() == "WITHIN, BEFORE, BASE"
    assert Within().reply() == "within, before, base" and dict(vars(Base)) == stored
    assert Base.made == ["Before", "Within"], "the class's own hook runs, too"


def test_steps_have_the_value_and_their_consumer_has_not() -> None:
    name: ContextVar[str] = ContextVar("name", default="nobody")
    closed: list[str] = []

    async def steps() -> AsyncGenerator[str]:
        try:
            for _ in range(3):
                yield name.get()
        finally:
            closed.append(name.get())

    async def consume() -> list[str]:
        seen = []
        labelled = steps_with(name, "agent", steps())
        async for item in labelled:
            seen += [item, name.get()]
            if len(seen) == 4:
                break
        await labelled.aclose()
        return seen

    assert asyncio.run(consume()) == ["agent", "nobody", "agent", "nobody"]
    assert closed, "leaving early closes the inner generator"
