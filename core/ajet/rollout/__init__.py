"""Rollout: many episodes at once, judged, counted and journaled.

`episode` runs one attempt; `scheduler` runs a plan of episodes with retries and judging;
`deterministic_batching` makes batches repeatable; `watchdog` reports what episodes wait for; `journal` and
`recorder` write the results.
"""
