"""What the server answers when it cannot answer."""

from __future__ import annotations


class Refused(Exception):
    """An answer with an HTTP status and one line of text, for the page to show."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def missing(text: str) -> Refused:
    """Status 404."""
    return Refused(404, text)


def wrong(text: str) -> Refused:
    """Status 400."""
    return Refused(400, text)
