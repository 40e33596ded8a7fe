"""Advice on a job before it is run: `ajet forecast` says whether it will learn, `ajet plan` on which GPUs it fits and how fast it is.

`forecast/` runs a few dozen episodes and measures; `plan` and `speed` are arithmetic over the formulas of memory that the
backbones share (`ajet.estimate`). Importing this package imports none of it.
"""
