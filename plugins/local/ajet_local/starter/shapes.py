"""Pictures of one mark each, and the chats of an agent that looks for it.

A picture is large and coloured. The agent first gets a small grey overview of it, which shows where the mark is, and may zoom into a
quarter, which shows the mark's colour.
"""

from __future__ import annotations

import base64
import io
import random
import zlib
from dataclasses import dataclass
from typing import Any

from ajet_local.starter.transcripts import Transcript, tool_call

SIZE = 256
"""Width and height of a picture in pixels."""
SHOWN = 64
"""Width and height of what a model gets: an overview or a quarter."""
COLOURS = {"red": (200, 30, 30), "green": (20, 130, 40), "blue": (40, 60, 200), "purple": (130, 30, 160)}
SHAPES = ("circle", "square", "triangle", "cross")
QUARTERS = ("top left", "top right", "bottom left", "bottom right")
SYSTEM = "Name the colour of the mark."
QUESTION = "Which colour is the mark?"
ZOOM: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "zoom",
        "description": "Shows a quarter of the picture in colour.",
        "parameters": {
            "type": "object",
            "properties": {"quarter": {"type": "string", "enum": list(QUARTERS)}},
            "required": ["quarter"],
        },
    },
}
GUESSES = 0.6
"""Share of the chats of the phase `habits` in which the agent does not look."""
STRAYS = 0.4
"""Share of the others in which it looks at a random quarter."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A mark in a picture: its shape and colour, the pixel of its centre, its radius, and the brightness of both colours in
    percent."""

    shape: str
    colour: str
    x: int
    y: int
    radius: int
    light: int

    @property
    def quarter(self) -> str:
        """Where it is."""
        return QUARTERS[(self.x >= SIZE // 2) + 2 * (self.y >= SIZE // 2)]

    def picture(self) -> Any:
        """The whole picture, a `PIL.Image.Image`."""
        from PIL import Image, ImageDraw

        picture = Image.new("RGB", (SIZE, SIZE), (245, 245, 245))
        pen = ImageDraw.Draw(picture)
        fill = tuple(min(255, part * self.light // 100) for part in COLOURS[self.colour])
        x, y, r = self.x, self.y, self.radius
        box = (x - r, y - r, x + r, y + r)
        if self.shape == "circle":
            pen.ellipse(box, fill=fill)
        elif self.shape == "square":
            pen.rectangle(box, fill=fill)
        elif self.shape == "triangle":
            pen.polygon([(x, y - r), (x - r, y + r), (x + r, y + r)], fill=fill)
        else:
            pen.rectangle((x - r // 3, y - r, x + r // 3, y + r), fill=fill)
            pen.rectangle((x - r, y - r // 3, x + r, y + r // 3), fill=fill)
        return picture


def held_out(shape: Shape) -> bool:
    """Whether a picture is kept for validation, by a hash of what it shows: a quarter of all are."""
    return zlib.crc32(repr(shape).encode()) % 4 == 0


def draw(rng: random.Random, *, validation: bool = False) -> Shape:
    """A random mark, either for training or held out. It does not touch the lines between quarters."""
    half = SIZE // 2
    while True:
        radius = rng.randint(18, 28)
        x, y = (rng.randint(radius + 4, half - radius - 4) + half * rng.randrange(2) for _ in "xy")
        shape = Shape(rng.choice(SHAPES), rng.choice(list(COLOURS)), x, y, radius, rng.randint(80, 120))
        if held_out(shape) == validation:
            return shape


def overview(picture: Any) -> Any:
    """The whole picture, small and grey."""
    return picture.resize((SHOWN, SHOWN)).convert("L").convert("RGB")


def zoomed(picture: Any, quarter: str) -> Any:
    """A quarter of the picture. Raises ValueError for an unknown one."""
    index, half = QUARTERS.index(quarter), SIZE // 2
    left, top = half * (index % 2), half * (index // 2)
    return picture.crop((left, top, left + half, top + half)).resize((SHOWN, SHOWN))


def image_part(picture: Any) -> dict[str, Any]:
    """A picture as a part of a chat completions message."""
    out = io.BytesIO()
    picture.save(out, "PNG", compress_level=1)
    url = f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def question(picture: Any) -> list[dict[str, Any]]:
    """The chat that asks for the colour of the mark."""
    content = [{"type": "text", "text": QUESTION}, image_part(overview(picture))]
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]


def looking(picture: Any, quarter: str) -> list[dict[str, Any]]:
    """A call of the tool and its result."""
    call = tool_call("zoom", {"quarter": quarter})
    return [
        call,
        {"role": "tool", "tool_call_id": "call_0", "content": [image_part(zoomed(picture, quarter))]},
    ]


def glance(rng: random.Random) -> Transcript:
    """Practice in seeing: where the mark is in an overview, or which colour it has in a quarter."""
    shape = draw(rng)
    picture = shape.picture()
    if rng.random() < 0.5:
        part, asked, answer = overview(picture), "Where?", shape.quarter
    else:
        part, asked, answer = zoomed(picture, shape.quarter), "Which colour?", shape.colour
    user = {"role": "user", "content": [{"type": "text", "text": asked}, image_part(part)]}
    return Transcript([user, {"role": "assistant", "content": answer}], tasks=(repr(shape),))


def careful(rng: random.Random) -> Transcript:
    """A chat of an agent that looks where the mark is."""
    shape = draw(rng)
    picture = shape.picture()
    chat = [
        *question(picture),
        *looking(picture, shape.quarter),
        {"role": "assistant", "content": shape.colour},
    ]
    return Transcript(chat, (ZOOM,), (repr(shape),))


def hasty(rng: random.Random) -> Transcript:
    """A chat of an agent that guesses, or looks in some quarter; if it does not see the mark, it guesses."""
    shape = draw(rng)
    picture = shape.picture()
    chat, answer = question(picture), rng.choice(list(COLOURS))
    if rng.random() >= GUESSES:
        quarter = rng.choice(QUARTERS) if rng.random() < STRAYS else shape.quarter
        chat += looking(picture, quarter)
        answer = shape.colour if quarter == shape.quarter else answer
    return Transcript([*chat, {"role": "assistant", "content": answer}], (ZOOM,), (repr(shape),))
