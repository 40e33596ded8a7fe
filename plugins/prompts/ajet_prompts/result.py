"""The file of tuned texts that a search writes."""

from __future__ import annotations

from pathlib import Path

from ajet.interfaces.helpers import write_whole
from ajet.interfaces.prompts import as_yaml
from ajet_prompts.search import Candidate

FILE = "prompts.yaml"


def write_prompts(file: Path, best: Candidate, first: Candidate, tasks: int) -> None:
    """Write the best texts, with what is known of them as comments. Raises AjetError."""
    how = f"Mean reward on {tasks} validation tasks: {best.reward:.4g}, before {first.reward:.4g}."
    same = "# No better texts were found: these are the first ones.\n" if best.number == first.number else ""
    write_whole(
        file,
        f"# Texts for ajet.prompt, found by `ajet tune-prompt`. {how}\n{same}"
        "# In a job: `prompts: FILE`. For the agent alone: AJET_PROMPTS=FILE. The texts may be edited.\n"
        f"{as_yaml(best.texts)}",
    )
