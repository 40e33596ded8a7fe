"""Recipes of small chat models that are trained from scratch on the user's machine: `starter` and `calculator`.

`tiny` is their common base class, `phases` and `transcripts` their training data. `recipe` and `questions` belong to the
starter; `calculator`, `sums` and `trial` to the calculator.
"""
