"""The parts of `bench/prove_gpu.py`: programs whose last line is one JSON object with their figures.

Each takes ``--folder``, where the runner has put the models and the part may write, and ``--reduced`` for a machine without
a GPU: the same code on small sizes, whose figures mean nothing. A part that fails ends with an exit code other than 0.
"""
