"""Hooks of the documentation site (`mkdocs.yml`): pages from outside docs/, pages that are generated, and links between them.

The pages read the same in the repository and on the site. So a link is relative to the file that contains it in the
repository, and here it becomes a link to the page on the site.
"""

from __future__ import annotations

import html
import logging
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from pymdownx.superfences import fence_code_format

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))  # MkDocs loads this file alone
import benchmarks_page  # noqa: E402
import documents_table  # noqa: E402
import errors  # noqa: E402
import run_blocks  # noqa: E402

_log = logging.getLogger("mkdocs.hooks")
HOME = "README.md"
DOCS = "docs/"
BENCHMARKS = "bench/README.md"
ADDED = (HOME, "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md", BENCHMARKS)
"""Pages from outside docs/, besides the examples' own."""
MERMAID = "11.17.2"
"""The version of the npm package that draws diagrams, of the major version that Material asks for."""
MERMAID_URI = "assets/mermaid.min.js"
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_CODE = re.compile(r"^(`{3,}).*?^\1", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> None:
    """Draw diagrams where there is their script; elsewhere they stay text, as Material would load the script from another host."""
    if mermaid():
        fence = {"name": "mermaid", "class": "mermaid", "format": fence_code_format}
        config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    else:
        _log.info("npm cannot get mermaid %s: diagrams are shown as text", MERMAID)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/, the files to which pages link, the generated pages and the script of diagrams."""
    if script := mermaid():
        files.append(File.generated(config, MERMAID_URI, abs_src_path=str(script)))
    for name in [*ADDED, *examples()]:
        files.append(_file(name, config))
    for name in sorted(linked(files)):
        files.append(_file(name, config))
    for uri, content in generated():
        files.append(File.generated(config, uri, content=content))
    return files


def examples() -> list[str]:
    """The READMEs of the examples."""
    return sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("examples/*/README.md"))


def linked(files: Files) -> set[str]:
    """The other files of the repository to which the pages link."""
    found = set()
    for file in files.documentation_pages():
        source = repository_path(file)
        for link in _LINK.findall(_CODE.sub("", file.content_string)):
            name = target(source, link.partition("#")[0])
            if name and not name.startswith(DOCS) and (ROOT / name).is_file():
                found.add(name)
    return found - {repository_path(file) for file in files}


def repository_path(file: File) -> str:
    """Where a file of the site is in the repository; a generated page is as one of docs/."""
    path = Path(file.abs_src_path or ROOT / DOCS / file.src_uri)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else file.src_uri


def target(source: str, link: str) -> str:
    """The file of the repository to which a link in the file ``source`` leads; "" for a link to another site or within the page."""
    if not link or "://" in link or link.startswith(("mailto:", "#")):
        return ""
    name = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    return posixpath.join(name, "README.md") if (ROOT / name / "README.md").is_file() else name


def site_path(name: str) -> str:
    """Where a file of the repository is on the site."""
    return "index.md" if name == HOME else name.removeprefix(DOCS)


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """The page with its tables of benchmarks, what its commands print (with ``DOCS_RUN=no``: what it shows), and links of the site."""
    source = repository_path(page.file)
    if source == BENCHMARKS:
        markdown = benchmarks_page.with_tables(markdown)
    try:
        markdown = markdown if os.environ.get("DOCS_RUN") == "no" else run_blocks.run_page(markdown, source)
    except run_blocks.BlockFailed as failure:
        raise PluginError(str(failure)) from failure
    folder = posixpath.dirname(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        link, hash_, anchor = match[0].partition("#")
        name = target(source, link)
        return posixpath.relpath(site_path(name), folder) + hash_ + anchor if name else match[0]

    parts = []
    end = 0
    for code in _CODE.finditer(markdown):
        parts += [_LINK.sub(moved, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _LINK.sub(moved, markdown[end:])])


def on_page_content(html_: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """The button of a console block copies its commands, without prompts and what they print."""

    def with_commands(found: re.Match[str]) -> str:
        lines = html.unescape(re.sub(r"<[^>]+>", "", found[0])).splitlines()
        taken = [line for line, before in zip(lines, ["", *lines], strict=False) if _is_command(line, before)]
        commands = "\n".join(line.removeprefix("$ ") for line in taken)
        return f'<div data-copy="{html.escape(commands)}" {found[1]}' if commands else found[0]

    return re.sub(
        r'<div (class="language-console highlight">.*?</div>)', with_commands, html_, flags=re.DOTALL
    )


def _is_command(line: str, before: str) -> bool:
    return line.startswith("$ ") or before.endswith("\\")


def on_post_page(output: str, page: Any, config: MkDocsConfig) -> str:
    """A page with diagrams loads their script before Material's, which else loads it from another host."""
    if 'class="mermaid"' not in output:
        return output
    script = posixpath.relpath(MERMAID_URI, posixpath.dirname(page.file.dest_uri))
    return output.replace("</head>", f'<script src="{script}"></script></head>', 1)


@cache
def mermaid() -> Path | None:
    """The script that draws diagrams, from npm; None without npm, or if npm cannot get it."""
    folder = ROOT / "build" / "mermaid"
    script = folder / "package" / "dist" / "mermaid.min.js"
    archive = folder / f"mermaid-{MERMAID}.tgz"
    if not archive.is_file() or not script.is_file():
        npm = shutil.which("npm")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        command = [npm or "npm", "pack", "--silent", "--fetch-retries=1", f"mermaid@{MERMAID}"]
        if not npm or subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode:
            return None
        with tarfile.open(archive) as packed:
            packed.extract("package/dist/mermaid.min.js", folder, filter="data")
    return script


def _file(name: str, config: MkDocsConfig) -> File:
    return File.generated(config, site_path(name), abs_src_path=str(ROOT / name))


# --------------------------------------------------------------------------- generated pages


def generated() -> Iterator[tuple[str, str]]:
    """Path and text of each generated page."""
    yield "reference/job.md", "\n".join(job_page())
    yield "reference/commands.md", "\n".join(commands_page())
    yield "reference/metrics.md", "\n".join(metrics_page())
    yield "reference/api.md", "\n".join(api_page())
    yield "reference/errors.md", "\n".join(errors_page())
    yield "documents.md", documents_table.page()


def job_page() -> Iterator[str]:
    """Every key of a job, by section."""
    from ajet.cli.config import plugin_keys
    from ajet.job.config import KeyHelp, all_keys

    yield "# Keys of a job\n"
    yield "A job file, `--set KEY=VALUE` and the argument `set=` of the Python API take these keys. `ajet config explain KEY` shows"
    yield "the same in a terminal, and `ajet config explain KEY job.yaml` shows where a job's value comes from.\n"
    sections: dict[str, list[KeyHelp]] = {}
    for key in [*all_keys(), *plugin_keys(None)]:
        sections.setdefault(_section(key.key), []).append(key)
    for name, keys in sections.items():
        yield f"\n## {name}\n\n| key | type | default | |\n|---|---|---|---|"
        for key in keys:
            yield f"| {_code(key.key)} | {_code(key.type)} | {_code(str(key.default))} | {_cell(key.help)} |"


def _section(key: str) -> str:
    """The heading of a key: its first part, for backbones also the second."""
    first, _, rest = key.partition(".")
    if first == "backbone" and "." in rest:
        return f"backbone.{rest.partition('.')[0]}"
    return first if rest else "Top level"


def commands_page() -> Iterator[str]:
    """The help of every command."""
    from ajet.cli import _commands

    yield "# Commands\n"
    yield "What `ajet COMMAND --help` prints.\n"
    for name, text in helps(_commands(), "ajet"):
        yield f"\n## {name}\n\n```text\n{text}\n```"


def helps(command: Any, name: str, parent: Any = None) -> Iterator[tuple[str, str]]:
    """Name and help of a command and of all below it."""
    sizes = {"terminal_width": run_blocks.COLUMNS, "max_content_width": run_blocks.COLUMNS}
    context = command.context_class(command, info_name=name.rpartition(" ")[2], parent=parent, **sizes)
    yield name, command.get_help(context)
    if hasattr(command, "list_commands"):
        for below in command.list_commands(context):
            yield from helps(command.get_command(context, below), f"{name} {below}", context)


def metrics_page() -> Iterator[str]:
    """Every metric of a run."""
    from ajet.reports.run_summary import MEANINGS
    from ajet.tracker.breaks import CAUSES
    from ajet_studio.explanations import METRICS

    yield "# Metrics\n"
    yield "`metrics.jsonl`, loggers and the studio have these names.\n"
    yield "| metric | meaning |\n|---|---|"
    for name, meaning in METRICS.items():
        yield f"| `{name}` | {_cell(meaning)} |"
    for title, prefix, meanings in (
        ("Counters of calls", "calls/", MEANINGS),
        ("Causes of breaks", "breaks/", CAUSES),
    ):
        yield f"\n## {title}\n\n| metric | meaning |\n|---|---|"
        for name, meaning in meanings.items():
            yield f"| `{prefix}{name}` | {_cell(meaning)} |"


def errors_page() -> Iterator[str]:
    """Every error message, with an anchor."""
    yield "# Error messages\n"
    yield "Each message names the thing, the place and the remedy. `…` stands for what is only known when it is raised."
    yield "[Troubleshooting](../troubleshooting.md) goes from symptoms to causes.\n"
    folder = ""
    used: Counter[str] = Counter()
    for message in errors.messages(ROOT):
        if message.folder != folder:
            folder = message.folder
            yield f"\n## {folder}\n"
        used[message.anchor] += 1
        number = used[message.anchor]
        anchor = f"{message.anchor}-{number}" if number > 1 else message.anchor
        yield f'<p id="{anchor}"><a href="#{anchor}">#</a> {html.escape(message.text)}</p>\n'


PARTS = {
    "Running jobs": (
        "api.jobs",
        "api.learner",
        "api.serving",
        "ajet_selection.api",
        "ajet_advice.api",
        "ajet_prompts.api",
        "ajet_rejudge.api",
    ),
    "Results": ("api.results",),
    "Inside a workflow": (
        "capture.context",
        "earlier.programs",
        "interfaces.prompts",
        "interfaces.workflow",
        "utils.breakpoints",
    ),
    "Data": ("types",),
    "Plugins": ("interfaces", "job.job", "job.models", "runs.train", "services", "hookspecs"),
}
"""Headings of the API's page, with the modules whose public names they contain."""


def api_page() -> Iterator[str]:
    """Every public name of `ajet`."""
    import ajet

    yield "# The API\n"
    yield "What `import ajet` gives; [the Python API](../python.md) is the guide. `arun`, `acheck`, `aforecast`, `aevaluate`,"
    yield "`abisect`, `arejudge`, `aselect_model` and `atune_prompt` are the awaitable versions of those without the `a`.\n"
    found = {name: f"ajet.{ajet._WHERE[name]}" for name in dir(ajet)}
    # The others are modules, or for programs of the earlier AgentJet.
    found |= {e.name: e.module for e in entry_points(group="ajet.names") if e.name in found}
    left = {name: module for name, module in found.items() if not (name[0] == "a" and name[1:] in found)}
    for title, modules in PARTS.items():
        yield f"\n## {title}\n"
        for name in sorted(
            (n for n, m in left.items() if m.removeprefix("ajet.").startswith(modules)), key=str.lower
        ):
            yield f"::: {left.pop(name)}.{name}"
    assert not left, f"tools/docs_site.py: PARTS does not contain {left}"


def _code(text: str) -> str:
    return f"<code>{html.escape(text).replace('|', '&#124;')}</code>"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
