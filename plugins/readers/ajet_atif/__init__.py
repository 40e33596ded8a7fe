"""Trajectories in ATIF, the format of Harbor's agents: an episode written as one, and the chats of any that is read.

A trajectory is one conversation: a step for each message, and results of tools within the step that called them. What an episode
said in other conversations (a subagent's, or one that took another course) is embedded as further trajectories. Messages that one
of them has from another are copied context there, so each answer counts once. What the format has no place for is in
``extra["ajet"]``, and is read from there.

The reader of traces and the logger `atif` use it, and the core as `ajet.plugin_names.atif`. This package knows no other plugin.
"""

from ajet_atif.reading import UNREADABLE, AtifCall, calls_of, recorded, transcripts_of
from ajet_atif.writing import text_of, trajectory_of

__all__ = ["UNREADABLE", "AtifCall", "calls_of", "recorded", "text_of", "trajectory_of", "transcripts_of"]
