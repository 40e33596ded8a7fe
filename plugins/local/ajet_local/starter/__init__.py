"""Small chat models that are made on this machine, from nothing; the starter is one.

`tiny` is the base of their recipes, `phases` and `transcripts` what it trains on; `recipe`, `sums` and `trial` are
the starter's own.
"""
