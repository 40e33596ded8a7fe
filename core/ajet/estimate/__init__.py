"""Estimates of a job's memory and speed before it runs: arithmetic over the sizes of a model, without torch.

`shape` reads a model's sizes from its config.json, `memory` has the formulas of what training and sampling keep on a
device, `devices` the sizes and speeds of GPUs, `speed` a roofline, and `layout` the form in which a backbone says what
it would place on each GPU. The backbones use the same formulas when they start a job.
"""
