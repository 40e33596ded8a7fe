"""What the argument of `ajet studio` names."""

from __future__ import annotations

from pathlib import Path

from ajet.interfaces.source import EpisodeSource
from ajet.plugins import load_plugins
from ajet.types import ConfigError
from ajet_studio.library import Library
from ajet_studio.mirror import Mirror


def open_library(what: str) -> Library:
    """The runs in a folder, or the episodes of a source that a plugin opens. Raises ConfigError if it is neither, AjetError if the
    source cannot be read."""
    folder = Path(what).expanduser()
    if not folder.is_dir():
        source: EpisodeSource | None = load_plugins().manager.hook.ajet_episode_source(where=what)
        if source is not None:
            mirror = Mirror(source)
            return Library(mirror.folder, mirror)
        if "://" in what or folder.is_file():
            raise ConfigError(
                f"{what}: is neither a folder nor a store. To look at a store of `ajet online`, install ajet-plugin-online."
            )
    return Library(folder)
