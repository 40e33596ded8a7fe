"""Judges the recorded episodes of a run anew, from the run folder alone, and compares what each step then would have taught.

    recorded.py  what a judge gets of a recorded episode
    judging.py   asks the judge, step by step
    credit.py    the advantages of a step with the recorded rewards and with the new ones
    changes.py   what has changed: in rewards, tasks, steps and episodes
    clean.py     a run folder that goes on from before the first wrong update
    report.py    the page and the file that say so
    api.py       `ajet.rejudge`
    commands.py  the command

Advantages and weights are those of the core's own batches, so they are what training would have computed.
"""
