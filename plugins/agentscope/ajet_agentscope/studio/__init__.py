"""Runs in AgentScope Studio: the logger ``agentscope_studio``.

`logger` receives the events of a run, `sending` delivers them in a thread of its own, `spans` writes
episodes as spans of OpenTelemetry's conventions for generative AI.
"""

from ajet_agentscope.studio.logger import AgentScopeStudio

__all__ = ["AgentScopeStudio"]
