"""Which tests `make test-changed` runs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests import pages

changed_tests = pages.tool("changed_tests")


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (["plugins/studio/ajet_studio/app.py"], ["tests/plugins/studio"]),
        (
            ["plugins/studio/ajet_studio/app.py", "plugins/judges/README.md"],
            ["tests/plugins/judges", "tests/plugins/studio"],
        ),
        (["tests/plugins/local/test_engine.py"], ["tests/plugins/local"]),
        (["examples/werewolves/game.py"], ["tests/examples/test_werewolves.py"]),
        (["examples/countdown/agent.py"], ["tests/examples"]),
        (["tests/tracker/test_cases.py"], ["tests/tracker"]),
        (["docs/start.md"], ["tests/tools"]),
        (["tests/conftest.py", "plugins/studio/x.py"], ["tests"]),
        (["pyproject.toml"], ["tests"]),
        (["README.md"], []),
    ],
)
def test_a_change_names_its_tests(changed: Sequence[str], tests: Sequence[str]) -> None:
    assert changed_tests.tests_of(changed) == tests


def test_a_change_of_the_core_names_the_tests_of_the_core_and_of_no_plugin() -> None:
    tests = changed_tests.tests_of(["core/ajet/types.py"])
    assert {"tests/core", "tests/tracker", "tests/capture"} <= set(tests)
    assert not any("plugins" in name for name in tests)
