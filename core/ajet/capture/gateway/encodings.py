"""Compressed request bodies, decompressed up to a limit: a bomb costs no more than a large body."""

from __future__ import annotations

import zlib

from ajet.interfaces.wire import Refused

_GZIP, _ZLIB, _RAW = 31, 15, -15
"""Formats of `zlib.decompressobj`."""
MOST_PARTS = 64
"""Maximum parts of a gzip stream."""
_PIECE = 1 << 16
"""Bytes that are read at once."""
_PADDING = 1 << 18
"""Bytes by which a stream may be longer than its content."""


def check_encoding(encoding: str) -> str:
    """The value of a Content-Encoding header in one form; empty if the body is as it is. Raises Refused for an unknown one."""
    coding = encoding.strip().lower().removeprefix("x-")
    if coding not in ("", "identity", "gzip", "deflate"):
        raise Refused(
            f"the request's content-encoding is {encoding[:60]!r}; send gzip, deflate or none",
            code="unsupported_encoding",
            status=415,
        )
    return "" if coding == "identity" else coding


def decoded(body: bytes, encoding: str, most: int) -> bytes | None:
    """A body without its encoding (`check_encoding`); None if it has more than ``most`` bytes. Raises Refused if it is
    damaged."""
    try:
        if encoding == "gzip":
            return _decompressed(body, _GZIP, most)
        try:
            return _decompressed(body, _ZLIB, most)
        except zlib.error:  # some clients send deflate without the header that HTTP wants
            return _decompressed(body, _RAW, most)
    except (zlib.error, EOFError) as error:
        raise Refused(
            f"the request's body is not {encoding}, which content-encoding says: {error}",
            code="invalid_encoding",
        ) from None


def _decompressed(body: bytes, form: int, most: int) -> bytes | None:
    """The content of a stream; with gzip it may have several parts, one after the other. The time is linear in the size: the rest of a
    piece is copied for each part, and what compresses nothing takes long to read for the little that it holds."""
    view, parts = memoryview(body), list[bytes]()
    start = size = 0
    for _ in range(MOST_PARTS if form == _GZIP else 1):
        reader = zlib.decompressobj(form)
        while not reader.eof:
            if start == len(body):
                raise EOFError("it has no end")
            piece = view[start : start + _PIECE]
            parts.append(reader.decompress(piece, most + 1 - size))
            size += len(parts[-1])
            if size > most:
                return None
            start += len(piece) - len(reader.unused_data)
            if start > size + _PADDING:
                raise EOFError("it is much longer than its content")
        if start == len(body):
            return b"".join(parts)
    raise EOFError("it has too many parts, or something after its end")
