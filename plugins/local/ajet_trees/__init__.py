"""Models over token trees: attention, what of a tree is computed, and which models can compute it.

The backbones `local` and `verl` train with it. It knows neither: it gets a model and a tree, and returns logits.
"""
