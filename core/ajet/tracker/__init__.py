"""The context tracker: every call of an episode, merged on exact token prefixes into token trees.

`tree` holds the tokens once; `record` is the episode's calls with their place in the tree and the
conversations they can continue; `timelines` reads root-to-leaf paths back as training material.
"""
