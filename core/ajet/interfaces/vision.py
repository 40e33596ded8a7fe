"""How a model sees images: for engines and recipes of models that read them. A module of its own, because it imports numpy."""

from ajet.chat.vision import Vision

__all__ = ["Vision"]
