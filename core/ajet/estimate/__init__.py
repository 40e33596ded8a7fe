"""How a backbone says, before a job runs, what it would place on each GPU, without torch.

`shape` has the sizes of a model, `devices` the sizes and speeds of GPUs, and `layout` those of a job and what goes where. The
backbones use them when they start a job, and `ajet plan`, a plugin, before that.
"""
