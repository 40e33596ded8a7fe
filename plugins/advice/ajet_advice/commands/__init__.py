"""The commands `ajet forecast` and `ajet plan`."""
