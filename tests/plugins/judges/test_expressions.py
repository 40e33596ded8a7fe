"""What the `math` judge does with answers that are more than a number, and with the ways to write one."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import pytest

from ajet import EpisodeView, Task, WorkflowOutput
from ajet_judges import Math, symbolic
from ajet_judges.numbers import plain_number
from ajet_judges.symbolic import Symbolic
from tests.patience import PATIENCE


def rewards(pairs: list[tuple[str, str]]) -> list[bool]:
    """Whether each (answer, response) is right, by one open judge."""

    async def run() -> list[bool]:
        async with Math().open() as judge:
            found = []
            for answer, response in pairs:
                task = Task("t1", metadata={"answer": answer})
                view = EpisodeView("e", "t1", 0, 0)
                found.append((await judge.judge(task, WorkflowOutput(response=response), view)).reward == 1.0)
            return found

    return asyncio.run(run())


TABLE = [
    # one value, many notations
    ("42", "42.0", True),
    ("1000", "1,000", True),
    ("1,000", "It has 1000 of them.", True),
    (r"\frac{1}{2}", "½", True),
    ("½", r"\frac{1}{2}", True),
    ("0.5", "½", True),
    ("½", "0.5", True),
    ("3½", r"\boxed{\frac{7}{2}}", True),
    ("3.5", "3½ litres", True),
    ("¾", "0.7", False),
    ("1000", "1 000", True),
    ("1000.99", "1000,99 €", True),
    ("1,22", "1.22", True),
    ("1,22", "1.23", False),
    ("3", "1, 2, 3", True),
    ("2", "1, 2, 3", False),
    (r"\frac{1}{2}", "0.5", True),
    (r"\boxed{\frac{1}{2}}", "1/2", True),
    # boxes
    (r"\frac{\sqrt{3}}{2}", r"so $\boxed{\frac{\sqrt{3}}{2}}$", True),
    (r"\frac{\sqrt{3}}{2}", r"so $\boxed{\sqrt{\frac{3}{4}}}$", True),
    (r"\frac{\sqrt{3}}{2}", r"so $\boxed{\frac{\sqrt{3}}{3}}$", False),
    ("7", r"first \boxed{5}, no: \boxed{7}", True),
    ("5", r"first \boxed{5}, no: \boxed{7}", False),
    (r"x^2+1", r"first $\boxed{x^2}$, no: $\boxed{1+x^2}$", True),
    (r"\infty", r"\boxed{\infty}", True),
    (r"\infty", r"\boxed{5}", False),
    (r"\infty", r"\boxed{-\infty}", False),
    (r"(1, \infty)", r"\boxed{(1, -\infty)}", False),
    ("7", "I find no answer.", False),
    (r"\sqrt{2}", "I find no answer.", False),
    (r"\sqrt{2}", "", False),
    ("1024", r"\boxed{2^{10}}", True),
    ("1024", r"\boxed{2^{11}}", False),
    ("4", r"That is $\sqrt{16}$.", True),
    # units and text around
    ("5", r"\boxed{5\text{ cm}}", True),
    ("5 cm", "5 centimetres", True),
    ("12 apples", "There are 12.", True),
    ("The answer is 12.", "12", True),
    ("#### 42", "42", True),
    ("Half of 84 is\n#### 42", "84", False),
    (r"90^\circ", r"\boxed{90}", True),
    ("$1,234.50", "1234.5 dollars", True),
    # expressions
    (r"2\pi", r"The area is $\boxed{2\pi}$.", True),
    (r"2\pi", r"\boxed{2}", False),
    ("x+1", r"$\boxed{1+x}$", True),
    ("2x+3", r"\boxed{3}", False),
    ("2x+3", "3", False),
    # an equation is no number, a number within a formula is not its value
    ("x+2y=5", "5", False),
    ("x+2y=5", "$5=2y+x$", True),
    (r"\boxed{x^2+y^2=4}", "4", False),
    ("a=1, b=6", "6", False),
    ("a=1, b=6", r"$\boxed{b=6, a=1}$", True),
    ("f(2) = 7*6 = 42", "42", True),
    (r"\boxed{\angle ABC = 30^\circ}", "It is 30.", True),
    (r"\boxed{f^{-1}(3) = 5}", "5", True),
    ("3", r"The golden ratio is $\frac{1+\sqrt{7}}{3}$.", False),
    ("3", r"\frac{1+\sqrt{7}}{3}", False),
    ("4", "Everything in $[1,4)$ will do.", False),
    ("2", r"It is \(x^2\).", False),
    ("42", r"\[ 7 \cdot 6 = 42 \]", True),
    ("42", r"\[\begin{aligned} x &= 6 \cdot 7 \\ &= 42 \end{aligned}\]", True),
    ("7", "The apples cost $5 and the pears $7.", True),
    ("7", "He pays $5, $6 and (for two) $7", True),
    ("0,125", "0.125", True),
    # an answer in several boxes
    ("(1,2), (2,1)", r"\boxed{(2,1)} and \boxed{(1,2)}", True),
    (r"\{2,3,5\}", r"$\boxed{2}, \boxed{3}, \boxed{5}$", True),
    (r"\{2,3,5\}", r"$\boxed{2}$, I think, and then $\boxed{3}, \boxed{5}$", False),
    (r"\{2,3,5\}", r"$\boxed{2}, \boxed{3}$", False),
    (r"1\pm\sqrt{2}", r"$\boxed{1-\sqrt{2}} \quad \text{or} \quad \boxed{1+\sqrt{2}}$", True),
    (r"\{1,2,3\}", r"$\boxed{\{3,2,1\}}$", True),
    ("(1,2)", r"$\boxed{(1,2)}$", True),
    ("(1,2)", r"$\boxed{(2,1)}$", False),
    ("[0,1)", r"$\boxed{[0,1)}$", True),
    ("[0,1)", r"$\boxed{[0,1]}$", False),
    (r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", r"$\boxed{\begin{pmatrix}1&0\\0&1\end{pmatrix}}$", True),
    (r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", r"$\boxed{\begin{pmatrix}1&0\\0&2\end{pmatrix}}$", False),
    (r"\text{Tuesday}", r"$\boxed{\text{Tuesday}}$", True),
    (r"\infty", r"$\boxed{\infty}$", True),
    ("x=3", r"$\boxed{3}$", True),
    ("3", r"$\boxed{x=3}$", True),
    ("4", r"$\boxed{x=3, y=4}$", False),
    # powers and products of variables, which are not units
    ("8", r"\boxed{2^3}", True),
    ("2", r"\boxed{2^3}", False),
    ("8", "2^3", True),
    ("10^3", "1000", True),
    ("10^3", r"\boxed{10}", False),
    ("100", r"\boxed{10^{2}}", True),
    ("12 cm^2", "12", True),
    ("12", r"\boxed{12\text{ cm}^2}", True),
    ("5", r"\boxed{5kg}", True),
    ("3", r"\boxed{3pi}", False),
    ("3pi", r"\boxed{3\pi}", True),
    ("2xy", r"\boxed{2}", False),
    ("2xy", r"\boxed{2yx}", True),
    ("6ab^2", r"\boxed{6}", False),
    # nothing but the answer, without delimiters
    ("x^2+1", "x^2+1", True),
    ("x^2+1", "The answer is 1+x^2.", True),
    ("x^2+1", "The answer is x^2.", False),
    ("(1,2)", "(1,2)", True),
    ("[0,1)", "It is\n[0,1)", True),
    (r"\sqrt{2}", r"Answer: \sqrt{2}", True),
    (r"\frac{x}{2}", "x/2", True),
    ("2 hours 30 minutes", "2 hours 30 minutes", True),
    ("9.8 m/s^2", "9.8 m/s^2", True),
    # times and days
    ("3 PM", "3 AM", False),
    ("3 PM", "at 3 p.m.", True),
    ("10 a.m.", "10 p.m.", False),
    ("January 5", "February 5", False),
    ("January 5", "On January 5.", True),
    ("5", "You may take 5.", True),
    ("January 5", "It is Jan. 5", True),
    ("January 5", "It is 5th of Jan.", True),
    ("5 March", "On 5 May.", False),
    ("5 marbles", "In the last decade he lost 5.", True),
    ("5 marbles", "He lost 5 marbles by December.", True),
    ("42", r"$\boxed{\text{Total area} = 42}$", True),
    ("42", r"\boxed{Area = 6*7 = 42}", True),
    # small and large values
    (r"6.63 \times 10^{-34}", r"\boxed{1.05 \times 10^{-34}}", False),
    (r"6.63 \times 10^{-34}", r"so it is $6.63\cdot10^{-34}$ Js", True),
    ("6.63e-34", "6.63×10⁻³⁴", True),
    ("6.63e-34", r"\boxed{\frac{6.63}{10^{34}}}", True),
    ("6.63e-34", r"\boxed{\frac{1.05}{10^{34}}}", False),
    ("0.0000002", r"\boxed{3 \times 10^{-7}}", False),
    (r"\frac{1}{2^{99}}", r"\boxed{\frac{1}{2^{98}}}", False),
    (r"\frac{1}{2^{99}}", r"\boxed{2^{-99}}", True),
    ("6.02e23", r"\boxed{6.02 \times 10^{23}}", True),
    (r"2e-7\pi", r"\boxed{2 \times 10^{-7} \pi}", True),
    (r"2e-7\pi", r"\boxed{3 \times 10^{-7} \pi}", False),
    (r"\{10^{-9}, 1\}", r"\boxed{\{2 \times 10^{-9}, 1\}}", False),
    ("(10^{-9}, 1)", r"\boxed{(2 \times 10^{-9}, 1)}", False),
    (r"10^{-9} x", r"\boxed{3 \cdot 10^{-9} x}", False),
    (r"\sqrt{2}", r"\boxed{1.414214}", True),
    (r"\sqrt{2}", r"\boxed{1.4142}", False),
    ("1.414214", r"\boxed{\sqrt{2}}", False),
    (r"10^6+1", r"\boxed{10^6}", False),
    (r"\frac{3}{4} \times 10^2", r"\boxed{75}", True),
    ("1/2 million", r"\boxed{500000}", True),
    ("5 million", r"\boxed{5}", False),
    ("5,000,000", r"\boxed{5 \text{ million}}", True),
    ("12 hundred", "1200", True),
    (r"0.\overline{3}", r"\boxed{\frac{1}{3}}", True),
    (r"0.1\overline{6}", r"\boxed{\frac{1}{6}}", True),
    (r"0.\overline{3}", r"\boxed{0.3}", False),
    # bases
    ("1010_2", r"\boxed{1010_{10}}", False),
    ("1010_2", r"\boxed{10_{10}}", True),
    ("1010_2", r"\boxed{1010}", True),
    ("1010_{2}", r"\boxed{1011_2}", False),
    # times and ratios
    ("12:30", "The train leaves at 12:30.", True),
    ("12:30", "The train leaves at 12:45.", False),
    ("12:30", "from 12:30 to 2:05", False),
    ("3:00 PM", r"\boxed{3:00 \text{ PM}}", True),
    ("3:00 PM", "at 3:00 a.m.", False),
    ("3:00 PM", "at 15:00", True),
    ("3:00 PM", r"\boxed{3:00}", True),
    ("3:4", "They stand 6:8.", True),
    ("3:1", "They stand 3:4.", False),
    ("3:4", r"\boxed{\frac{3}{4}}", True),
    ("1:2:3", r"\boxed{2:4:6}", True),
    ("4", "the ratio is $3:4$", False),
    ("4", "the ratio is 3:4", False),
    ("4", "Answer:4", True),
    # lists in sentences
    ("2,3,5", "The primes are 2, 3 and 5.", True),
    ("2,3,5", "The primes are 2, 3, and 7.", False),
    ("2,3,5", "The primes are 3, 5.", False),
    ("3 or 4", "x is 4 or 3", True),
    (r"2,3,5", r"\boxed{5, 3 \text{ and } 2}", True),
    # a box that was cut off is the last one
    ("5", r"First \boxed{5}. Wait: \boxed{7", False),
    ("7", r"First \boxed{5}. Wait: \boxed{7", True),
]


@pytest.fixture(scope="module")
def found() -> list[bool]:
    return rewards([(answer, response) for answer, response, _ in TABLE])


@pytest.mark.parametrize("place", range(len(TABLE)), ids=[f"{a} | {r}" for a, r, _ in TABLE])
def test_the_table(found: list[bool], place: int) -> None:
    assert found[place] is TABLE[place][2]


CLASSES = [
    ["1/2", r"\frac{1}{2}", "0.5", r"\dfrac12", r"\frac{2}{4}", r"2^{-1}"],
    ["3", "3.0", r"\sqrt{9}", r"\frac{9}{3}", "1+2"],
    [r"\sqrt{2}", r"2^{1/2}", r"\frac{2}{\sqrt{2}}"],
    ["x^2-1", "(x-1)(x+1)", "-1+x^2"],
    [r"\frac{\pi}{4}", r"\frac{1}{4}\pi", r"0.25\pi"],
    [r"\{4,5\}", r"\{5,4\}"],
    ["(1,2)", "(1, 2)"],
    ["[1,2]"],
    [r"(-\infty,3)", r"(-\infty, 3)"],
    ["2+3i", "3i+2"],
    [r"\log 2", r"\log(2)"],
    ["1000000", "1,000,000", "10^6"],
    [r"\begin{pmatrix}1\\2\end{pmatrix}"],
]


@pytest.mark.slow
def test_it_agrees_with_math_verify_wherever_two_expressions_are_compared() -> None:
    """Notations of equal and of different values, boxed as answers are: what math-verify says of them, asked directly."""
    from math_verify import parse, verify

    texts = [text for same in CLASSES for text in same]
    parsed = {text: parse(rf"$\boxed{{{text}}}$") for text in texts}
    pairs = [
        (gold, answer)
        for i, same in enumerate(CLASSES)
        for gold in same
        for answer in (*same, *CLASSES[i - 1][:2], *CLASSES[i - 4][:1])
    ]
    ours = rewards([(gold, rf"$\boxed{{{answer}}}$") for gold, answer in pairs])
    differ = [
        pair
        for pair, right in zip(pairs, ours, strict=True)
        if right != verify(parsed[pair[0]], parsed[pair[1]])
    ]
    assert not differ
    group = {text: i for i, same in enumerate(CLASSES) for text in same}
    wrong = [p for p, right in zip(pairs, ours, strict=True) if right != (group[p[0]] == group[p[1]])]
    assert not wrong


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", True),
        ("about 42 apples", True),
        ("x = 42", True),
        (r"\boxed{42}", True),
        ("2x+3", False),
        ("2 pi", False),
        (r"\sqrt{2}", False),
        ("(1, 2)", False),
        ("3 or 4", False),
    ],
)
def test_a_reference_is_a_number_only_if_it_is_nothing_more(text: str, number: bool) -> None:
    assert (plain_number(text) is not None) is number


def test_plain_numbers_start_no_process_whether_right_or_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never() -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(symbolic, "_started", never)
    pairs = [
        ("42", "42"),
        ("42", "41"),
        ("42", "I do not know"),
        ("42", ""),
        ("42", r"\boxed{41}"),
        ("42", "17 * 3 = 51"),
    ]
    started = time.process_time()
    assert rewards(pairs * 500) == [True, False, False, False, False, False] * 500
    assert time.process_time() - started < 2.0


@pytest.mark.whole
def test_an_expression_that_takes_for_ever_is_wrong_and_the_next_is_judged() -> None:
    async def run() -> list[float]:
        async with Math(seconds=3.0).open() as judge:
            found = []
            for response in (FOR_EVER, r"$\boxed{\sqrt{2}}$"):
                task = Task("t1", metadata={"answer": r"\sqrt{2}"})
                view = EpisodeView("e", "t1", 0, 0)
                found.append((await judge.judge(task, WorkflowOutput(response=response), view)).reward)
            return found

    started = time.monotonic()
    assert asyncio.run(run()) == [0.0, 1.0]
    assert time.monotonic() - started < 100


@pytest.mark.whole
def test_the_seconds_are_of_the_processor_so_a_busy_machine_changes_no_reward() -> None:
    async def run() -> bool | None:
        judge = Symbolic(2.0)
        assert await judge.equal(r"\sqrt{9}", "$3$")
        (process,) = judge._idle
        process.send_signal(signal.SIGSTOP)
        asyncio.get_running_loop().call_later(2.5, process.send_signal, signal.SIGCONT)
        try:
            return await judge.equal(r"\sqrt{4}", "$2$")
        finally:
            await judge.close()

    assert asyncio.run(run()) is True


@pytest.mark.whole
def test_whatever_a_model_writes_is_judged() -> None:
    responses = ["\\" * 3000, r"\boxed{" * 500, "$" * 3001, r"\frac{" * 400 + "$", "\x00\ud800$x$"]
    assert rewards([(r"\sqrt{2}", response) for response in responses]) == [False] * 5


@pytest.mark.whole
def test_a_question_that_is_cancelled_while_its_process_starts_leaves_no_answer_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = asyncio.create_subprocess_exec

    async def answers() -> list[bool | None]:
        starting = asyncio.Event()

        async def started(*arguments: Any, **options: Any) -> Any:
            process = await start(*arguments, **options)
            starting.set()
            return process

        monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
        judge = Symbolic(30.0)
        first = asyncio.ensure_future(judge.equal(r"\sqrt{2}", r"$\sqrt{2}$"))
        await starting.wait()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        try:
            return [await judge.equal(rf"\sqrt{{{n}}}", r"$\sqrt{2}$") for n in (2, 3, 2)]
        finally:
            await judge.close()

    assert asyncio.run(answers()) == [True, False, True]


# ------------------------------------------------------------------ long answers

FOR_EVER = r"$\boxed{9^{9^{9^{9^9}}}-9^{9^{9^9}}}$"
LONG = {
    "an open box and braces": r"\boxed{" + "{" * 80_000,
    "a box of braces": r"\boxed{" + "{" * 40_000 + "}" * 40_000 + "}",
    "boxes": r"\boxed{" * 11_000,
    "an open fraction and spaces": r"\frac{" + " " * 40_000,
    "a fraction with room": (r"\frac{1}" + " " * 500) * 80,
    "digits": "1" * 80_000,
    "numbers": "1 1/1, " * 11_000,
    "powers": "x^{-" * 20_000,
    "letters": "x " * 40_000 + "=",
    "dollars": "$1" * 40_000,
    "signs": "-" * 80_000,
    "exponents": "1e1" * 27_000,
    "lists": "1, 2 and " * 9_000 + "x",
    "lists of commas": "1," * 40_000 + "x",
    "colons": "1:" * 40_000 + "x",
    "times": r"1 \times 10^{" * 6_000,
}


@pytest.mark.parametrize("name", LONG)
def test_80_kilobytes_hold_the_loop_no_longer_than_a_short_answer(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What is left to math-verify is done in another process, under the deadline."""

    async def later(self: Symbolic, gold: str, answer: str, **_: Any) -> bool:
        assert len(answer) < 21_000
        return False

    monkeypatch.setattr(Symbolic, "equal", later)
    spent = time.process_time()
    golds = ("17", r"\sqrt{2}", "2,3,5", "12:30")
    assert rewards([(gold, LONG[name]) for gold in golds]) == [False] * 4
    assert time.process_time() - spent < 2.0, "0.1 seconds of processor time on a fast machine"


def test_the_end_of_a_long_answer_counts() -> None:
    ramble = "so x = 3, hence maybe 5. " * 4_000
    assert rewards(
        [("17", rf"{ramble}\boxed{{17}}"), ("17", rf"\boxed{{17}}{ramble}"), ("17", f"{ramble} So 17.")]
    ) == [True, False, True]


@pytest.mark.whole
def test_an_answer_that_takes_for_ever_does_not_hold_up_others() -> None:
    async def run() -> tuple[bool | None, bool]:
        judge = Symbolic(3600.0)
        slow = asyncio.ensure_future(judge.equal(r"\sqrt{2}", FOR_EVER))
        try:
            quick = await asyncio.wait_for(judge.equal(r"\sqrt{2}", r"$\sqrt{2}$"), PATIENCE)
            return quick, slow.done()
        finally:
            slow.cancel()
            await asyncio.gather(slow, return_exceptions=True)
            await judge.close()

    assert asyncio.run(run()) == (True, False)
