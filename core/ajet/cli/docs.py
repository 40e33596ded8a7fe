"""``ajet docs``: the pages of the documentation, of examples and of installed plugins."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_HEADING = re.compile(r"^(#+) (.+)$")


def docs(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC",
            help="A page, such as alarms, or a part of one: environments#services; also a link of a page.",
        ),
    ] = None,
    web: Annotated[bool, typer.Option("--web", help="Show it in the browser.")] = False,
) -> None:
    """Show a page of the documentation; without a topic, list them."""
    import sys

    if topic is None:
        from ajet.utils.terminal import table

        print(table([(name, text.partition("\n")[0].lstrip("# ")) for name, text in pages().items()]))
        return
    text = page(topic)
    if not (web or sys.stdout.isatty()):
        print(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    if not web:
        Console().print(Markdown(text))
        return
    import io
    import tempfile
    import webbrowser

    console = Console(record=True, file=io.StringIO(), width=120)
    console.print(Markdown(text))
    file = Path(tempfile.mkdtemp(prefix="ajet-docs-"), "page.html")
    console.save_html(str(file))
    print(file)
    webbrowser.open(file.as_uri())


def pages() -> dict[str, str]:
    """The text of each page by its topic: a guide (``alarms``), an example (``examples/math``) or an installed plugin
    (``plugins/local``)."""
    from ajet.plugins import entry_points

    package = Path(__file__).parents[1]
    root = next(path for path in (package, package.parents[1]) if (path / "docs").is_dir())
    files = {file.stem: file for file in sorted(root.glob("docs/*.md"))}
    readmes = sorted(root.glob("examples/**/README.md"))
    files |= {file.parent.relative_to(root).as_posix(): file for file in readmes}
    texts = {topic: file.read_text(encoding="utf-8") for topic, file in files.items()}
    for entry, distribution, _ in entry_points():
        if entry.dist and (text := entry.dist.metadata.json.get("description")):
            texts[f"plugins/{distribution.removeprefix('ajet-plugin-')}"] = str(text)
    texts.pop("plugins/ajet", None)  # the README of the repository
    return {topic: _COMMENT.sub("", text).strip() for topic, text in texts.items()}


def page(topic: str) -> str:
    """The text of a page, or with ``#section`` of that section; ``topic`` may also be a link of another page. Raises ConfigError."""
    from ajet.types import ConfigError
    from ajet.utils.suggest import nearest

    path, _, section = topic.partition("#")
    name = re.sub(r"^(\.\.?/)*(docs/)?|(/README)?\.md$|/$", "", path)
    known = pages()
    found = next((each for each in (name, f"plugins/{name}", f"examples/{name}") if each in known), None)
    if found is None:
        texts = {each: _sections(text) for each, text in known.items()}
        parts = [f"{each}#{part}" for each, own in texts.items() for part in own if name in part.split("-")]
        hint = nearest(name, known) or (f"; a part is {', '.join(parts)}" if parts else "")
        raise ConfigError(f"docs {topic}", f"no such page{hint}. `ajet docs` lists all.")
    text = known[found]
    if not section:
        return text
    sections = _sections(text)
    if section not in sections:
        raise ConfigError(
            f"docs {topic}",
            f"the page has no such section{nearest(section, sections)}. Its sections are {', '.join(sections)}.",
        )
    return sections[section]


def _sections(text: str) -> dict[str, str]:
    """The sections of a page with those below them, by the name that links to them have."""
    lines, headings, fenced = text.split("\n"), list[tuple[int, int, str]](), False
    for number, line in enumerate(lines):
        fenced ^= line.startswith("```")
        if not fenced and (heading := _HEADING.match(line)):
            name = re.sub(r"[^\w\- ]", "", heading[2].lower()).replace(" ", "-")
            headings.append((number, len(heading[1]), name))
    return {
        name: "\n".join(lines[start : next((n for n, d, _ in headings[i + 1 :] if d <= depth), None)]).strip()
        for i, (start, depth, name) in enumerate(headings)
    }
