"""A workflow is the user's agent program: a class with ``execute(task, tuner)`` or a plain function."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.suggest import nearest
from ajet.types import ConfigError, Task, WorkflowOutput

_UNLIMITED = 100  # positional arguments of a function with *args


@dataclass(frozen=True, slots=True)
class Tuner:
    """What a workflow may use besides its task: explicit model handles. Nobody needs them: inside an
    episode every LLM client of a supported wire is answered and recorded anyway."""

    base_url: str
    """An OpenAI-compatible address; its requests are answered in this process."""
    api_key: str
    """Opens this episode and nothing else, from any thread; expires with the episode."""
    handles: Mapping[str, Callable[..., Any]]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("as_"):
            raise AttributeError(name)
        handles = self.handles
        if name not in handles:
            raise AttributeError(
                f"tuner.{name} is not installed{nearest(name, handles)}. Installed: {', '.join(sorted(handles)) or 'none'}; "
                "handles come with framework plugins, e.g. ajet-plugin-openai-sdk."
            )
        return lambda *args, **kwargs: handles[name](self, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class Workflow:
    """A loaded workflow. `fresh` gives the callable of one episode: a new instance for a class."""

    spec: str
    target: Callable[..., Any]
    is_async: bool
    arguments: int

    def fresh(self) -> Callable[[Task, Tuner], Any]:
        call: Any = self.target
        if inspect.isclass(self.target):
            call = getattr(self.target(), "execute")  # noqa: B009 - `load_workflow` has seen it
        arguments = self.arguments
        return lambda task, tuner: call(*(task, tuner)[:arguments])


def load_workflow(spec: str) -> Workflow:
    """Load ``pkg.module:Name`` or ``path/to/file.py:Name``. Raises ConfigError naming what is wrong."""
    target = load_object(spec, "workflow")
    if not callable(target):
        raise ConfigError(
            f"workflow {spec}: {type(target).__name__} is not callable; name a class with `execute` or a function."
        )
    call = target
    bound = 0
    if inspect.isclass(target):
        call = getattr(target, "execute", None)
        if not callable(call):
            raise ConfigError(f"workflow {spec}: the class has no method `execute(self, task, tuner)`.")
        bound = int(not isinstance(inspect.getattr_static(target, "execute"), staticmethod | classmethod))
        _check_constructor(target, spec)
    required, allowed = _positional(call)
    if allowed - bound < 1 or required - bound > 2:
        raise ConfigError(
            f"workflow {spec}: must take (task) or (task, tuner), but takes {inspect.signature(call)}."
        )
    return Workflow(spec, target, inspect.iscoroutinefunction(call), min(2, max(allowed - bound, 1)))


def coerce_output(returned: Any) -> WorkflowOutput:
    """What a workflow returned as a WorkflowOutput: anything else is its response."""
    return returned if isinstance(returned, WorkflowOutput) else WorkflowOutput(response=returned)


def load_object(spec: str, what: str) -> Any:
    """The object that ``module:Name`` or ``file.py:Name`` names. Raises ConfigError."""
    place, _, attribute = spec.rpartition(":")
    if not place or not attribute:
        raise ConfigError(f"{what} {spec!r}: write `pkg.module:Name` or `path/to/file.py:Name`.")
    try:
        module = _load_file(Path(place), what) if place.endswith(".py") else importlib.import_module(place)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # a script without a main guard may well exit
        line = place_of(error)
        at = f" (at {line})" if line else ""
        raise ConfigError(f"{what} {spec}: does not import: {type(error).__name__}: {error}{at}") from error
    found = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            public = [n for n in vars(found) if not n.startswith("_")]
            raise ConfigError(f"{what} {spec}: {place} has no {name!r}{nearest(name, public)}.")
        found = getattr(found, name)
    return found


def place_of(error: BaseException) -> str:
    """``agent.py:17``: the innermost line of the user's own code, else of an installed package; empty if
    neither was running."""
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith("<"):
        return f"{error.filename}:{error.lineno}"
    stdlib, ours = sysconfig.get_path("stdlib"), f"{Path(__file__).parent}{os.sep}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", ours))
        and ("site-packages" in frame.filename or not frame.filename.startswith(stdlib))
    ]
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    return next((f"{frame.filename}:{frame.lineno}" for frame in reversed(own or frames)), "")


def _load_file(path: Path, what: str) -> Any:
    path = path.resolve()
    if not path.is_file():
        raise ConfigError(f"{what} {path}: no such file.")
    # Two files of one stem in different folders must not collide; a file loads once per process.
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # as `python file.py` would, but after everything else
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _check_constructor(cls: type, spec: str) -> None:
    required, _ = _positional(cls)
    if required:
        raise ConfigError(
            f"workflow {spec}: the class must be constructible without arguments, one instance an episode."
        )


def _positional(call: Callable[..., Any]) -> tuple[int, int]:
    """(required, allowed) positional arguments."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(inspect.signature(call).parameters.values())
    positional = [p for p in parameters if p.kind in kinds]
    required = sum(p.default is p.empty for p in positional)
    required += sum(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters) * _UNLIMITED
    unlimited = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return required, _UNLIMITED if unlimited else len(positional)
