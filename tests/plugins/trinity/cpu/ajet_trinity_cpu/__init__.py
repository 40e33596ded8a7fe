"""Trinity and verl on a CPU: see the README."""
