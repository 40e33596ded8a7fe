"""What plugins change of their frameworks while a job runs, and what becomes of one that cannot."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

import ajet
from ajet.plugins import Plugins
from ajet.runs.runtime import frameworks_prepared


def plugin(name: str, done: list[str], *, fails: bool = False) -> Any:
    """A plugin that notes when it changes its framework and when it undoes that."""

    @ajet.hookimpl
    def ajet_capture_install(capture: Any) -> Any:
        if fails:
            raise ImportError("no such framework")
        done.append(f"{name} on")
        return lambda: done.append(f"{name} off")

    return SimpleNamespace(__name__=name, ajet_capture_install=ajet_capture_install)


def test_every_change_is_undone_also_after_an_error_and_the_last_first() -> None:
    done: list[str] = []
    plugins = Plugins()
    for name in ("a", "b"):
        plugins.register(plugin(name, done), name, "0")
    with pytest.raises(ZeroDivisionError), frameworks_prepared(plugins.manager.hook, None):  # type: ignore[arg-type]
        assert sorted(done) == ["a on", "b on"]
        raise ZeroDivisionError
    first, second, third, fourth = (word.split()[0] for word in done)
    assert (third, fourth) == (second, first)


def test_a_plugin_that_cannot_is_a_warning_that_names_it(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []
    plugins = Plugins()
    plugins.register(plugin("good", done), "good", "0")
    plugins.register(plugin("bad", done, fails=True), "ajet-plugin-bad", "0")
    with (
        caplog.at_level(logging.WARNING, "ajet"),
        frameworks_prepared(plugins.manager.hook, None),  # type: ignore[arg-type]
    ):
        assert done == ["good on"]
    assert "ajet-plugin-bad" in caplog.text and "no such framework" in caplog.text
    assert done == ["good on", "good off"]
