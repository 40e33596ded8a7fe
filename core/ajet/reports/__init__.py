"""Reports on run folders: what a run did, and the text of one episode, token by token.

`folder` reads, `credit` recomputes advantages, `run_summary` and `episode` collect the data, `labels` names
the figures, `html` and `text` show them. `progress` shows a run while it goes on. Nothing here needs the model, its plugin
or the network.
"""
