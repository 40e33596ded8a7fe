"""``ajet docs``: the pages of the documentation, which every installation has."""

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
            metavar="TOPIC", help="A page, such as alarms, or a part of one: environments#services."
        ),
    ] = None,
    web: Annotated[bool, typer.Option("--web", help="Show it in the browser.")] = False,
) -> None:
    """Show a page of the documentation; without a topic, list them."""
    import sys

    if topic is None:
        from ajet.utils.terminal import table

        print(table([(name, _title(file)) for name, file in pages().items()]))
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
    file = Path(tempfile.mkdtemp(prefix="ajet-docs-"), f"{topic.partition('#')[0]}.html")
    console.save_html(str(file))
    print(file)
    webbrowser.open(file.as_uri())


def pages() -> dict[str, Path]:
    """The pages by topic: those of the installed package, or in a clone its folder docs."""
    package = Path(__file__).parents[1]
    folder = next(path for path in (package / "docs", package.parents[1] / "docs") if path.is_dir())
    return {file.stem: file for file in sorted(folder.glob("*.md"))}


def page(topic: str) -> str:
    """The text of a page, or with ``#section`` of that section. Raises ConfigError."""
    from ajet.types import ConfigError
    from ajet.utils.suggest import nearest

    name, _, section = topic.partition("#")
    name = name.removeprefix("docs/").removesuffix(".md")
    known = pages()
    if name not in known:
        texts = {stem: _sections(_text(file)) for stem, file in known.items()}
        parts = [f"{stem}#{part}" for stem, own in texts.items() for part in own if name in part.split("-")]
        hint = nearest(name, known) or (f"; a part is {', '.join(parts)}" if parts else "")
        raise ConfigError(f"docs {topic}", f"no such page{hint}. `ajet docs` lists all.")
    text = _text(known[name])
    if not section:
        return text
    sections = _sections(text)
    if section not in sections:
        raise ConfigError(
            f"docs {topic}",
            f"the page has no such section{nearest(section, sections)}. Its sections are {', '.join(sections)}.",
        )
    return sections[section]


def _text(file: Path) -> str:
    return _COMMENT.sub("", file.read_text(encoding="utf-8")).strip()


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


def _title(file: Path) -> str:
    return file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
