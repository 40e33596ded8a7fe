"""Models compared on the same tasks: `ajet eval --models` and `ajet.select_model`.

`selection` runs them one after the other, `comparison` says which is the best, of episodes from anywhere: AgentScope's tuner
compares its own. This package knows no other plugin.
"""
