"""The starter: a small chat model that `model: starter` makes from nothing on a CPU, and caches.

`tokenizer` and `transcripts` are its data, `recipe` the order of its training, `build` the folder.
"""
