"""How long tests wait for what must happen. A test that passes never waits so long, however busy the machine is."""

PATIENCE = 300.0
"""Seconds for what takes a few on an idle machine. What takes minutes there gets four times as many."""
