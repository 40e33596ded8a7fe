"""What a checkpoint says about its weights, which stay at Tinker: the file `tinker.json`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ajet.interfaces.backbone import CheckpointDamaged

SAVED_FILE = "tinker.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Where Tinker keeps a checkpoint, and what it is a checkpoint of."""

    base_model: str
    rank: int
    """Rank of the LoRA."""
    model_type: str
    """The architecture's name in Hugging Face configs."""
    version: int
    """Weight version of the checkpoint."""
    state: str
    """The ``tinker://`` path of weights and optimizer state, from which training continues."""
    sampler: str
    """The ``tinker://`` path of the weights to sample from."""

    def write(self, folder: Path) -> None:
        """Write the file into ``folder``. Raises OSError."""
        (folder / SAVED_FILE).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Saved:
        """What the file in ``folder`` says. Raises CheckpointDamaged if it cannot be read."""
        file = folder / SAVED_FILE
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointDamaged(f"{file}: {error}") from error


def saved_in(model: str) -> Saved | None:
    """The `Saved` of a job's model, if that is a checkpoint of this backbone; otherwise None. Raises CheckpointDamaged."""
    folder = Path(model).expanduser()
    return Saved.read(folder) if (folder / SAVED_FILE).is_file() else None
