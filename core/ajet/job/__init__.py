"""From a job file and options to a checked job.

`config` defines every key. `prepare` resolves names, opens plugins' settings and reports all mistakes before anything
runs; its result is a `Job`, which everything else takes. `parts` makes relative paths absolute and builds plugins, `checks`
are those between keys, `models` finds or builds the model, `spec` takes a job to other processes.
"""

DEFAULT_BACKBONE = "local"
"""Runs a job that names none, and commands that have no job."""
