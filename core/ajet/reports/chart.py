"""Curves over training steps as one SVG figure, with axes and a legend. It uses no script and no network."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence

Points = Sequence[tuple[int, float]]
"""(step, value) pairs in the order of their steps."""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 700, 190, 50, 10, 12, 36


def chart(curves: Mapping[str, Points]) -> str:
    """A figure of the curves, by name; the first one is that of the training steps. The others have few points, so each
    point is drawn as a dot."""
    steps = [step for points in curves.values() for step, _ in points]
    values = [value for points in curves.values() for _, value in points]
    first, last, low, high = min(steps), max(steps), min(values), max(values)

    def across(step: int) -> float:
        return LEFT + (step - first) * (WIDTH - LEFT - RIGHT) / ((last - first) or 1)

    def down(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) * (HEIGHT - TOP - BOTTOM) / ((high - low) or 1.0)

    label = html.escape("; ".join(_told(name, points) for name, points in curves.items()), quote=True)
    parts = [
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role=img aria-label='{label}'>",
        f"<line class=axis x1={LEFT} x2={WIDTH} y1={HEIGHT - BOTTOM} y2={HEIGHT - BOTTOM} />",
        *(
            f"<text x=0 y={down(value) + 4:.1f}>{value:.3g}</text>"
            for value in sorted({low, (low + high) / 2, high})
        ),
        *(
            f"<text x={across(step):.1f} y={HEIGHT - BOTTOM + 14} text-anchor='{_anchor(step, first, last)}'>{step}</text>"
            for step in ticks(first, last)
        ),
        f"<text x={(LEFT + WIDTH) / 2} y={HEIGHT - 4} text-anchor='middle'>step</text>",
    ]
    for number, points in enumerate(curves.values()):
        drawn = [(across(step), down(value)) for step, value in points]
        path = " L".join(f"{x:.1f} {y:.1f}" for x, y in drawn)
        parts.append(f"<path class='curve c{number}' d='M{path}' />")
        if number:
            parts += [f"<circle class='c{number}' cx={x:.1f} cy={y:.1f} r=3 />" for x, y in drawn]
    return (
        f"<figure>\n{''.join(parts)}</svg>\n<figcaption>{'; '.join(_legend(curves))}</figcaption>\n</figure>"
    )


def ticks(first: int, last: int, most: int = 6) -> list[int]:
    """Round steps between the first and the last, about ``most``, and these two."""
    if first == last:
        return [first]
    widths = (n * 10**power for power in range(12) for n in (1, 2, 5))
    width = next(w for w in widths if last - first <= w * most)
    inner = range(-(-first // width) * width, last, width)
    return [first, *(step for step in inner if min(step - first, last - step) >= width / 2), last]


def _anchor(step: int, first: int, last: int) -> str:
    return "end" if step == last != first else "middle"


def _told(name: str, points: Points) -> str:
    return f"{name}: from {points[0][1]:.3g} to {points[-1][1]:.3g}"


def _legend(curves: Mapping[str, Points]) -> Iterator[str]:
    for number, (name, points) in enumerate(curves.items()):
        yield f"<span class='key k{number}'>{html.escape(_told(name, points))}</span>"
