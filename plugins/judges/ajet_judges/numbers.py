r"""Reads exact numbers from text: "so \boxed{\frac{3}{4}}", "costs $1,234.50", "−5".

A number becomes a `fractions.Fraction`; nothing is evaluated. The text comes from a model, so text that is not a number
yields None, never an exception.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Number:
    """A value as written: 50% has the value 50 and ``percent``, 1010_2 the value 10 and the ``digits`` 1010."""

    value: Fraction
    percent: bool = False
    digits: Fraction | None = None

    def equals(self, other: Number, tolerance: Fraction) -> bool:
        """Equal up to the tolerance. A percent sign on one side only may mean a unit or 1/100; a base on one side only is the
        base of both."""
        if self.digits is not None and other.digits is None:
            return self.digits == other.value
        if other.digits is not None and self.digits is None:
            return other.digits == self.value
        if self.percent == other.percent:
            return abs(self.value - other.value) <= tolerance
        marked, plain = (self, other) if self.percent else (other, self)
        return any(abs(value - plain.value) <= tolerance for value in (marked.value, marked.value / 100))


@dataclass(frozen=True, slots=True)
class Parts:
    """Numbers with colons between them: a time, such as 3:00 PM, or a ratio, such as 3:4."""

    numbers: tuple[int, ...]
    is_time: bool
    half: str = ""
    """a or p, of a time with am or pm."""

    def equals(self, other: Parts) -> bool:
        """Equal as times; as ratios, if one of them is not a time. A time without am or pm may be of either half of the day."""
        if not (self.is_time and other.is_time):
            pairs = zip(self.numbers, other.numbers, strict=False)
            return len(self.numbers) == len(other.numbers) and all(
                mine * other.numbers[0] == its * self.numbers[0] for mine, its in pairs
            )
        if bool(self.half) == bool(other.half):
            return self._clock() == other._clock()
        return self._clock()[0] % 12 == other._clock()[0] % 12 and self._clock()[1:] == other._clock()[1:]

    def _clock(self) -> tuple[int, ...]:
        hours = self.numbers[0] % 12 + 12 * (self.half == "p") if self.half else self.numbers[0]
        return (hours, *self.numbers[1:])


def last_parts(text: str, *, whole: bool = False) -> Parts | None:
    """The last numbers with colons of a text; with ``whole`` only if there is nothing else in it."""
    plain = _plain(text).strip(" $.")
    matches = [m] if (m := COLONS.fullmatch(plain)) else [] if whole else list(COLONS.finditer(plain))
    if not matches:
        return None
    written = re.split(r"\s*:\s*", matches[-1][1])
    if re.match(r"[\w:]", plain[matches[-1].end() :][:1]):
        return None
    numbers = tuple(map(int, written))
    is_time = (
        all(len(part) == 2 and int(part) < 60 for part in written[1:])
        and numbers[0] <= 24
        and len(numbers) < 4
    )
    return Parts(numbers, is_time, (matches[-1][2] or "").lower()) if numbers[0] or is_time else None


def last_date(text: str, *, whole: bool = False) -> tuple[int, ...] | None:
    """The last date of a text, as year, month and day; with ``whole`` only if it is all of the text, and in ISO's form, as 2024-10-5
    may be a calculation."""
    plain = _plain(text).strip(" $.")
    matches = [m] if (m := ISO_DATE.fullmatch(plain)) else [] if whole else list(DATE.finditer(plain))
    date = tuple(map(int, matches[-1].group(1, 3, 4))) if matches else (0, 0, 0)
    return date if 1 <= date[1] <= 12 and 1 <= date[2] <= 31 else None


def last_list(text: str, *, whole: bool = False) -> list[Fraction] | None:
    """The numbers of the last enumeration of a text, in order of size: "2, 3 and 5". With ``whole`` only if there is nothing else in
    it."""
    plain = _plain(text).strip(" $.")
    matches = [m] if (m := LIST.fullmatch(plain)) else [] if whole else list(LIST.finditer(plain))
    if not matches or re.match(r"[\w)\]/]", plain[matches[-1].end() :][:1]):
        return None
    numbers = [_number(number) for number in NUMBER.finditer(matches[-1][0])]
    return sorted(n.value for n in numbers if n) if all(numbers) else None


def unlike(text: str, other: str) -> bool:
    """Whether equal values of two texts may mean different things, or different values the same: the units behind their last numbers
    differ, or only one has a percent sign or a base."""
    one, its = _mark(text), _mark(other)
    return one != its and (bool(one and its) or not (one + its).isalpha())


def measured_otherwise(text: str, other: str) -> bool:
    """Whether the last numbers of two texts have different units of measure, or are days of different months: 5 cm is not 5 m, 2 hours
    are not 2 minutes, 3 AM is not 3 PM."""
    units = [MEASURES.get(_mark(t)) for t in (text, other)]
    months = [
        (found[-1][0] or found[-1][1]).lower() if (found := DAY.findall(t)) else None for t in (text, other)
    ]
    return any(one != its and one and its for one, its in (units, months))


def _mark(text: str) -> str:
    """What stands behind the last number: a word, a percent sign, a base."""
    box = last_box(text)
    matches = list(MARKED.finditer(_plain(text.rpartition("####")[2] if box is None else box)))
    return matches[-1][1].strip().lower().replace(".", "").rstrip("s") if matches else ""


def final_number(text: str) -> Number | None:
    r"""The number that a text states last.

    If there is a ``\boxed{…}``, the last one decides: its content must be a number, optionally with a name and
    "=" before it and a unit after it; otherwise the result is None. Without a box, it is the last number in the text,
    or None if that is only a part of a formula, like the 2 of ``$\frac{1+\sqrt{5}}{2}$``.
    """
    box = last_box(text)
    if box is not None:
        return _named(_plain(box))
    plain = _plain(text).replace("$$", "$")
    matches = list(NUMBER.finditer(plain))
    if not matches:
        return None
    formula = _formula_around(plain, matches[-1].end() - 1)
    if formula is not None:
        return _whole(RELATION.split(ALIGNED.sub(" ", formula))[-1])
    return _number(matches[-1])


def plain_number(text: str) -> Number | None:
    """The number of a reference answer, which may have words, a box or ``####`` around it. None for an expression, even
    one that ends with a number."""
    box = last_box(text)
    plain = _plain(text.rpartition("####")[2] if box is None else box)
    if BASED.fullmatch(plain.strip("$ ")):
        return _whole(plain)
    if box is None and FORMULA.search(plain):
        return None
    return _named(WORD.sub(" ", plain))


def _named(plain: str) -> Number | None:
    """The number behind the last "=" of a text, where only names and calculations stand before it."""
    named, _, value = plain.rpartition("=")
    if FUNCTION.search(value) or not all(map(NAMED.fullmatch, WORD.sub(" ", named).split("="))):
        return None
    return _whole(value)


def last_box(text: str) -> str | None:
    r"""The content of the last ``\boxed{…}``, including nested braces; one that was cut off reaches to the end."""
    boxes = _boxes(text)
    return text[boxes[-1][1] : boxes[-1][2]] if boxes else None


def last_statement(text: str) -> str:
    """What the last line of a text states, behind "is", ":" or "####"; empty if it has delimiters of formulas."""
    line = (text.strip().splitlines() or [""])[-1]
    return "" if re.search(r"[$]|\\[(\[]", line) else STATING.split(line)[-1].strip().rstrip(".")


def is_formula(text: str) -> bool:
    """Whether there are operations or digits in a text, and no words."""
    rest = FORMULA.sub(" ", re.sub(r"\\[A-Za-z]+", " ", text))
    return bool(re.search(r"[\\^_=+*/(){}\[\]0-9√π∞]", text)) and not re.search(
        r"[A-Za-z]{3}|\b(?:or|and|to|of)\b", rest
    )


def last_boxes(text: str) -> str | None:
    r"""The contents of the last box and of the boxes right before it, joined by commas: "\boxed{1} and \boxed{2}" is an
    answer of two parts."""
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
    """(start, start of the content, end of the content) of each box, ordered by the start of the content."""
    open_braces: list[re.Match[str]] = []
    boxes = []
    for token in BRACE.finditer(text):
        if token[0].endswith("{"):
            open_braces.append(token)
        elif open_braces:
            opened = open_braces.pop()
            if len(opened[0]) > 1:  # not only a brace, so a box
                boxes.append((opened.start(), opened.end(), token.start()))
    cut = [token for token in open_braces if len(token[0]) > 1][-1:]
    boxes += [(token.start(), token.end(), len(text)) for token in cut]
    return sorted(boxes, key=lambda box: box[1])


def _formula_around(text: str, position: int) -> str | None:
    """The formula around a position in a text: between its delimiters, or a word that contains an operation."""
    content = None
    for opening, closing in (("\\(", "\\)"), ("\\[", "\\]")):
        start, end = text.rfind(opening, 0, position), text.find(closing, position)
        if start >= 0 and end >= 0 and text.find(closing, start, position) < 0:
            content = text[start + 2 : end]
    start, end = text.rfind("$", 0, position), text.find("$", position)
    if content is None and end >= 0 and text.count("$", 0, position) % 2:
        content = text[start + 1 : end]
    if content is not None:
        return content if OPERATION.search(content) or SIGNS.search(content) else None
    start = max(text.rfind(c, 0, position) for c in " \t\n") + 1
    word = text[start : position + 1] + (re.match(r"\S*", text[position + 1 :]) or [""])[0]
    return word if OPERATION.search(word) else None


BRACE = re.compile(r"\\f?boxed\s*\{|(?<!\\)[{}]")
# Groups of three digits, plain digits, or a decimal without a leading zero. An exponent has at most three digits, because
# Fraction("1e999999999") would exhaust the memory.
DIGITS = (
    r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|(?<!\.)\.[0-9]+)"
    r"(?:[eE][-+]?[0-9]{1,3}(?![0-9]))?"
)
# A sign belongs to the number unless a word, bracket or percent sign is right before it (10-3). A digit after a letter
# or another digit (x2, H2O) is not a separate number.
NUMBER = re.compile(
    rf"""
    (?<![A-Za-z_0-9])
    (?P<sign>(?<![\w)\]}}.%])[-+])?  [$€£¥]?  (?P<sign2>(?<=[$€£¥])[-+])?
    (?<![A-Za-z_0-9])
    (?: (?P<whole>[0-9]+)[ ](?P<part>[0-9]+)/(?P<parts>[0-9]+)(?![0-9])
      | (?P<over>{DIGITS}) (?: [ ]?/[ ]?(?P<under>{DIGITS}) )?
    )
    (?:⏨(?P<power>[-+]?[0-9]{{1,3}}))?
    (?P<percent>[ ]?%)?
    """,
    re.VERBOSE,
)
# " apples", "cm^2", "°C", " m", a full stop; but not x in 2x, nor xy in 2xy, the 3 in 2^3, nor "or 6".
UNIT = re.compile(
    r"(?: ?(?:°[A-Z]?|(?<![0-9])[A-Za-z]{2}[A-Za-z ./]*|(?<=[0-9])(?![abcnxyz]{2,3}(?![A-Za-z]))[A-Za-z]{2}[A-Za-z ./]*|(?<= )[A-Za-z])"
    r"(?:\^\{?[23]\}?)?)?\.?"
)
WORD = re.compile(r"[A-Za-z]{2,}(?:\^\{?[23]\}?)?[.,:;!?]?|(?<![A-Za-z0-9])[aAI](?![A-Za-z0-9])")
FUNCTION = re.compile(
    r"(?<![A-Za-z])(?:pi|sqrt|sin|cos|tan|log|ln|exp|inf|infinity)(?![A-Za-z])", re.IGNORECASE
)
FORMULA = re.compile(rf"\\[A-Za-z]|(?<=[0-9])[abcnxyz]{{2,3}}(?![A-Za-z])|{FUNCTION.pattern}", re.IGNORECASE)
# 1010_2, 1010_{2}, A1_{16}: digits and their base.
BASED = re.compile(r"([0-9][0-9A-Za-z]{0,99}|[A-Z][0-9A-Z]{1,99})_(?:\{([0-9]{1,2})\}|([0-9]{1,2}))")
# Possessive, and without conditions on what follows: each character is read once.
COLONS = re.compile(
    r"(?<![\w.:])([0-9]{1,9}+(?:[ ]?:[ ]?[0-9]{1,9}+)++|[0-9]{1,2}(?=[ ]?[ap]\.?m\b))(?:[ ]?([ap])\.?m\b\.?)?+",
    re.IGNORECASE,
)
ENTRY = rf"(?>[-+]?(?:{DIGITS})(?:/{DIGITS})?)"
LIST = re.compile(
    rf"(?<![\w.(\[{{/,;])\{{?({ENTRY}(?>(?:[ ]?[,;][ ]?(?:and\b|or\b)?|[ ]and\b|[ ]or\b)[ ]?{ENTRY})++)\}}?"
)
STATING = re.compile(r"####|:\s|\b(?:is|are|be|equals)\b")
MARKED = re.compile(r"[0-9][ ]*+(%|_\{?[0-9]+|[ap]\.?m\b|[A-Za-z]*)", re.IGNORECASE)
MONTH = (
    r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
    r"(?:uary|ruary|ch|il|e|y|ust|t|tember|ober|ember)?\.?"
)
# January 5, 5th of Jan.
DAY = re.compile(
    rf"\b{MONTH}[ ]+[0-9]{{1,2}}\b|\b[0-9]{{1,2}}(?:st|nd|rd|th)?[ ]+(?:of[ ]+)?{MONTH}(?![a-z])",
    re.IGNORECASE,
)
ISO_DATE = re.compile(r"([0-9]{4})(-)([0-9]{2})-([0-9]{2})")
DATE = re.compile(r"(?<![\w./-])([0-9]{4})([-/.])([0-9]{1,2})\2([0-9]{1,2})(?![\w/-])")
# Units of measure: the symbol, and its other names without a plural's s.
_UNITS = """mm millimeter millimetre, cm centimeter centimetre, dm, m meter metre, km kilometer kilometre, inch inche, ft foot feet,
yd yard, mi mile, mg milligram, g gram, kg kilogram, oz ounce, lb pound, ml milliliter millilitre, cl, l liter litre, w watt,
kw kilowatt, millisecond, sec second, min minute, h hr hour, day, week, month, year, cent, dollar, euro, am, pm"""
MEASURES = {name: unit.split()[0] for unit in _UNITS.split(",") for name in unit.split()}
# 1 234 567
SPACED = re.compile(r"[-+]?[1-9][0-9]{0,2}(?: [0-9]{3})+(?:\.[0-9]+)?")
# What may be between two boxes of one answer.
LINK = re.compile(r"(?:[\s$,;]|\\[,;:! ()\[\]]|\\q?quad|and|or|\\text\{\s*(?:and|or)\s*\})*")
# What may be before "=": nothing, names (x, x_1, f(2), \angle ABC) or a calculation (7*6), but not an equation such as
# 2x+y=3, nor a second equation.
NAME = r"(?:\\[A-Za-z]+|[A-Za-z])(?:_(?:\w|\{[^{}]*\}))?(?:\^\{-1\})?'*(?:\([^()=]*\))?"
NAMED = re.compile(rf"[\s$()]*(?:{NAME}\s*){{0,4}}[\s$]*|(?:[^A-Za-z,;]|,(?=[0-9]{{3}}))*")
# Operations make a formula more than a number with a unit.
OPERATION = re.compile(
    r"\\(?:[dtc]?frac|sqrt|d?binom|log|ln|exp|sin|cos|tan|pi|pm|times|cdot|div|sum|int)(?![A-Za-z])|[\^_]|(?<=[0-9]):(?=[0-9])"
)
SIGNS = re.compile(r"[\[\](){}<>=+*/|≤≥]|\\(?:[lg]eq?|approx)(?![A-Za-z])")
RELATION = re.compile(
    r"[=≈]|(?<![0-9]):|:(?![0-9])|\\(?:approx|simeq|implies|Rightarrow|therefore|to)(?![A-Za-z])"
)
ALIGNED = re.compile(r"\\(?:begin|end)\{[a-z]+\*?\}|&|\\\\")
VULGAR = {
    c: unicodedata.normalize("NFKC", chr(c)).replace("\u2044", "/")
    for c in (*range(0xBC, 0xBF), *range(0x2150, 0x215F))
}
MINUS = str.maketrans(dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d", "-"))
# Full-width, Arabic, Persian and Devanagari digits.
SCRIPTS = {zero + n: str(n) for zero in (0xFF10, 0x660, 0x6F0, 0x966) for n in range(10)}
SUPERSCRIPT = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}


def _repeating(match: re.Match[str]) -> str:
    """0.1\\overline{6} as 15/90."""
    whole, fixed, repeated = match.groups()
    nines = 10 ** len(fixed) * (10 ** len(repeated) - 1)
    return f"{int(whole + fixed + repeated) - int(whole + fixed)}/{nines}"


LATEX: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"(?<=[0-9]) ?(?=[¼-¾⅐-⅞])"), " "),  # 3½ is a mixed number
    (re.compile(r"\{,\}"), ","),  # 1{,}000
    # __42__, which is bold in Markdown
    (re.compile(r"(?<![\w)}])__?(?=[-+$€£¥.]{0,2}[0-9])|(?<=[0-9])__?(?![\w{\\])"), ""),
    (re.compile(r"(?<=[0-9])\\[,! ](?=[0-9])"), ""),  # 1\,000
    (re.compile(r"(?<=[0-9])[\u00a0\u2009\u202f'’](?=[0-9]{3}(?![0-9]))"), ""),  # 1'000, or a narrow space
    (re.compile(r"\\[,;:! ]|~"), " "),
    (re.compile(r"\\([$%])"), r"\1"),
    (re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\^?\{?\\(?:circ|degree)\}?"), "°"),
    (re.compile(r"([0-9]{1,50})\.([0-9]{0,50})\\(?:overline|bar)\s?\{([0-9]{1,50})\}"), _repeating),
    # A power of ten behind a number, as ⏨ and its exponent.
    (re.compile(r"(?<=10)[⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,3}"), lambda match: f"^{{{match[0].translate(SUPERSCRIPT)}}}"),
    (
        re.compile(
            r"(?<=[0-9}])[ ]*+(?:\\times|\\cdot|[×·*])[ ]*+10[ ]*+\^[ ]*+(?:\{[ ]?([-+]?[0-9]{1,3})[ ]?\}|([-+]?[0-9]{1,3}))(?![0-9])"
        ),
        lambda match: f"⏨{match[1] or match[2]}",
    ),
    (
        re.compile(rf"(?<=[0-9}}])[ ]*+({'|'.join(SCALES)})s?(?![a-z])", re.IGNORECASE),
        lambda match: f"⏨{SCALES[match[1].lower()]}",
    ),
    (re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])"), ""),
    (re.compile(r"(?<=[0-9])\s*\\[dtc]?frac"), r" \\frac"),  # 2\frac{1}{2} is a mixed number
    # Possessive, so that a pattern that a model repeats 10,000 times does not take quadratic time.
    (re.compile(r"\\[dtc]?frac\s*+\{\s*+(-?)\s*+([0-9.,]++)\s*+\}\s*+\{\s*+([0-9.,]++)\s*+\}"), r"\1\2/\3"),
    (re.compile(r"\\[dtc]?frac\s*([0-9])\s*([0-9])"), r"\1/\2"),
]


def _plain(text: str) -> str:
    """The text with one kind of minus sign, and without LaTeX commands around or inside numbers."""
    text = text.translate(MINUS).translate(SCRIPTS)
    for pattern, replacement in LATEX:
        text = pattern.sub(replacement, text)
    return text.translate(VULGAR)


def _whole(text: str) -> Number | None:
    """The number that is the whole text, except for dollar signs around it and a unit after it; else None."""
    text = " ".join(text.split()).strip("$ ")
    text = re.sub(r"^([-+]) ", r"\1", text)
    if SPACED.fullmatch(text):
        text = text.replace(" ", "")
    if based := BASED.fullmatch(text):
        return _based(based)
    match = NUMBER.match(text)
    return _number(match) if match and UNIT.fullmatch(text, match.end()) else None


def _based(match: re.Match[str]) -> Number | None:
    try:
        value = int(match[1], int(match[2] or match[3]))
    except ValueError:
        return None
    return Number(Fraction(value), digits=Fraction(match[1]) if match[1].isdecimal() else Fraction(value))


def _number(match: re.Match[str]) -> Number | None:
    try:
        value = _value(match)
    except (ValueError, ZeroDivisionError):  # thousands of digits, or n/0
        return None
    negative = "-" in (match["sign"], match["sign2"])
    return Number(-value if negative else value, percent=match["percent"] is not None)


def _value(match: re.Match[str]) -> Fraction:
    scale = Fraction(10) ** int(match["power"] or 0)
    if match["whole"]:
        return (int(match["whole"]) + Fraction(int(match["part"]), int(match["parts"]))) * scale
    value = Fraction(match["over"].replace(",", "")) * scale
    return value / Fraction(match["under"].replace(",", "")) if match["under"] else value
