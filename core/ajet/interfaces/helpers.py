"""Helpers that plugins may use: what AgentJet itself uses for the same jobs.

Changing a package: `when_imported`, `replaced`, `replaced_in_all`, `steps_with`. Sending in the background: `Outbox`. Calling a
function, or awaiting it: `called`. Errors that name what is near: `nearest`. Files: `read_yaml`, `parse_yaml`, `write_whole`,
`check_output`. Messages of an episode: `text_of`, `open_image`.
"""

from ajet.chat.images import open_image
from ajet.chat.messages import text_of
from ajet.utils.files import check_output, write_whole
from ajet.utils.outbox import Outbox
from ajet.utils.patching import replaced, replaced_in_all, steps_with, when_imported
from ajet.utils.suggest import nearest
from ajet.utils.threads import called
from ajet.utils.yaml_file import parse_yaml, read_yaml

__all__ = [
    "Outbox",
    "called",
    "check_output",
    "nearest",
    "open_image",
    "parse_yaml",
    "read_yaml",
    "replaced",
    "replaced_in_all",
    "steps_with",
    "text_of",
    "when_imported",
    "write_whole",
]
