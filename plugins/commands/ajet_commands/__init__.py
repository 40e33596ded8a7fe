"""Commands as workflows: a program of its own for each episode.

`workflow` is the plugin, `placeholders` fills values into its command and environment, `folders` gives each episode a folder
and collects files for the judge, `process` runs the program and ends it within its `bounds`, `sandbox` surrounds it with bubblewrap,
`privileges` takes from it what it could do to the machine.
"""

from __future__ import annotations

from collections.abc import Iterable

from ajet import Plugin, hookimpl


@hookimpl
def ajet_plugins() -> Iterable[type[Plugin]]:
    from ajet_commands.workflow import CommandWorkflow

    return [CommandWorkflow]
