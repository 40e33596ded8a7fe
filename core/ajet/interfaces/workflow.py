"""A workflow is the user's agent program: a class with ``execute(task, tuner)``, a plain function, what a plugin makes
one of (`ajet_workflows`), or a plugin with settings (`WorkflowPlugin`)."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import re
import sys
import traceback
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from ajet.interfaces.base import Plugin
from ajet.types import AjetError, ConfigError, Task, WorkflowOutput
from ajet.utils.signature import Binding, bind
from ajet.utils.suggest import nearest
from ajet.utils.user_code import is_installed, is_users

_KEY_VARIABLE = re.compile(r"\b[A-Z]+(?:_[A-Z]+)*_API_KEY\b")
_OFFERED = ("task", "tuner")
"""What a workflow may take."""


class WorkflowFailed(AjetError):
    """A workflow that ran and failed in a way that has a name of its own: counted as ``workflow:<cause>``."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class EpisodeEndpoint(NamedTuple):
    """The address at which a program in any language reaches an episode's model: ``base_url, api_key = endpoint``."""

    base_url: str
    """OpenAI-compatible, up to and with ``/v1``."""
    api_key: str
    """Gives access to this episode only; expires with it. Sent as ``Authorization: Bearer`` or ``x-api-key``."""

    @property
    def keyed_url(self) -> str:
        """The base URL with the key in its path, for programs that cannot be given a key."""
        url = urlsplit(self.base_url)
        return f"{url.scheme}://{url.netloc}/k/{quote(self.api_key, safe='')}{url.path}"

    def environment(self) -> dict[str, str]:
        """Variables for a subprocess: what the SDKs of OpenAI, Anthropic and Google read, and ``AJET_BASE_URL``,
        ``AJET_API_KEY`` and ``AJET_KEYED_URL``. Proxies are told to leave the address alone."""
        host = urlsplit(self.base_url).hostname or ""
        root = self.base_url.removesuffix("/v1")
        bypass = ",".join(filter(None, (os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), host)))
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": root,
            "ANTHROPIC_API_BASE": root,
            "ANTHROPIC_API_KEY": self.api_key,
            "GOOGLE_GEMINI_BASE_URL": root,
            "GEMINI_API_KEY": self.api_key,
            # Vertex AI takes credentials of its own in place of a key.
            "GOOGLE_VERTEX_BASE_URL": self.keyed_url.removesuffix("/v1"),
            "AJET_BASE_URL": self.base_url,
            "AJET_API_KEY": self.api_key,
            "AJET_KEYED_URL": self.keyed_url,
            "NO_PROXY": bypass,
            "no_proxy": bypass,
            # The user's own would be sent in place of the key. Where there is none, one more would only make clients warn.
            **{
                name: self.api_key
                for name in ("ANTHROPIC_AUTH_TOKEN", "GOOGLE_API_KEY")
                if name in os.environ
            },
        }


@dataclass(frozen=True, slots=True)
class Tuner:
    """What a workflow may use besides its task: explicit model handles. They are optional: inside an episode every LLM
    client of a supported wire is answered and recorded anyway."""

    base_url: str
    """An OpenAI-compatible address; its requests are answered in this process."""
    api_key: str
    """Gives access to this episode only, from any thread; expires with the episode."""
    handles: Mapping[str, Callable[..., Any]]
    auxiliary: tuple[str, ...] = ()
    """Names of the job's targets that frozen models answer."""
    set_limit: Callable[[int | None, int | None], Future[str]] | None = None
    """What `limit` calls; None outside of episodes."""

    def limit(self, *, calls: int | None = None, tokens: int | None = None) -> Future[str]:
        """From now on, at most so many LLM calls of the episode are answered, and none after so many tokens have been sampled; None is
        no limit. The future, of `concurrent.futures`, has the result "calls" or "tokens" once a call has been refused for it."""
        return self.set_limit(calls, tokens) if self.set_limit else Future()

    def headers(self, *, agent: str | None = None, target: str | None = None) -> dict[str, str]:
        """HTTP headers that name the agent and the target of a client's calls. Raises ValueError for a
        name that headers cannot carry."""
        named = {"agent": agent, "target": target}
        return {f"x-ajet-{kind}": _ascii(kind, name) for kind, name in named.items() if name is not None}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("as_"):
            raise AttributeError(
                f"a tuner has no attribute {name!r}. If the workflow expects a model of its framework, install the framework's "
                "plugin, e.g. ajet-plugin-agentscope."
            )
        handles = self.handles
        if name not in handles:
            raise AttributeError(
                f"tuner.{name} is not installed{nearest(name, handles)}. Installed: {', '.join(sorted(handles)) or 'none'}; "
                "handles come with framework plugins, e.g. ajet-plugin-openai-sdk."
            )
        return lambda *args, **kwargs: handles[name](self, *args, **kwargs)


