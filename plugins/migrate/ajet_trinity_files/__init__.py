"""Files of Trinity-RFT as jobs: `keys` says what becomes of each key, `files` reads a file.

`ajet config from-trinity` prints such a job, and AgentScope's tuner takes such files. This package knows neither.
"""
