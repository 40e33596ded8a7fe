"""Compressed request bodies, decompressed up to a limit: a bomb costs no more than a large body."""

from __future__ import annotations

import zlib

from ajet.capture.wires import Refused

_GZIP, _ZLIB, _RAW = 31, 15, -15
"""Formats of `zlib.decompressobj`."""


def check_encoding(encoding: str) -> str:
    """The value of a Content-Encoding header in one form; empty if the body is as it is. Raises Refused for an unknown one."""
    found = encoding.strip().lower().removeprefix("x-")
    if found not in ("", "identity", "gzip", "deflate"):
        raise Refused(
            f"the request's content-encoding is {encoding[:60]!r}; send gzip, deflate or none",
            code="unsupported_encoding",
            status=415,
        )
    return "" if found == "identity" else found


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
    """All parts of a stream, one after the other."""
    parts: list[bytes] = []
    room = most + 1
    while body and room:
        reader = zlib.decompressobj(form)
        parts.append(reader.decompress(body, room))
        room -= len(parts[-1])
        if room and not reader.eof:
            raise EOFError("it has no end")
        body = reader.unused_data
    return b"".join(parts) if room else None
