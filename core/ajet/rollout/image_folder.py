"""The images of a run: one file each, named by its hash, whichever episodes have it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from ajet.chat.images import TYPES
from ajet.tracker.record import EpisodeRecord
from ajet.types import Image
from ajet.utils.files import writing

IMAGES = "images"
"""The folder in a run folder."""


class ImageFolder:
    """Stores images, each once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stored: set[str] = set()

    def add(self, images: Iterable[Image]) -> None:
        """Store the images that are not here yet. Raises AjetError if a file cannot be written."""
        for image in images:
            if image.ref in self._stored:
                continue
            path = self.folder / image.file_name
            with writing(path):
                self.folder.mkdir(exist_ok=True)
                if not path.exists():
                    unfinished = path.with_suffix(".part")
                    unfinished.write_bytes(image.data)
                    unfinished.rename(path)
            self._stored.add(image.ref)


def image_file(run_dir: Path, ref: str) -> Path | None:
    """The file of an image of a run; None if it is missing."""
    paths = (run_dir / IMAGES / f"{_hash(ref)}.{kind}" for kind in TYPES)
    return next((path for path in paths if path.is_file()), None)


def restore_images(record: EpisodeRecord, run_dir: Path) -> None:
    """Give a record that was read from a journal its images, as far as their files are whole."""
    for token, ref in record.image_tokens.items():
        path = image_file(run_dir, ref)
        data = path.read_bytes() if path else b""
        if path and hashlib.sha256(data).hexdigest() == _hash(ref):
            record.images[ref] = Image(ref, data, path.suffix[1:], token)


def _hash(ref: str) -> str:
    return ref.removeprefix("sha256:")
