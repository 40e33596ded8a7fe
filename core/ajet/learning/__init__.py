"""Learning: rewards to advantages, episodes to weighted samples, and the loop that trains on them.

`algorithms` are pure functions; `batch` writes their per-token weights; `loop` is the training loop.
"""