class WorkflowPlugin(Plugin):
    """Base of workflows that a job names by ``type``: they run agents that are programs of their own. One object runs all
    episodes of a job, many at once.

    Its tasks lack the fields of their metadata that ``task.hidden`` names. A program reaches the model through
    ``tuner.as_base_url()``.
    """

    kind = "workflow"

    @property
    def is_remote(self) -> bool:
        """Whether its programs cannot reach the loopback addresses of this machine, as in a remote sandbox. A job must then say
        in ``rollout.gateway_address`` where they reach their model."""
        return False

    @property
    def calls_model(self) -> bool:
        """Whether its programs call a model. If they should and none is called, the episode has failed."""
        return True

    @property
    def seconds(self) -> float | None:
        """How long an episode may take by these settings; None: as long as the job's ``rollout.timeout``, which otherwise must be
        longer."""
        return None

    def seconds_of(self, task: Task) -> float | None:
        """How long the agent may work on a task by the task's own settings; None: they do not say. The job tells which tasks may
        take as long as its ``rollout.timeout``, which ends an episode without judging it."""
        return None

    @abstractmethod
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        """Run one episode. `WorkflowFailed` and other exceptions fail this episode only. Cancelled when the episode's time is
        over: end then what the episode has started."""


@dataclass(frozen=True, slots=True)
class LoadedWorkflow:
    """A loaded workflow. `fresh` returns the callable for one episode: a new instance if it is a class."""

    spec: str
    target: Callable[..., Any] | WorkflowPlugin
    is_async: bool
    arguments: int | Binding
    """How many of (task, tuner) it takes, or which by which name."""
    withheld: Collection[str] = ()
    """Fields of the tasks' metadata that it does not get."""

    @property
    def is_plugin(self) -> bool:
        """Whether it is a `WorkflowPlugin`."""
        return isinstance(self.target, WorkflowPlugin)

    @property
    def calls_model(self) -> bool:
        """See `WorkflowPlugin.calls_model`."""
        return not isinstance(self.target, WorkflowPlugin) or self.target.calls_model

    @asynccontextmanager
    async def open(self) -> AsyncIterator[LoadedWorkflow]:
        """The workflow while a job runs: that of a plugin with its resources."""
        if not isinstance(self.target, WorkflowPlugin):
            yield self
            return
        async with self.target.open() as live:
            yield replace(self, target=live)

    def fresh(self) -> Callable[[Task, Tuner], Any]:
        """The callable for one episode."""
        call: Any = self.target
        if inspect.isclass(self.target):
            call = getattr(self.target(), "execute")  # noqa: B009 - `load_workflow` has seen it
        elif isinstance(self.target, WorkflowPlugin):
            call = self.target.execute
        given = self.arguments
        binding = Binding(_OFFERED[:given]) if isinstance(given, int) else given

        def run(task: Task, tuner: Tuner) -> Any:
            if self.withheld:
                kept = {name: value for name, value in task.metadata.items() if name not in self.withheld}
                task = replace(task, metadata=kept)
            return binding.partial(call, {"task": task, "tuner": tuner})()

        return run


def load_workflow(spec: str, hook: Any = None) -> LoadedWorkflow:
    """Load ``pkg.module:Name`` or ``path/to/file.py:Name``. See `make_workflow`."""
    return make_workflow(load_object(spec, "workflow"), spec, hook)


