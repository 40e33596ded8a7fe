"""An independent check of a finished run, from its files alone.

    files.py     what the run folder holds: settings, metrics, checkpoints, hashes
    journal.py   the episodes and their calls
    batches.py   what each step trained
    credit.py    which advantages and weights the algorithm's paper gives
    branches.py  answers that came to nothing
    filters.py   which calls the filters and limits of the job leave out
    counts.py    how many episodes and groups a step has, and what metrics.jsonl says of them
    prompts.py   what the model's chat template writes
    steps.py     compares all of these, step by step
    report.py    the table and the object that `ajet audit` prints
    commands.py  the command

It shares no code with the tracker, learning or the recorders, so a fault of these is not repeated here.
"""
