"""Methods of a class and of its subclasses, also those that are made later."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from ajet.utils.patching import replaced

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
_ORIGINAL = "__ajet_original__"
"""Attribute of a replacement: itself and the original. Itself, because `functools.wraps` copies attributes."""


@contextmanager
def replaced_in_all(base: Any, methods: dict[str, Wrap]) -> Iterator[None]:
    """A block in which methods of a class and its subclasses are replaced. Raises AttributeError for one that the class does not
    have."""
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


def _with_subclasses(cls: type) -> Iterator[type]:
    yield cls
    subclasses: list[type] = type.__subclasses__(cls)
    for subclass in subclasses:
        yield from _with_subclasses(subclass)
