"""Stands in for flash attention, of which verl uses the padding alone here."""

__version__ = "2.8.3"
