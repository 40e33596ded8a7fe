"""Models over token trees: attention, what of a tree is computed, and which models can compute it; and logprobs without all logits.

The backbones `local` and `verl` train with it. It knows neither: it gets a model and a tree or rows, and returns logprobs.
"""
