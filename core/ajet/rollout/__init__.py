"""Rollout: many episodes at once, judged, counted and journaled.

`episode` runs one attempt; `scheduler` runs a plan of episodes with retries and judging; `lockstep`
makes batches repeatable; `watchdog` says who waits for whom; `journal` and `recorder` write it down.
"""
