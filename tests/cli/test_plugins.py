"""`ajet plugins`."""

from __future__ import annotations

import pytest

from ajet import hookimpl
from ajet import plugins as plugin_module
from ajet.plugins import BrokenEntry, Plugins, load_plugins

from .conftest import Folder


def row(text: str, kind: str, name: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.split()[:2] == [kind, name])


def test_the_list_has_kind_name_distribution_version_and_what_it_is(folder: Folder) -> None:
    out = folder.ajet("plugins").out
    assert row(out, "reader", "jsonl")[2:7] == [
        "ajet-plugin-readers",
        load_plugins().classes[("reader", "jsonl")].version,
        "One",
        "task",
        "a",
    ]
    assert row(out, "algorithm", "grpo")[2] == "ajet"
    assert row(out, "handle", "as_openai_client")[2] == "ajet-plugin-openai-sdk"
    assert row(out, "wire", "/chat/completions")[2] == "ajet"


def test_a_wire_of_a_plugin_is_listed(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    class Echo:
        """Says what it hears."""

        path = "/echo"

    class Brings:
        @staticmethod
        @hookimpl
        def ajet_wires() -> list[Echo]:
            return [Echo()]

    plugins = Plugins()
    plugins.register(Brings, "ajet", "1")
    monkeypatch.setattr(plugin_module, "load_plugins", lambda: plugins)
    assert row(folder.ajet("plugins").out, "wire", "/echo")[4:] == ["Says", "what", "it", "hears."]


def test_a_plugin_that_did_not_load_is_listed_with_its_error(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins = Plugins()
    plugins.broken.append(BrokenEntry("bad_package", "ajet-plugin-bad", "ImportError: no module named x"))
    monkeypatch.setattr(plugin_module, "load_plugins", lambda: plugins)
    outcome = folder.ajet("plugins")
    assert outcome.code == 0
    assert "broken  bad_package  ajet-plugin-bad  ImportError: no module named x" in outcome.out


def test_show_prints_the_fields(folder: Folder) -> None:
    out = folder.ajet("plugins", "show", "jsonl").out
    assert out.startswith("reader jsonl  (ajet-plugin-readers ")
    assert "path  Path = required\n    The file; a `.gz` file is unpacked while reading." in out


def test_show_prints_every_kind_of_a_name_or_the_one_asked_for(folder: Folder) -> None:
    both = folder.ajet("plugins", "show", "local").out
    assert "engine local" in both and "backbone local" in both
    assert "engine local" not in folder.ajet("plugins", "show", "local", "--kind", "backbone").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["jsnl"], "jsnl: no such plugin; did you mean 'jsonl'"),
        (["jsonl", "--kind", "raeder"], "did you mean 'reader'"),
    ],
)
def test_a_misspelt_name_or_kind_is_an_error_with_the_nearest(
    folder: Folder, arguments: list[str], said: str
) -> None:
    outcome = folder.ajet("plugins", "show", *arguments)
    assert outcome.code == 2 and said in outcome.err
