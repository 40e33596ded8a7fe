"""What plugins implement: one file for each kind of plugin.

A reader yields tasks, a workflow runs an agent, a judge turns its output into rewards, an engine samples tokens, a
backbone trains. `base.Plugin` is what they share: a frozen pydantic model that opens its resources when a run starts.
Plugin packages import these names from `ajet`; the modules hold what only some plugins need, and the types that the methods of their
kind take and return. `helpers` has what plugins of several kinds need. Plugins import nothing else of
AgentJet but `ajet.testing` and `ajet.environments`; for those of this repository, `tools/core_modules.toml` lists the exceptions.
"""
