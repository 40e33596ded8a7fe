"""``ajet doctor``: what is installed, and the fix for each problem; or how a model's chats are read. It imports none of the
packages that it reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ajet.runs.chat_format import ChatFormatReport
    from ajet.types import Finding

    Line = tuple[str, str, str] | Finding

LIBRARIES = ("renderers", "openai", "httpx", "httpx2", "torch", "transformers", "ray", "vllm", "verl")
OLDEST = {"transformers": (5, 9)}
"""Versions below which something is known to break."""
SHARED_MEMORY, LEAST_SHARED = "/dev/shm", 8
"""Where processes of a machine share memory, and the GiB of it that a model of billions of weights needs."""
PLUGIN_PREFIX = "ajet-plugin-"


def doctor(
    model: Annotated[
        str | None,
        typer.Option(
            help="Instead, report how chats with this model are read, and what the local backbone does with it: folder, Hugging Face "
            "id, or a recipe such as `starter`."
        ),
    ] = None,
) -> None:
    """Report the environment. Exit code 1 if installed packages do not work together; optional packages that are
    not installed are listed with the command that installs them. With --model: exit code 1 if its tool calls cannot be read."""
    from ajet.types import Finding
    from ajet.utils.terminal import table

    if model is not None:
        report, parts = about(model)
        print(table([*report.rows(), *parts.items()]))
        raise typer.Exit(1 if report.fault else 0)
    findings = [Finding(*line) for line in (*python(), *plugins())]
    told = {finding.what for finding in findings}
    findings += [Finding(*line) for line in libraries() if line[0] not in told]
    findings += [Finding(*line) for line in machine()]
    print(table((_mark(finding), finding.what, finding.found) for finding in findings))
    optional = [finding for finding in findings if finding.remedy and finding.optional]
    if optional:
        print("\nOptional:")
        print(table(((finding.what, finding.remedy) for finding in optional), indent="  "))
    problems = [finding for finding in findings if finding.remedy and not finding.optional]
    for problem in problems:
        print(f"\n{problem.what}: {problem.remedy}")
    if problems:
        raise typer.Exit(1)


def about(model: str) -> tuple[ChatFormatReport, Mapping[str, str]]:
    """How a model's chats are read, and what engines and their backbones do with it, without its weights. Raises AjetError if its
    tokenizer cannot be loaded."""
    from ajet.interfaces.engine import EnginePlugin
    from ajet.job.models import check_model
    from ajet.plugins import load_plugins, validated
    from ajet.runs.chat_format import describe
    from ajet.runs.runtime import make_chat, own_engine

    check_model(model, "--model")
    plugins = load_plugins()
    engine = validated(own_engine(plugins, ""), {}, "--model")
    parts = {
        f"{name}: {part}": support
        for name, cls in plugins.of(EnginePlugin).items()
        for part, support in cls.support(model).items()
    }
    return describe(make_chat(*engine.tokenizer(model, 0))), parts


def _mark(finding: Finding) -> str:
    if not finding.remedy:
        return "ok"
    return "info" if finding.optional else "FIX"


def python() -> Iterator[Line]:
    """The interpreter."""
    import platform
    import sys

    remedy = "" if sys.version_info >= (3, 11) else "AgentJet needs Python 3.11 or newer"
    yield "python", f"{platform.python_version()} ({sys.executable})", remedy


def plugins() -> Iterator[Line]:
    """AgentJet, its plugins' versions, and what the plugins report themselves."""
    from ajet.plugins import load_plugins
    from ajet.types import ConfigError

    version = installed_version("ajet") or "unknown"
    yield "ajet", version, ""
    yield from plugin_versions(version, installed_plugins())
    try:
        loaded = load_plugins()
    except ConfigError as error:
        yield "plugins", "clash", str(error)
        return
    for broken in loaded.broken:
        remedy = f"pip install --force-reinstall {broken.distribution}, or uninstall it"
        yield broken.distribution, f"did not load: {broken.error}", remedy
    for implementation in loaded.manager.hook.ajet_doctor.get_hookimpls():
        try:
            report: Any = implementation.function
            yield from report()
        except Exception as error:
            what = f"its ajet_doctor failed: {type(error).__name__}: {error}"
            yield implementation.plugin_name, what, "report it to its author"


def plugin_versions(version: str, plugins: Iterable[tuple[str, str]]) -> Iterator[Line]:
    """Our own plugins and the core are released together."""
    for name, installed in plugins:
        yield (
            name,
            installed,
            "" if installed == version else f"made for ajet {installed}: pip install {name}=={version}",
        )


def installed_plugins() -> list[tuple[str, str]]:
    """(distribution, version) of our own plugins."""
    import importlib.metadata

    distributions = {
        (d.name.lower().replace("_", "-"), d.version) for d in importlib.metadata.distributions()
    }
    return sorted((name, version) for name, version in distributions if name.startswith(PLUGIN_PREFIX))


def libraries() -> Iterator[Line]:
    """The libraries that matter and are installed, by their metadata. Plugins say which parts are optional."""
    for name in LIBRARIES:
        version = installed_version(name)
        if version:
            yield name, version, too_old(name, version)


def too_old(name: str, version: str) -> str:
    """The fix for a version known to break something, else nothing."""
    import re

    oldest = OLDEST.get(name)
    release = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if oldest is None or release >= oldest:
        return ""
    wanted = ".".join(map(str, oldest))
    return f"{name} {version} is too old: pip install '{name}>={wanted}'"


def machine() -> Iterator[Line]:
    """Cores, memory and GPUs."""
    import os
    import shutil
    from collections import Counter

    from ajet.estimate.devices import reported_gpus
    from ajet.types import Finding

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield "CPU cores", str(usable), ""
    if hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        yield "memory", f"{memory / 2**30:.1f} GiB", ""
    gpus = Counter(reported_gpus("name,driver_version"))
    for line, count in gpus.items():
        name, _, driver = line.rpartition(", ")
        yield "GPU", f"{count} × {name}, driver {driver}", ""
    if gpus and os.path.isdir(SHARED_MEMORY):
        size = shutil.disk_usage(SHARED_MEMORY).total / 2**30
        remedy = "new weights go to vLLM through it, else through the disk: docker run --shm-size=16g"
        yield Finding(SHARED_MEMORY, f"{size:.1f} GiB", remedy if size < LEAST_SHARED else "", optional=True)


def installed_version(name: str) -> str | None:
    """A distribution's version, None if it is not installed."""
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
