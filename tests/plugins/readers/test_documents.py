"""Documents as text, and text in chunks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet import ConfigError
from ajet_readers.generated.documents import read_chunks, read_document, split_text


def pdf(text: str) -> bytes:
    """A PDF of one page with one line."""
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
    ]
    body, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return body + (
        b"xref\n0 5\n0000000000 65535 f \n%strailer\n<< /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF"
        % (table, len(body))
    )


def test_plain_text_and_markdown_are_read_as_they_are(tmp_path: Path) -> None:
    for name in ("a.txt", "b.md"):
        (tmp_path / name).write_text("# Bäume\n\nEichen werden alt.", encoding="utf-8")
        assert read_document(tmp_path / name) == "# Bäume\n\nEichen werden alt."


@pytest.mark.whole
def test_html_without_scripts_styles_and_tags(tmp_path: Path) -> None:
    pytest.importorskip("bs4")
    path = tmp_path / "a.html"
    path.write_text(
        "<html><style>p {color: red}</style><body><h1>Trees</h1><p>Oaks <b>grow</b> old.</p>"
        "<script>evil()</script><ul><li>Elm</li><li>Ash &amp; Yew</li></ul></body></html>"
    )
    assert read_document(path) == "Trees\n\nOaks grow old.\n\nElm\n\nAsh & Yew"


@pytest.mark.whole
def test_pdf(tmp_path: Path) -> None:
    pytest.importorskip("pypdf")
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf("Oaks grow old."))
    assert read_document(path).strip() == "Oaks grow old."


def test_docx_with_its_tables_in_their_place(tmp_path: Path) -> None:
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.add_paragraph("Before.")
    table = document.add_table(rows=1, cols=2)
    table.rows[0].cells[0].text, table.rows[0].cells[1].text = "Oak", "1000 years"
    document.add_paragraph("After.")
    document.save(str(tmp_path / "a.docx"))
    assert read_document(tmp_path / "a.docx") == "Before.\n\nOak | 1000 years\n\nAfter."


def test_chunks_are_whole_paragraphs_and_nothing_is_lost() -> None:
    paragraphs = [f"Paragraph {i} says {'much ' * (i % 5)}." for i in range(40)]
    chunks = list(split_text("\n\n".join(paragraphs), 200))
    assert all(len(chunk) <= 200 for chunk in chunks)
    assert "\n\n".join(chunks).split("\n\n") == [p.strip() for p in paragraphs]


def test_long_paragraphs_are_split_at_sentences_and_long_sentences_anywhere() -> None:
    chunks = list(split_text("One is short. " * 30 + "x" * 500, 200))
    assert all(len(chunk) <= 200 for chunk in chunks)
    assert "".join(chunks).count("x") == 500 and sum(c.count("One is short.") for c in chunks) == 30


def test_no_chunk_has_blank_ends() -> None:
    chunks = list(split_text(f"Short.\n\n{'x' * 199}.\n{'y' * 50}", 200))
    assert chunks == ["Short.", f"{'x' * 199}.", "y" * 50]


def test_chinese_sentences_have_ends_too() -> None:
    chunks = list(split_text("橡树很老。" * 100, 200))
    assert all(chunk.endswith("。") and len(chunk) <= 200 for chunk in chunks)


def test_a_folder_is_read_in_a_stable_order_without_hidden_files_and_repeated_text(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name, text in {
        "b.txt": "B.",
        "a.md": "A.",
        "sub/c.txt": "B.",
        ".hidden.txt": "H.",
        "x.bin": "?",
    }.items():
        (tmp_path / name).write_text(text)
    assert [(c.source, c.text) for c in read_chunks(tmp_path, 500)] == [("a.md", "A."), ("b.txt", "B.")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"caf\xe9", "not UTF-8 text"),
        ("a.txt", b" \n", "contains no text"),
        ("a.pdf", b"no pdf", "cannot be read as .pdf"),
        ("a.docx", b"no docx", "cannot be read as .docx"),
        ("a.xyz", b"?", ".xyz is not supported"),
    ],
)
def test_a_document_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_chunks(path, 500)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_no_documents_at_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="contains no documents"):
        read_chunks(tmp_path, 500)
    with pytest.raises(ConfigError, match="no such file or folder"):
        read_chunks(tmp_path / "none", 500)
