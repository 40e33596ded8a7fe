"""From a job file and options to a checked job.

`config` defines every key. `prepare` resolves names, opens plugins' settings and reports all mistakes before anything
runs; its result is a `Job`, which everything else takes. `models` finds or builds the model, `spec` reads ``module:name``.
"""
