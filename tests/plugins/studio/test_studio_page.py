"""docs/studio.md says what there is."""

from __future__ import annotations

import inspect
import re
import struct
from pathlib import Path

import ajet_studio
from ajet_studio.commands import studio
from tests.pages import ROOT, page

PAGE = page("docs/studio.md")
KEYS = (Path(ajet_studio.__file__).parent / "page" / "keys.js").read_text()
ARROWS = {"ArrowDown": "↓", "ArrowUp": "↑"}


def test_the_keys_are_those_of_the_page() -> None:
    common = re.findall(r'^\t\[\[(.+?)\], "(.+?)", ', KEYS, re.MULTILINE)
    of_views = re.findall(r'^\t\["(.+?)", "(.+?)"\],$', KEYS, re.MULTILINE)
    names = [([ARROWS.get(key, key) for key in re.findall(r'"(.+?)"', keys)], told) for keys, told in common]
    wanted = [(" ".join(f"`{key}`" for key in keys), told) for keys, told in names]
    wanted += [(f"`{key}`", told) for key, told in of_views]
    section = PAGE.partition("## Keys")[2].partition("\n## ")[0]
    assert re.findall(r"^\| (`.+`) \| (.+) \|$", section, re.MULTILINE) == wanted
    assert len(wanted) == 20


def test_the_options_are_those_of_the_command() -> None:
    parameters = inspect.signature(studio).parameters
    named = {name.removeprefix("no-") for name in re.findall(r"^\| `--([\w-]+)`", PAGE, re.MULTILINE)}
    assert named == parameters.keys() - {"what"}
    for name in ("port", "host"):
        assert f"| `--{name}` ({parameters[name].default}) |" in PAGE


def test_every_picture_is_there_and_none_is_left_over() -> None:
    shown = re.findall(r"!\[.+?\]\((studio/\w+\.png)\)", PAGE)
    assert sorted(shown) == sorted(f"studio/{path.name}" for path in (ROOT / "docs" / "studio").iterdir())
    for name in shown:
        data = (ROOT / "docs" / name).read_bytes()
        width, _ = struct.unpack(">II", data[16:24])
        assert width == 1100 and len(data) < 100_000
