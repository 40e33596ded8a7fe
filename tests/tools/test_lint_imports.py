"""Which modules of the core plugins may import."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests import pages

lint_imports = pages.tool("lint_imports")


def test_an_import_that_is_not_listed_is_named_with_the_remedy() -> None:
    [fault] = lint_imports.compared(
        {"ajet_local": ["chat.images", "runs.train"]}, {"ajet_local": ["runs.train"]}
    )
    assert fault.startswith(
        "ajet_local imports ajet.chat.images, which tools/core_modules.toml does not list for it."
    )
    assert "ajet.interfaces" in fault


def test_what_is_listed_and_not_imported_is_named() -> None:
    faults = list(lint_imports.compared({}, {"ajet_tinker": ["job.models"]}))
    assert faults == ["ajet_tinker does not import ajet.job.models; remove it from tools/core_modules.toml."]


@pytest.mark.parametrize(
    ("module", "public"),
    [
        ("ajet.interfaces.wire", True),
        ("ajet.testing", True),
        ("ajet.environments", True),
        ("ajet.types", False),
        ("ajet.interfaces_of_mine", False),
    ],
)
def test_some_packages_are_open_to_every_plugin(module: str, public: bool) -> None:
    assert lint_imports.is_public(module) is public


def test_the_list_is_written_below_its_own_first_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "core_modules.toml"
    file.write_text('# Why.\n\najet_old = ["types"]\n')
    monkeypatch.setattr(lint_imports, "LIST", file)
    imported = {
        "ajet_local": ["job", "job.models", "runs.train"],
        "ajet_online": [f"capture.a{n}" for n in range(20)],
    }
    lint_imports.write(imported)
    text = file.read_text()
    assert text.startswith(
        '# Why.\n\najet_local = [\n    "job", "job.models",\n    "runs.train",\n]\n\najet_online = [\n'
    )
    assert tomllib.loads(text) == imported and max(map(len, text.splitlines())) <= lint_imports.WIDTH
