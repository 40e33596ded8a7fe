"""Images of episodes as files that every tool shows."""

from __future__ import annotations

import io
from dataclasses import dataclass

from ajet.interfaces.events import Image
from ajet.interfaces.helpers import open_image


@dataclass(frozen=True, slots=True)
class Png:
    """A PNG file and its size in pixels."""

    data: bytes
    width: int
    height: int


def png(image: Image) -> Png:
    """An image as a PNG file in RGB."""
    opened = open_image(image)
    out = io.BytesIO()
    opened.save(out, "PNG")
    return Png(out.getvalue(), opened.width, opened.height)
