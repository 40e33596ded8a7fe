"""Curves over training steps as one SVG figure, with axes and a legend. It uses no script and no network."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence

Points = Sequence[tuple[int, float]]
"""(step, value) pairs in the order of their steps."""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 700, 202, 50, 10, 24, 36
FEW = 20
"""Points of a curve that are drawn as dots, too: what is between them was not measured."""


def chart(curves: Mapping[str, Points]) -> str:
    """A figure of the curves, by name. The last words of the names say what is measured."""
    steps = [step for points in curves.values() for step, _ in points]
    values = [value for points in curves.values() for _, value in points if math.isfinite(value)] or [0.0]
    first, last, marks = min(steps), max(steps), scale(min(values), max(values))
    low, high = marks[0], marks[-1]

    def across(step: int) -> float:
        return LEFT + (step - first) * (WIDTH - LEFT - RIGHT) / ((last - first) or 1)

    def down(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) * (HEIGHT - TOP - BOTTOM) / (high - low)

    label = html.escape("; ".join(_told(name, points) for name, points in curves.items()), quote=True)
    title = ", ".join(dict.fromkeys(name.rpartition(" ")[2] for name in curves))
    parts = [
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role=img aria-label='{label}'>",
        f"<line class=axis x1={LEFT} x2={WIDTH} y1={HEIGHT - BOTTOM} y2={HEIGHT - BOTTOM} />",
        f"<text x=0 y=10>{html.escape(title)}</text>",
        *(f"<text x=0 y={down(mark) + 4:.1f}>{mark:g}</text>" for mark in marks),
        *(
            f"<text x={across(step):.1f} y={HEIGHT - BOTTOM + 14} text-anchor='{_anchor(step, first, last)}'>{step}</text>"
            for step in ticks(first, last)
        ),
        f"<text x={(LEFT + WIDTH) / 2} y={HEIGHT - 4} text-anchor='middle'>step</text>",
    ]
    for number, points in enumerate(curves.values()):
        drawn = [(across(step), down(value)) for step, value in points if math.isfinite(value)]
        path = " L".join(f"{x:.1f} {y:.1f}" for x, y in drawn)
        parts.append(f"<path class='curve c{number}' d='M{path}' />")
        if len(points) <= FEW:
            parts += [f"<circle class='c{number}' cx={x:.1f} cy={y:.1f} r=3 />" for x, y in drawn]
    return (
        f"<figure>\n{''.join(parts)}</svg>\n<figcaption>{'; '.join(_legend(curves))}</figcaption>\n</figure>"
    )


def ticks(first: int, last: int) -> list[int]:
    """Round steps between the first and the last, about six, and these two."""
    if first == last:
        return [first]
    width = int(_round(max((last - first) / 6, 1)))
    inner = range(-(-first // width) * width, last, width)
    return [first, *(step for step in inner if min(step - first, last - step) >= width / 2), last]


def scale(low: float, high: float) -> list[float]:
    """At most six round values, the lowest one at or below ``low`` and the highest one at or above ``high``."""
    width = _round((high - low) / 4 or abs(high) / 4 or 0.25)
    start, end = math.floor(low / width + 1e-9), math.ceil(high / width - 1e-9)
    return [float(f"{width * n:.12g}") for n in range(start, max(end, start + 1) + 1)]


def _round(width: float) -> float:
    """The lowest of 1, 2 and 5 times a power of ten that is at least ``width``."""
    power = math.floor(math.log10(width))
    return next(float(f"{n}e{power}") for n in (1, 2, 5, 10) if n * 10.0**power >= width * (1 - 1e-9))


def _anchor(step: int, first: int, last: int) -> str:
    return "end" if step == last != first else "middle"


def _told(name: str, points: Points) -> str:
    return f"{name}: from {points[0][1]:.3g} to {points[-1][1]:.3g}"


def _legend(curves: Mapping[str, Points]) -> Iterator[str]:
    for number, (name, points) in enumerate(curves.items()):
        yield f"<span class='key k{number}'>{html.escape(_told(name, points))}</span>"
