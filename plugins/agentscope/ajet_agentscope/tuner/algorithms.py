"""The algorithm names of AgentScope's tuner, which are Trinity-RFT's, as AgentJet's algorithms."""

from __future__ import annotations

from collections.abc import Mapping

from ajet import Algorithm, ConfigError
from ajet.interfaces.helpers import nearest
from ajet.job.trinity_keys import SAME
from ajet.plugins import load_plugins

OTHERS: Mapping[str, tuple[str, str]] = {
    "remax": ("needs a greedy answer for each task, which AgentJet does not sample", "rloo"),
    "reinforce": ("is in the plugin ajet-plugin-online, which is not installed", "rloo"),
    "opmd": ("is not in AgentJet", "grpo"),
    "topr": ("is not in AgentJet", "cispo"),
    "asymre": ("is not in AgentJet", "cispo"),
    "sapo": ("is not in AgentJet", "gspo"),
    "rec": ("is not in AgentJet", "grpo"),
    "sppo": ("is not in AgentJet", "grpo"),
    "mix": ("learns from transcripts, too", "grpo"),
    "mix_chord": ("learns from transcripts, too", "grpo"),
    "sft": ("learns from transcripts, not from rewards: use ajet.sft", "rejection_sampling"),
}
"""Why an algorithm of Trinity's is refused, and the nearest one."""


def algorithm(name: str) -> str:
    """The name of the same algorithm in AgentJet. Raises ConfigError that names the nearest one."""
    found, where = SAME.get(name, name), f"AlgorithmConfig.algorithm_type: {name!r}"
    installed = sorted(load_plugins().of(Algorithm).keys() - {"sft"})
    if found in installed:
        return found
    if name in OTHERS:
        why, instead = OTHERS[name]
        raise ConfigError(f"{where} {why}. The nearest algorithm is {instead!r}.")
    raise ConfigError(
        where, f"unknown algorithm{nearest(name, {*installed, *SAME})}. Known: {', '.join(installed)}."
    )
