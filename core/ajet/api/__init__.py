"""The Python API: `ajet.run`, `evaluate`, `check`, `sft`, `dpo`, `serve` and `load_run`, with the words of the commands.

Takes functions, classes, objects, lists and paths; makes layers of a job of them (`ajet.runs.jobs`), as the command
line does of its flags, and runs that job in the caller's thread, or in one of its own beside a running event loop. Returns
results that read the run folder. Users import these names from `ajet`.
"""
