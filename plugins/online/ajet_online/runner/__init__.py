"""For the user's own service: runs some requests again with the model in training, and sends feedback on these runs.

A module of it imports nothing but the standard library and httpx2 before it is used.
"""
