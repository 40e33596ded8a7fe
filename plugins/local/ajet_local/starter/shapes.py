"""Pictures of one mark each, and the chats of an agent that looks for it.

A picture is large and coloured. The agent first gets a small grey overview of it, and may zoom into a quarter, which shows the
mark's colour if it is there.
"""

from __future__ import annotations

import base64
import io
import random
import zlib
from dataclasses import dataclass
from typing import Any

from ajet_local.starter.transcripts import Chat, Transcript, tool_call

SIZE = 256
"""Width and height of a picture in pixels."""
SHOWN = 64
"""Width and height of what a model gets: an overview or a quarter."""
COLOURS = {"red": (200, 30, 30), "green": (20, 130, 40), "blue": (40, 60, 200), "purple": (130, 30, 160)}
SHAPES = ("circle", "square", "triangle", "cross")
QUARTERS = ("northwest", "northeast", "southwest", "southeast")
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
NOTHING = "none"
"""What is seen in a quarter without a mark."""
GUESSES = 0.6
"""Share of the chats of the phase `habits` in which the agent does not look."""
GIVES_UP = 0.7
"""After each look at a quarter without the mark, the probability that it guesses there."""


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
    """Practice in seeing: the colour of the mark in a quarter, or that there is none."""
    shape = draw(rng)
    quarter = shape.quarter if rng.random() < 0.75 else rng.choice(QUARTERS)
    content = [{"type": "text", "text": "Which colour?"}, image_part(zoomed(shape.picture(), quarter))]
    answer = shape.colour if quarter == shape.quarter else NOTHING
    chat: Chat = [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]
    return Transcript(chat, tasks=(repr(shape),))


def careful(rng: random.Random) -> Transcript:
    """A chat of an agent that looks at one quarter after the other until it sees the mark."""
    return _search(rng, gives_up=0.0)


def hasty(rng: random.Random) -> Transcript:
    """A chat of an agent that guesses at once, or soon."""
    if rng.random() >= GUESSES:
        return _search(rng, gives_up=GIVES_UP)
    shape = draw(rng)
    chat = [*question(shape.picture()), {"role": "assistant", "content": _guess(rng)}]
    return Transcript(chat, (ZOOM,), (repr(shape),))


def _search(rng: random.Random, gives_up: float) -> Transcript:
    shape = draw(rng)
    picture = shape.picture()
    chat, answer = question(picture), shape.colour
    for quarter in QUARTERS:
        chat += looking(picture, quarter)
        if quarter == shape.quarter:
            break
        if rng.random() < gives_up:
            answer = _guess(rng)
            break
    return Transcript([*chat, {"role": "assistant", "content": answer}], (ZOOM,), (repr(shape),))


def _guess(rng: random.Random) -> str:
    """A colour without having seen it, mostly the same one: so greedy decoding guesses, too."""
    return "red" if rng.random() < 0.75 else rng.choice(list(COLOURS))
