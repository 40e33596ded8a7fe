"""One file for each thing that can be done with a job: train, check, evaluate, debug, serve.

`runtime` opens what all of them need (engine, capture, judges, services) and returns it closed. `run_dir` writes the run's
folder, `callbacks` tells loggers and hooks of each step.
"""
