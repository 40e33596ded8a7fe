"""The section ``plugins.online`` of a job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field

from ajet.interfaces.base import Seconds, Settings
from ajet.interfaces.helpers import read_yaml

if TYPE_CHECKING:
    from ajet.job.config import Layers


LARGEST = 1e6
"""The largest reward that a job may allow, so that sums of many are finite."""


def _bounds(given: tuple[float, float]) -> tuple[float, float]:
    if not -LARGEST <= given[0] < given[1] <= LARGEST:
        raise ValueError(
            f"expected [lowest, highest], two different numbers from {-LARGEST:g} to {LARGEST:g}"
        )
    return given


class GateSettings(Settings):
    """Which candidates are published. Without validation tasks all are."""

    threshold: float | None = Field(
        None, description="Minimum reward of a candidate on the validation tasks; default: none."
    )
    tolerance: float | None = Field(
        None,
        ge=0,
        description="How far a candidate's reward on the validation tasks may be below that of version 0, and below the mean of the "
        "last published versions; default: two standard errors.",
    )


class RollbackSettings(Settings):
    """When the explorer withdraws a version by itself."""

    enabled: bool = Field(True, description="Whether it ever does.")
    error: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="Probability that a version which is as good as those before it is ever withdrawn.",
    )
    ratings: int = Field(
        200,
        ge=2,
        description="Ratings of the served version for which the comparison is made, and for which the next update waits. Feedback on "
        "several replies with one task_id and run_id is one rating.",
    )


class OnlineSettings(Settings):
    """How an agent is trained on the feedback of its users."""

    store: str = Field("traces.db", description="The store: a file of SQLite, or a URL.")
    folder: str = Field("online", description="Folder of the trainer's run folders, with its checkpoints.")
    host: str = Field(
        "127.0.0.1",
        description="Address on which the explorer listens; any but a loopback address is open to the network.",
    )
    keyless: bool = Field(
        False, description="Whether an explorer that listens on a loopback address answers without a key."
    )
    port: int = Field(8000, ge=0, le=65535, description="Port of the explorer; 0 means a free one.")
    drain: Seconds = Field(
        30.0,
        description="Seconds that the explorer has for the calls in progress after SIGTERM or Ctrl-C; it takes no new ones.",
    )
    commit: Literal["auto", "explicit"] | None = Field(
        None,
        description="auto: feedback is complete as soon as it is given; explicit: after POST /commit. Default: explicit for "
        "algorithms that compare several runs of a task, else auto.",
    )
    updates: int | None = Field(None, ge=1, description="Stop after so many updates; default: never.")
    lease: Seconds = Field(
        600.0, description="How long a trainer that has crashed keeps the traces that it has taken."
    )
    poll: Seconds = Field(
        1.0, description="How often the trainer looks for feedback, and the explorer for weights."
    )
    rewards: Annotated[tuple[float, float], AfterValidator(_bounds)] = Field(
        (0.0, 1.0),
        description="The lowest and the highest reward that feedback may give; what a thumb down and up gives.",
    )
    gate: GateSettings = Field(GateSettings(), description="Which candidates are published.")
    rollback: RollbackSettings = Field(
        RollbackSettings(), description="When the explorer withdraws a version by itself."
    )


COMMANDS = {"serve": "explore", "train": "train"}
"""The modes of a Trinity-RFT file for online training, and the commands that do the same."""


def command_of(path: Path) -> str:
    """The command of `ajet online` for a file: ``job`` for a job file; for one of Trinity-RFT it depends on the mode. Raises
    ConfigError."""
    values = read_yaml(path) if path.is_file() else None
    mode = values.get("mode") if isinstance(values, Mapping) else None
    return COMMANDS.get(str(mode), "job")


def online_settings(layers: Layers) -> OnlineSettings:
    """The section of a job, with absolute paths. Raises ConfigError."""
    from ajet.plugins import validated

    settings = validated(
        OnlineSettings, layers.values.get("plugins", {}).get("online") or {}, "plugins.online"
    )
    base = layers.base_of("plugins.online")
    changed = {"folder": str(base / settings.folder)}
    if "://" not in settings.store:
        changed["store"] = str(base / settings.store)
    return settings.model_copy(update=changed)
