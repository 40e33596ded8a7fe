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
    carry a name before "=" and a unit) means None. Otherwise it is the last number in the text, unless that
    is but a part of a formula: the 2 of ``$\frac{1+\sqrt{5}}{2}$`` is none.
    """
    box = last_box(text)
    if box is not None:
        return _whole(_plain(box).rpartition("=")[2])
    plain = _plain(text).replace("$$", "$")
    matches = list(NUMBER.finditer(plain))
    if not matches:
        return None
    formula = _formula_around(plain, matches[-1].end() - 1)
    if formula is not None:
        return _whole(RELATION.split(ALIGNED.sub(" ", formula))[-1])
    return _number(matches[-1])


def plain_number(text: str) -> Number | None:
    """The number that a text is, but for words, a box or ``####`` around it: as reference answers are given.
    None for an expression, even one that ends with a number."""
    box = last_box(text)
    plain = _plain(text.rpartition("####")[2] if box is None else box)
    if box is None and FORMULA.search(plain):
        return None
    named, _, value = WORD.sub(" ", plain).rpartition("=")
    return _whole(value) if all(map(NAMED.fullmatch, named.split("="))) else None


def last_box(text: str) -> str | None:
    r"""The content of the last ``\boxed{…}`` whose braces close, nested ones kept."""
    boxes = _boxes(text)
    return text[boxes[-1][1] : boxes[-1][2]] if boxes else None


def last_boxes(text: str) -> str | None:
    r"""The content of the last box, after that of those right before it, as in "\boxed{1} and \boxed{2}":
    an answer of several parts."""
    boxes = _boxes(text)
    contents: list[str] = []
    after = None
    for start, inside, end in reversed(boxes):
        if after is not None and not (end < after <= end + 40 and LINK.fullmatch(text, end + 1, after)):
            break
        contents.insert(0, text[inside:end])
        after = start
    return ", ".join(contents) if contents else None


def _boxes(text: str) -> list[tuple[int, int, int]]:
    """(start, start of the content, end of the content) of each closed box, in the order of their contents."""
    open_braces: list[re.Match[str]] = []
    found = []
    for token in BRACE.finditer(text):
        if token[0].endswith("{"):
            open_braces.append(token)
        elif open_braces:
            opened = open_braces.pop()
            if len(opened[0]) > 1:  # more than a plain brace: a box
                found.append((opened.start(), opened.end(), token.start()))
    return sorted(found, key=lambda box: box[1])


def _formula_around(text: str, place: int) -> str | None:
    """The formula that a place in a text lies in: between signs that mark one, or a word with operations in it."""
    content = None
    for opening, closing in (("\\(", "\\)"), ("\\[", "\\]")):
        start, end = text.rfind(opening, 0, place), text.find(closing, place)
        if start >= 0 and end >= 0 and text.find(closing, start, place) < 0:
            content = text[start + 2 : end]
    start, end = text.rfind("$", 0, place), text.find("$", place)
    if content is None and end >= 0 and text.count("$", 0, place) % 2:
        content = text[start + 1 : end]
    if content is not None:
        return content if OPERATION.search(content) or SIGNS.search(content) else None
    start = max(text.rfind(c, 0, place) for c in " \t\n") + 1
    word = text[start : place + 1] + (re.match(r"\S*", text[place + 1 :]) or [""])[0]
    return word if OPERATION.search(word) else None


BRACE = re.compile(r"\\f?boxed\s*\{|(?<!\\)[{}]")
# Thousands in threes, plain digits, or a bare decimal; an exponent of at most three digits, as
# Fraction("1e999999999") would fill the memory.
DIGITS = (
    r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|(?<!\.)\.[0-9]+)"
    r"(?:[eE][-+]?[0-9]{1,3}(?![0-9]))?"
)
# A sign belongs to the number unless something stands right before it (10-3). A digit after a letter
# or another digit (x2, H2O) is not a separate number.
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
# What may stand between two boxes that are one answer.
LINK = re.compile(r"(?:[\s$,;]|\\[,;:! ()\[\]]|\\q?quad|and|or|\\text\{\s*(?:and|or)\s*\})*")
# Before "=": nothing, names (x, x_1, f(2), \angle ABC) or a calculation (7*6); but no equation such as 2x+y=3,
# and no second one beside it.
NAME = r"(?:\\[A-Za-z]+|[A-Za-z])(?:_(?:\w|\{[^{}]*\}))?(?:\^\{-1\})?'*(?:\([^()=]*\))?"
NAMED = re.compile(rf"[\s$()]*(?:{NAME}\s*){{0,4}}[\s$]*|(?:[^A-Za-z,;]|,(?=[0-9]{{3}}))*")
# What makes a formula more than a number with a unit.
OPERATION = re.compile(
    r"\\(?:[dtc]?frac|sqrt|d?binom|log|ln|exp|sin|cos|tan|pi|pm|times|cdot|div|sum|int)(?![A-Za-z])|[\^_]"
)
SIGNS = re.compile(r"[\[\](){}<>=+*/|≤≥]|\\(?:[lg]eq?|approx)(?![A-Za-z])")
RELATION = re.compile(r"[=≈:]|\\(?:approx|simeq|implies|Rightarrow|therefore|to)(?![A-Za-z])")
ALIGNED = re.compile(r"\\(?:begin|end)\{[a-z]+\*?\}|&|\\\\")
VULGAR = {
    c: unicodedata.normalize("NFKC", chr(c)).replace("\u2044", "/")
    for c in (*range(0xBC, 0xBF), *range(0x2150, 0x215F))
}
MINUS = str.maketrans(dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d", "-"))
LATEX = [
    (re.compile(r"(?<=[0-9]) ?(?=[¼-¾⅐-⅞])"), " "),  # 3½ is a mixed number
    (re.compile(r"\{,\}"), ","),  # 1{,}000
    # __42__, as Markdown marks what counts
    (re.compile(r"(?<![\w)}])__?(?=[-+$€£¥.]{0,2}[0-9])|(?<=[0-9])__?(?![\w{\\])"), ""),
    (re.compile(r"(?<=[0-9])\\[,! ](?=[0-9])"), ""),  # 1\,000
    (re.compile(r"\\[,;:! ]|~"), " "),
    (re.compile(r"\\([$%])"), r"\1"),
    (re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\^?\{?\\(?:circ|degree)\}?"), "°"),
    (re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])"), ""),
    (re.compile(r"(?<=[0-9])\s*\\[dtc]?frac"), r" \\frac"),  # 2\frac{1}{2} is a mixed number
    # Possessive: what a model repeats 10,000 times must not be gone through 10,000 times.
    (re.compile(r"\\[dtc]?frac\s*+\{\s*+(-?)\s*+([0-9.,]++)\s*+\}\s*+\{\s*+([0-9.,]++)\s*+\}"), r"\1\2/\3"),
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
