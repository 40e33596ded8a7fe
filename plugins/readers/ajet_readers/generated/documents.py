"""Documents as text, and text in chunks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet import ConfigError
from ajet_readers.extras import needs


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a document. Equal texts have equal keys, whatever document they come from."""

    source: str
    """The document's path, relative to the folder of documents."""
    text: str

    @property
    def key(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]


def read_chunks(path: Path, characters: int) -> list[Chunk]:
    """The chunks of a document, or of all documents in a folder; each text occurs once.

    Raises ConfigError that names a file that cannot be read, or if there are no documents.
    """
    chunks: dict[str, Chunk] = {}
    for file in _documents(path):
        source = file.relative_to(path).as_posix() if path.is_dir() else file.name
        for text in split_text(read_document(file), characters):
            chunk = Chunk(source, text)
            chunks.setdefault(chunk.key, chunk)
    return list(chunks.values())


def read_document(file: Path) -> str:
    """The text of a document. Raises ConfigError if the file cannot be read or contains no text."""
    try:
        text = _PARSERS[file.suffix.lower()](file)
    except ConfigError:
        raise
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start + 1}).") from None
    except Exception as error:  # each parser raises its own types
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{file}: cannot be read as {file.suffix} ({type(error).__name__}: {reason})."
        ) from None
    if not text.strip():
        raise ConfigError(
            f"{file}: contains no text. Run text recognition on a scanned document first, or remove the file."
        )
    return text


def split_text(text: str, characters: int) -> Iterator[str]:
    """Chunks of whole paragraphs, as many as fit. A paragraph that is too long is split between sentences, a sentence
    that is too long anywhere."""
    held = ""
    for piece in _pieces(text, characters):
        if held and len(held) + 2 + len(piece) > characters:
            yield held
            held = piece
        else:
            held = f"{held}\n\n{piece}" if held else piece
    if held:
        yield held


def _pieces(text: str, characters: int) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.replace("\r\n", "\n")):
        paragraph = paragraph.strip()
        if len(paragraph) <= characters:
            if paragraph:
                yield paragraph
            continue
        held = ""
        for sentence in re.split(r"(?<=[.!?。！？])\s*(?=\S)|\n", paragraph):
            while len(sentence) > characters:
                yield from filter(None, (held, sentence[:characters]))
                held, sentence = "", sentence[characters:]
            if held and len(held) + 1 + len(sentence) > characters:
                yield held
                held = sentence
            else:
                held = f"{held} {sentence}".strip()
        if held:
            yield held


def _documents(path: Path) -> list[Path]:
    if path.is_file():
        if path.suffix.lower() not in _PARSERS:
            raise ConfigError(
                f"{path}: {path.suffix or 'no suffix'} is not supported; supported are {_KNOWN}."
            )
        return [path]
    if not path.is_dir():
        raise ConfigError(f"{path}: no such file or folder. Check the reader's `documents`.")
    files = sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and file.suffix.lower() in _PARSERS and not _is_hidden(file.relative_to(path))
    )
    if not files:
        raise ConfigError(f"{path}: contains no documents; supported are {_KNOWN}.")
    return files


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _plain(file: Path) -> str:
    return file.read_text(encoding="utf-8-sig")


def _html(file: Path) -> str:
    soup = needs("bs4", "documents").BeautifulSoup(file.read_bytes(), "html.parser")
    for element in soup(["script", "style", "noscript", "template", "nav"]):
        element.decompose()
    for block in soup(["p", "div", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "blockquote"]):
        block.insert_after("\n\n")
    return "\n\n".join(
        " ".join(part.split()) for part in re.split(r"\n\s*\n", soup.get_text(" ")) if part.strip()
    )


def _pdf(file: Path) -> str:
    with needs("pypdf", "documents").PdfReader(file) as pdf:
        return "\n\n".join(page.extract_text() for page in pdf.pages)


def _docx(file: Path) -> str:
    document: Any = needs("docx", "documents").Document(str(file))
    parts = []
    for item in document.iter_inner_content():
        if hasattr(item, "rows"):
            parts += [" | ".join(cell.text.strip() for cell in row.cells) for row in item.rows]
        else:
            parts.append(item.text)
    return "\n\n".join(part for part in parts if part.strip())


_PARSERS: dict[str, Callable[[Path], str]] = {
    ".txt": _plain,
    ".md": _plain,
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
    ".docx": _docx,
}
_KNOWN = ", ".join(_PARSERS)
