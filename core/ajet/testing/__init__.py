"""For plugin authors' tests: a complete Engine whose answers are scripted, and the checks of each kind of plugin."""

from ajet.services.scripted_engine import ScriptedEngine, logprob_of

__all__ = ["ScriptedEngine", "logprob_of"]
