"""Draws the picture `curve.svg` of a learning example and the table in its README from `learned.json`. A test compares both.

python examples/learn.py --seed 0 --record countdown   # writes learned.json
python tools/learning_curves.py examples/countdown
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tables

Seeds = Mapping[str, Mapping[str, Any]]
"""Seed -> what `examples/learn.py` found."""
WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 40, 44
"""Pixels around the plotted area."""
COLOURS = ("#4051b5", "#c2571a", "#2b8a5e")
BACKGROUND, GRID, TEXT = "#f7f8fa", "#d5dae1", "#5a6472"


def across(share: float) -> float:
    """Where a share of the steps lies, in pixels."""
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def up(reward: float) -> float:
    """Where a reward from 0 to 1 lies, in pixels."""
    return round(HEIGHT - BOTTOM - reward * (HEIGHT - TOP - BOTTOM), 1)


def text(x: float, y: float, words: str, anchor: str = "middle", colour: str = TEXT) -> str:
    """Words at a point."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def picture(name: str, seeds: Seeds) -> str:
    """The mean training reward in each tenth of the steps, one line per seed, and the held-out reward before and after as dots."""
    first_last = ", ".join(
        f"seed {seed} from {found['before']} to {found['after']}" for seed, found in seeds.items()
    )
    title = f"{name}: held-out reward of {first_last}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        'aria-labelledby="t" font-family="system-ui, sans-serif" font-size="13">',
        f'<title id="t">{title}</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="{BACKGROUND}"/>',
        text(LEFT, 24, "line: training reward; dots: held-out reward before and after", "start"),
    ]
    for reward in (0, 0.25, 0.5, 0.75, 1):
        lines.append(f'<path d="M{across(0)} {up(reward)}H{across(1)}" stroke="{GRID}"/>')
        lines.append(text(LEFT - 8, up(reward) + 4, f"{reward:g}", "end"))
    for share, label in ((0, "start"), (0.5, "half of the steps"), (1, "end")):
        anchor = "end" if share == 1 else "middle"
        lines.append(text(across(share), HEIGHT - 20, label, anchor))
    for place, (seed, found) in enumerate(seeds.items()):
        lines += line(found, COLOURS[place % len(COLOURS)])
        lines.append(
            text(
                WIDTH - RIGHT - 60 * (len(seeds) - 1 - place),
                24,
                f"seed {seed}",
                "end",
                COLOURS[place % len(COLOURS)],
            )
        )
    return "\n".join([*lines, "</svg>", ""])


def line(found: Mapping[str, Any], colour: str) -> Iterator[str]:
    """The line and the dots of one seed."""
    curve: Sequence[float] = found["curve"]
    points = " ".join(f"{across((i + 0.5) / len(curve))},{up(reward)}" for i, reward in enumerate(curve))
    yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for share, reward in ((0, found["before"]), (1, found["after"])):
        yield f'<circle cx="{across(share)}" cy="{up(reward)}" r="4" fill="{colour}"/>'


def table(seeds: Seeds) -> Iterator[str]:
    """The lines of the table of seeds."""
    yield "| seed | before | after | gain | in standard errors | training |"
    yield "|---|---|---|---|---|---|"
    for seed, found in seeds.items():
        figures = (f"{found[key]:.3f}" for key in ("before", "after", "gain"))
        yield f"| {seed} | {' | '.join(figures)} | {found['standard_errors']} | {found['train_seconds']:.0f} s |"


def with_table(page: str, seeds: Seeds) -> str:
    """A page with the table between its marks."""
    return tables.with_table(page, Path(__file__).name, table(seeds))


def write(folder: Path) -> None:
    """Write the picture and the table of one example."""
    seeds = json.loads((folder / "learned.json").read_text(encoding="utf-8"))
    (folder / "curve.svg").write_text(picture(folder.name, seeds), encoding="utf-8")
    readme = folder / "README.md"
    readme.write_text(with_table(readme.read_text(encoding="utf-8"), seeds), encoding="utf-8")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        write(Path(argument).resolve())
