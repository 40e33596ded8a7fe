"""Estimates of a job's memory before it runs: arithmetic over the sizes of a model, without torch.

`shape` reads a model's sizes from its config.json, `memory` has the formulas of what training and sampling keep on a
device, `devices` the sizes and speeds of GPUs, and `layout` the form in which a backbone says what it would place on each GPU. The
backbones use these formulas when they start a job, and `ajet plan`, a plugin, before that.
"""
