"""What is done with a prepared job.

`jobs` lays what a command or a call was given over the job file. `train`, `evaluate`, `check`, `debug` and `serve`
take a job and return metrics, a report or a checkpoint; `runtime` opens what they need, `run_dir` holds what they write.
"""
