r"""Numbers out of text, exactly: "so \boxed{\frac{3}{4}}", "costs $1,234.50", "−5".

A number becomes a `fractions.Fraction`; nothing is evaluated. What cannot be read as a number is None,
never an exception: the text comes from a model.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Number:
    """A value as it was written: 50% has the value 50 and ``percent``."""

    value: Fraction
    percent: bool = False

    def equals(self, other: Number, tolerance: Fraction) -> bool:
        """Equal up to the tolerance; a percent sign on one side only may be read as a unit or as 1/100."""
        if self.percent == other.percent:
            return abs(self.value - other.value) <= tolerance
        marked, plain = (self, other) if self.percent else (other, self)
        return any(abs(value - plain.value) <= tolerance for value in (marked.value, marked.value / 100))


def final_number(text: str) -> Number | None:
    r"""The number that a text states in the end.

    The last closed ``\boxed{…}`` decides where there is one: a box with anything but a number (it may
    carry a name before "=" and a unit) means None. Otherwise it is the last number in the text.
    """
    box = last_box(text)
    if box is not None:
        return _whole(_plain(box).rpartition("=")[2])
    matches = list(NUMBER.finditer(_plain(text)))
    return _number(matches[-1]) if matches else None


def plain_number(text: str) -> Number | None:
    """The number that a text is, but for words, a box or ``####`` around it: as reference answers are given.
    None for an expression, even one that ends with a number."""
    box = last_box(text)
    if box is not None:
        return _whole(_plain(box).rpartition("=")[2])
    plain = _plain(text.rpartition("####")[2])
    return None if FORMULA.search(plain) else _whole(WORD.sub(" ", plain).rpartition("=")[2])


def last_box(text: str) -> str | None:
    r"""The content of the last ``\boxed{…}`` whose braces close, nested ones kept."""
    open_braces: list[re.Match[str]] = []
    last = (-1, -1)
    for token in BRACE.finditer(text):
        if token[0].endswith("{"):
            open_braces.append(token)
        elif open_braces:
            opened = open_braces.pop()
            if len(opened[0]) > 1:  # more than a plain brace: a box
                last = max(last, (opened.end(), token.start()))
    return text[last[0] : last[1]] if last[0] >= 0 else None


BRACE = re.compile(r"\\f?boxed\s*\{|(?<!\\)[{}]")
# Thousands in threes, plain digits, or a bare decimal; an exponent of at most three digits, as
# Fraction("1e999999999") would fill the memory.
DIGITS = (
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|(?<!\.)\.[0-9]+)"
    r"(?:[eE][-+]?[0-9]{1,3}(?![0-9]))?"
)
# A sign belongs to the number unless something stands right before it (10-3). A digit after a letter
# or another digit (x2, H2O) is no number of its own.
NUMBER = re.compile(
    rf"""
    (?<![A-Za-z_0-9])
    (?P<sign>(?<![\w)\]}}.%])[-+])?  [$€£¥]?  (?P<sign2>(?<=[$€£¥])[-+])?
    (?<![A-Za-z_0-9])
    (?: (?P<whole>[0-9]+)[ ](?P<part>[0-9]+)/(?P<parts>[0-9]+)(?![0-9])
      | (?P<over>{DIGITS}) (?: [ ]?/[ ]?(?P<under>{DIGITS}) )?
    )
    (?P<percent>[ ]?%)?
    """,
    re.VERBOSE,
)
# " apples", "cm^2", "°C", " m", a full stop; but not x in 2x, nor "or 6".
UNIT = re.compile(r" ?(?:°[A-Z]?|[A-Za-z]{2}[A-Za-z ./]*|(?<= )[A-Za-z])?(?:\^\{?[23]\}?)?\.?")
WORD = re.compile(r"[A-Za-z]{2,}[.,:;!?]?|(?<![A-Za-z0-9])[aAI](?![A-Za-z0-9])")
FORMULA = re.compile(r"\\[A-Za-z]|\b(?:pi|sqrt|sin|cos|tan|log|ln|exp|inf|infinity)\b", re.IGNORECASE)
VULGAR = {
    c: unicodedata.normalize("NFKC", chr(c)).replace("\u2044", "/")
    for c in (*range(0xBC, 0xBF), *range(0x2150, 0x215F))
}
MINUS = str.maketrans(dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d", "-"))
LATEX = [
    (re.compile(r"(?<=[0-9]) ?(?=[¼-¾⅐-⅞])"), " "),  # 3½ is a mixed number
    (re.compile(r"\{,\}"), ","),  # 1{,}000
    (re.compile(r"(?<=[0-9])\\[,! ](?=[0-9])"), ""),  # 1\,000
    (re.compile(r"\\[,;:! ]|~"), " "),
    (re.compile(r"\\([$%])"), r"\1"),
    (re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\^?\{?\\(?:circ|degree)\}?"), "°"),
    (re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])"), ""),
    (re.compile(r"(?<=[0-9])\s*\\[dtc]?frac"), r" \\frac"),  # 2\frac{1}{2} is a mixed number
    (re.compile(r"\\[dtc]?frac\s*\{\s*(-?)\s*([0-9.,]+)\s*\}\s*\{\s*([0-9.,]+)\s*\}"), r"\1\2/\3"),
    (re.compile(r"\\[dtc]?frac\s*([0-9])\s*([0-9])"), r"\1/\2"),
]


def _plain(text: str) -> str:
    """The text with one kind of minus and without the LaTeX that may stand around or in a number."""
    text = text.translate(MINUS)
    for pattern, replacement in LATEX:
        text = pattern.sub(replacement, text)
    return text.translate(VULGAR)


def _whole(text: str) -> Number | None:
    """The number that a text is, but for dollars around it and a unit behind it."""
    text = " ".join(text.split()).strip("$ ")
    text = re.sub(r"^([-+]) ", r"\1", text)
    match = NUMBER.match(text)
    return _number(match) if match and UNIT.fullmatch(text, match.end()) else None


def _number(match: re.Match[str]) -> Number | None:
    try:
        value = _value(match)
    except (ValueError, ZeroDivisionError):  # thousands of digits, or n/0
        return None
    negative = "-" in (match["sign"], match["sign2"])
    return Number(-value if negative else value, percent=match["percent"] is not None)


def _value(match: re.Match[str]) -> Fraction:
    if match["whole"]:
        return int(match["whole"]) + Fraction(int(match["part"]), int(match["parts"]))
    value = Fraction(match["over"].replace(",", ""))
    return value / Fraction(match["under"].replace(",", "")) if match["under"] else value
