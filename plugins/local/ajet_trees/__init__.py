"""Models over token trees: packing, attention, what of a tree is computed, and which models can compute it; logprobs without all
logits; and the memory of training, by arithmetic.

The backbones `local` and `verl` train with it. It knows neither: it gets a model and a tree or rows, and returns logprobs.
"""
