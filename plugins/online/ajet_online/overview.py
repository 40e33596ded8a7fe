"""What the store of online training contains, as JSON."""

from __future__ import annotations

from typing import Any

from ajet_online.store import Store
from ajet_online.versions import Versions


def overview(store: Store) -> dict[str, Any]:
    """Traces by state, and each version with its stage, its validation reward and its ratings."""
    status, versions = store.status(), Versions(store)
    serving = versions.serving()
    known = {version.number: version for version in versions.all()}
    found = {}
    for number in sorted({*known, *status.ratings}):
        count, mean = status.ratings.get(number, (0, None))
        version = known.get(number)
        found[str(number)] = {
            "stage": version.stage.name.lower() if version else None,
            "parent": version.parent if version else None,
            "validation": version.reward if version else None,
            "rated": count,
            "rating": mean,
            "reason": version.reason if version else None,
            "path": version.path if version else None,
        }
    return {
        "traces": {state.name.lower(): count for state, count in status.states.items()},
        "serving": serving.number if serving else None,
        "versions": found,
    }
