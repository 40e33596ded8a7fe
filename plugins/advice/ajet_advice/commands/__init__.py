"""The commands `ajet forecast`, `ajet plan` and `ajet model`."""
