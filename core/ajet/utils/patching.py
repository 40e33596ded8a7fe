"""For framework plugins: patches a package that may not be installed, and undoes the patch.

A framework's private names are patched only to find out which agent calls, never to see the call itself:
`ajet.capture` does that. So if a patch no longer fits a framework's release, only a label is lost, with a warning.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import inspect
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any, TypeVar
from weakref import WeakSet

from ajet.utils.user_code import is_users

log = logging.getLogger("ajet")
T = TypeVar("T")
V = TypeVar("V")
Patch = Callable[[ModuleType], AbstractContextManager[None]]
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
_ORIGINAL = "__ajet_original__"
"""Attribute of a replacement: itself and the original. Itself, because `functools.wraps` copies attributes."""


def when_imported(name: str, patch: Patch) -> Callable[[], None]:
    """Enter ``patch(module)`` now if module ``name`` is imported, else right after its import; the returned function
    leaves it. If a patch raises, a warning with the first line of its docstring is logged, and the program continues
    without the patch."""
    active = ExitStack()

    def apply(module: ModuleType) -> None:
        try:
            active.enter_context(patch(module))
        except Exception as error:
            file = str(getattr(module, "__file__", None))
            if "." not in name and is_users(file):
                why = f"{file} hides the package {name}. Rename it if the agent uses that package. This"
            else:
                why = f"{name} has changed, so this"
            log.warning("%s could not be done: %s (%r)", why, _first_line(patch), error)

    if name in sys.modules:
        apply(sys.modules[name])
    else:
        finder = _Finder(name, apply)
        sys.meta_path.insert(0, finder)
        active.callback(sys.meta_path.remove, finder)
    return active.close


@contextmanager
def replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """A block in which attributes of a class or module are replaced. Raises AttributeError for one that it does not
    have."""
    own = vars(owner)
    missing = object()
    for name in attributes:
        inspect.getattr_static(owner, name)
    # As stored, so classmethods stay classmethods.
    old = {name: own.get(name, missing) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in old.items():
            if value is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@contextmanager
def replaced_in_all(base: Any, methods: Mapping[str, Wrap]) -> Iterator[None]:
    """A block in which methods of a class and its subclasses, also of those that are made in it, are replaced. Raises AttributeError
    for one that the class does not have."""
    seen: WeakSet[type] = WeakSet()
    own = vars(base).get("__init_subclass__")

    def replace(cls: Any) -> None:
        if cls in seen:
            return
        seen.add(cls)
        for name, wrap in methods.items():
            if inspect.isfunction(original := vars(cls).get(name)):
                made = wrap(original)
                setattr(made, _ORIGINAL, (made, original))
                setattr(cls, name, made)

    def init_subclass(cls: Any, /, **kwargs: Any) -> None:
        if own:
            own.__func__(cls, **kwargs)
        else:
            super(base, cls).__init_subclass__(**kwargs)
        replace(cls)

    for name in methods:
        inspect.getattr_static(base, name)
    try:
        with replaced(base, __init_subclass__=classmethod(init_subclass)):
            for cls in _with_subclasses(base):
                replace(cls)
            yield
    finally:
        for cls in list(seen):
            for name in methods:
                made, original = getattr(vars(cls).get(name), _ORIGINAL, (None, None))
                if made is not None and vars(cls)[name] is made:
                    setattr(cls, name, original)


async def steps_with(variable: ContextVar[V], value: V, steps: AsyncGenerator[T, Any]) -> AsyncGenerator[T]:
    """The items of ``steps``, each made while ``variable`` has the value. Between items the consumer's
    context is unchanged, because a generator runs in the context of the code that requests the next item."""
    try:
        while True:
            token = variable.set(value)
            try:
                item = await anext(steps)
            except StopAsyncIteration:
                return
            finally:
                variable.reset(token)
            yield item
    finally:
        await steps.aclose()


def _with_subclasses(cls: type) -> Iterator[type]:
    yield cls
    subclasses: list[type] = type.__subclasses__(cls)
    for subclass in subclasses:
        yield from _with_subclasses(subclass)


def _first_line(patch: Patch) -> str:
    return (patch.__doc__ or repr(patch)).partition("\n")[0].rstrip(".:")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module with the other finders, and calls back once it is executed."""

    def __init__(self, name: str, look: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._look = look

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if fullname != self._name:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            if spec := finder.find_spec(fullname, path, target):
                self._watch(spec.loader)
                return spec
        return None

    def _watch(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.exec_module = execute
            execute(module)
            self._look(module)

        loader.exec_module = exec_module
