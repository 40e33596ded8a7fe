"""Advice on a job before it is run: `ajet forecast` says whether it will learn, `ajet plan` on which GPUs it fits and how fast it is.

`forecast/` runs a few dozen episodes and measures; `plan` and `speed` are arithmetic over what
the backbones would place on each GPU (`ajet.estimate`). Importing this package imports none of it.
"""
