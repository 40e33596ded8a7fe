"""Run folders for reading: what a run did, and what one episode said, token by token.

`folder` reads, `credit` says what was learned from, `glance` and `episode` gather facts as plain data,
`text` and `html` show them. Nothing here needs the model, its plugin or the network.
"""