def make_workflow(target: Any, spec: str, hook: Any = None) -> LoadedWorkflow:
    """A workflow of an object: a class with `execute`, an instance of one, a function, a `WorkflowPlugin`, or what a plugin
    knows to run. ``spec`` names it. ``hook`` is the plugin manager's hook caller, whose `ajet_workflows` is asked first. Raises
    ConfigError naming what is wrong."""
    workflow: LoadedWorkflow | None = hook.ajet_workflows(workflow=target) if hook is not None else None
    if workflow is not None:
        return replace(workflow, spec=spec)
    if inspect.isclass(target) and issubclass(target, WorkflowPlugin):
        _check_constructor(target, spec)
        target = target()
    if isinstance(target, WorkflowPlugin):
        return LoadedWorkflow(spec, target, True, 2)
    if not callable(target) and callable(getattr(target, "execute", None)):
        target = target.execute
    if not callable(target):
        raise ConfigError(
            f"workflow {spec}",
            f"{type(target).__name__} is not callable; name a class with `execute` or a function.",
        )
    call = target
    bound = 0
    if inspect.isclass(target):
        call = getattr(target, "execute", None)
        if not callable(call):
            raise ConfigError(f"workflow {spec}", "the class has no method `execute(self, task, tuner)`.")
        bound = int(not isinstance(inspect.getattr_static(target, "execute"), staticmethod | classmethod))
        _check_constructor(target, spec)
    try:
        binding = bind(call, _OFFERED, 1, skip=bound)
    except TypeError as error:
        raise ConfigError(f"workflow {spec}", f"{error}.") from None
    return LoadedWorkflow(spec, target, inspect.iscoroutinefunction(call), binding)


def coerce_output(returned: Any) -> WorkflowOutput:
    """What a workflow returned, as a WorkflowOutput: any other value becomes its response."""
    return returned if isinstance(returned, WorkflowOutput) else WorkflowOutput(response=returned)


def todays_name(name: str) -> str:
    """``module:Name`` also for ``module->Name``; any other text as it is."""
    return name if ":" in name else name.replace("->", ":")


def load_object(spec: str, what: str) -> Any:
    """The object that ``module:Name`` or ``file.py:Name`` names. Raises ConfigError."""
    module_name, _, attribute = todays_name(spec).rpartition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{what} {spec!r}", "write `pkg.module:Name` or `path/to/file.py:Name`.")
    try:
        module = (
            _load_file(Path(module_name), what)
            if module_name.endswith(".py")
            else importlib.import_module(module_name)
        )
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # a script without a main guard may well exit
        line = location_of(error)
        at = f" (at {line})" if line else ""
        key = missing_key(error)
        hint = f". {key}" if key else ""
        raise ConfigError(
            f"{what} {spec}", f"does not import: {type(error).__name__}: {error}{at}{hint}"
        ) from error
    value = module
    for name in attribute.split("."):
        if not hasattr(value, name):
            public = [n for n in vars(value) if not n.startswith("_")]
            raise ConfigError(f"{what} {spec}", f"{module_name} has no {name!r}{nearest(name, public)}.")
        value = getattr(value, name)
    return value


def missing_key(error: BaseException) -> str:
    """What helps against the exception of an SDK that has no key for its API; empty for any other one."""
    variable = (
        _KEY_VARIABLE.search(str(error)) if type(error).__module__ not in ("builtins", __name__) else None
    )
    return (
        f"AgentJet answers the calls of agents, so any key will do: {variable[0]}=unset" if variable else ""
    )


def location_of(error: BaseException) -> str:
    """``agent.py:17``: the innermost line of the user's code, else of an installed package; empty if neither was
    running."""
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith("<"):
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_users(frame.filename)]
    installed = [frame for frame in frames if is_installed(frame.filename)]
    return next((f"{frame.filename}:{frame.lineno}" for frame in reversed(own or installed)), "")


def _load_file(path: Path, what: str) -> Any:
    path = path.resolve()
    if not path.is_file():
        raise ConfigError(f"{what} {path}", "no such file.")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # as `python file.py` would, but after everything else
    name = _module_name(path)
    if name in sys.modules:  # a file loads once per process
        return sys.modules[name]
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


def _module_name(path: Path) -> str:
    """The name by which `import` finds the file, so that child processes can import what they are sent of it;
    a name of its own where that is another module's."""
    module = sys.modules.get(path.stem)
    importlib.invalidate_caches()
    try:
        source = getattr(module, "__file__", None) if module else importlib.util.find_spec(path.stem)
    except (ImportError, ValueError):
        source = None
    origin = getattr(source, "origin", source)
    if isinstance(origin, str) and Path(origin).resolve() == path:
        return path.stem
    return f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def _check_constructor(cls: type, spec: str) -> None:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(cls).parameters.values()
    if any(p.default is p.empty and p.kind not in kinds for p in parameters):
        raise ConfigError(
            f"workflow {spec}", "the class must be constructible without arguments, one instance an episode."
        )


def _ascii(kind: str, name: str) -> str:
    if not (name.isascii() and name.isprintable()):
        raise ValueError(f"{kind} {name!r}: use printable ASCII, as it travels as an HTTP header")
    return name
