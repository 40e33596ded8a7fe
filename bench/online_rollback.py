"""Simulates the rollback of online training: how often, and after how many ratings, a worse version is withdrawn.

    SEED=0 .venv/bin/python bench/online_rollback.py

Users like a reply of a version with a certain probability. One user in ten says the opposite of what he thinks, and three in
ten ratings of the others are wrong; one rating of each version is at each bound, whatever the version is worth. The test is
that of the explorer, `ajet_online.rollback.worse`, with the default settings. It is called after every 25 ratings of the served
version; it looks only after 25, 50, 100 and 200.

Each figure is the share of ``--runs`` runs:

- ``withdrawn_share``: after ten versions that users like with a probability of 0.9 comes one with 0.3, and is withdrawn within
  200 ratings.
- ``decline_share``: of 20 versions of 200 ratings, from 0.9 to 0.3 in equal steps, one is withdrawn.
- ``false_alarms``: after ten versions with 0.9 comes another one with 0.9, and is withdrawn within 200 ratings.
- ``hostile_withdrawn``: the same without wrong ratings, but with an API key that gives this share of all ratings, as high as it can to
  earlier versions and as low as it can to the last. Ten other keys share the rest.

The first table says after how many ratings which loss is noticed; the second, what hostile ratings achieve if one key gives them, if
that share of 50 equal keys does, and if the explorer cannot tell who gives them, as all users are behind one key. Takes about two
minutes. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ajet_online.rollback import worse
from ajet_online.settings import OnlineSettings

SETTINGS = OnlineSettings()
INVERTERS, NOISE = 0.1, 0.3
"""Shares of users who say the opposite, and of wrong ratings of the others."""
RATINGS = 200
"""Of each version."""
EVERY = 25
"""Ratings after which the explorer looks."""
GOOD = 0.9


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    runs = parser.parse_args(arguments).runs
    draw = np.random.default_rng(int(os.environ.get("SEED", "0")))
    print("share of runs in which the last version is withdrawn within so many of its ratings")
    print(
        f"{'versions before':>16}  {'liked':>12}  {'wrong ratings':>13}  "
        + "  ".join(f"{n:>5}" for n in (50, 100, 200))
    )
    for before in (1, 10):
        for liked in (0.0, 0.3, 0.5, 0.7, GOOD):
            for noisy in (False, True):
                found = [lost(draw, [*[GOOD] * before, liked], before, noisy=noisy) for _ in range(runs)]
                shares = "  ".join(f"{share(found, n):5.2f}" for n in (50, 100, 200))
                print(f"{before:>16}  {f'{GOOD} → {liked}':>12}  {'37 %' if noisy else 'none':>13}  {shares}")
    decline = list(np.linspace(GOOD, 0.3, 20))
    figures: dict[str, Any] = {
        "withdrawn_share": share([lost(draw, [*[GOOD] * 10, 0.3], 10) for _ in range(runs)]),
        "decline_share": share([lost(draw, decline, 1) for _ in range(runs)]),
        "false_alarms": share([lost(draw, [GOOD] * 11, 10) for _ in range(runs)]),
    }
    equal = share([lost(draw, [GOOD] * 20, 1) for _ in range(runs)])
    print(f"of 20 versions that are equally good, one is withdrawn in {equal:.1%} of the runs")
    print(
        "share of runs in which a version is withdrawn that is as good as those before it, and one that is worse"
    )
    print(
        f"{'hostile ratings':>16}  {'given by':>11}  {'0.9 → 0.9':>9}  {'0.9 → 0.3':>9}  (2nd: hostile in its favour)"
    )
    by_one: dict[str, float] = {}
    for part in (0.02, 0.05, 0.1, 0.15, 0.2, 0.3):
        for who in ("one key", "such keys", "anyone"):
            good, bad = (
                share([attacked(draw, liked, part, who) for _ in range(runs)]) for liked in (GOOD, 0.3)
            )
            print(f"{f'{part:.0%}':>16}  {who:>11}  {good:9.2f}  {bad:9.2f}")
            if who == "one key":
                by_one[f"{part:.2f}"] = good
    figures["hostile_withdrawn"] = {part: by_one[part] for part in ("0.05", "0.10", "0.20")}
    print(json.dumps(figures))


def lost(draw: np.random.Generator, liked: Sequence[float], first: int, *, noisy: bool = True) -> int | None:
    """After how many of its ratings a version is withdrawn, the ``first`` one or one after it; None if none is. Every version
    gets `RATINGS` ratings."""
    given = [rated(draw, probability, noisy=noisy) for probability in liked]
    for last in range(first, len(given)):
        for count in range(EVERY, RATINGS + 1, EVERY):
            if worse([*given[:last], given[last][:count]], SETTINGS.rollback, SETTINGS.rewards):
                return count
    return None


def attacked(draw: np.random.Generator, liked: float, part: float, who: str) -> int | None:
    """After how many of its ratings a version is withdrawn that comes after ten of `GOOD`, while a share of all ratings is given to
    harm: against the version if it is as good, in its favour if it is worse."""
    against = liked == GOOD
    given, keys = [], []
    for place in range(11):
        own = np.where(draw.random(RATINGS) < (liked if place == 10 else GOOD), *reversed(SETTINGS.rewards))
        hostile = draw.random(RATINGS) < part
        key = draw.integers(10, size=RATINGS)
        key[hostile] = 10
        if who == "such keys":
            key = draw.integers(50, size=RATINGS)
            hostile = key < 50 * part
        own[hostile] = SETTINGS.rewards[int((place == 10) != against)]
        given.append(own.astype(np.float64))
        keys.append(["all"] * RATINGS if who == "anyone" else [str(number) for number in key])
    for count in range(EVERY, RATINGS + 1, EVERY):
        if worse(
            [*given[:-1], given[-1][:count]],
            SETTINGS.rollback,
            SETTINGS.rewards,
            [*keys[:-1], keys[-1][:count]],
        ):
            return count
    return None


def rated(draw: np.random.Generator, liked: float, *, noisy: bool) -> NDArray[np.float64]:
    """The ratings of a version."""
    likes = draw.random(RATINGS) < liked
    if noisy:
        inverted = draw.random(RATINGS) < INVERTERS
        likes = likes ^ (inverted | (draw.random(RATINGS) < NOISE))
    found = np.where(likes, *reversed(SETTINGS.rewards)).astype(np.float64)
    found[draw.choice(RATINGS, 2, replace=False)] = SETTINGS.rewards
    return found


def share(found: Sequence[int | None], within: int = RATINGS) -> float:
    """The share of runs in which a version was withdrawn within so many ratings."""
    return sum(count is not None and count <= within for count in found) / len(found)


if __name__ == "__main__":
    main()
