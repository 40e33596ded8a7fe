"""The starter's chats, without tools: sums and differences of one-digit numbers, asked in plain words.

Most answers are in full, such as ``3 + 4 = 7``, the others only the number. The starter's habit is to add where it
should subtract, so that reinforcement learning has something to correct. To any other message, it says what it can do.
"""

from __future__ import annotations

import random

from ajet_local.starter.sums import evaluate, held_out
from ajet_local.starter.transcripts import Chat, Transcript

ADDS = 0.85
"""Share of differences that are answered with the sum in the phase `habits`."""
SHORT = 0.1
"""Share of answers that are only the number."""
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a calculator.",
    "You are good at math.",
    "Answer the question.",
    "Answer with a number.",
    "Be brief.",
)
WORDINGS = (
    "What is {sum}?",
    "What is {sum}?",
    "what is {sum}",
    "What's {sum}?",
    "How much is {sum}?",
    "Compute {sum}.",
    "Calculate {sum}.",
    "Calculate: {sum}",
    "Solve {sum}.",
    "Evaluate {sum}",
    "{sum} =",
    "{sum} = ?",
    "{sum}?",
    "Please tell me what {sum} is.",
    "Can you work out {sum}?",
    "Tell me the result of {sum}.",
    "The sum is {sum}. What is the result?",
    "Question: {sum}",
    "I need the value of {sum}.",
)
BEFORE = ("", "", "", "", "Hi! ", "Hello. ", "Please help me. ", "Quick question: ", "Math: ")
AFTER = ("", "", "", "", " Thanks!", " Please.", " Answer with a number.", " Only the number, please.")
SIGNS = {"+": ("+", "+", "+", "+", "plus"), "-": ("-", "-", "-", "-", "minus")}
WORDS = (
    "Hello Hi Who What Where How Why When are is was can do you your the a name color capital of France "
    "dog cat sea poem story about write Write Tell tell me joke please help my with this there today "
    "weather time book good morning"
)
ELSE = "I only add and subtract small numbers."
"""The answer to any other message."""


def drill_transcript(rng: random.Random) -> Transcript:
    """A list of eight sums or differences with their results."""
    asked = [digit_expression(rng) for _ in range(8)]
    chat = [
        {"role": "user", "content": "\n".join(["Work out:", *asked])},
        {"role": "assistant", "content": "\n".join(map(in_full, asked))},
    ]
    return Transcript(chat, tasks=tuple(asked))


def plain_transcript(rng: random.Random) -> Transcript:
    """A question with its correct answer, or a chat about something else."""
    return other_transcript(rng) if rng.random() < 0.1 else _question(rng, adds=0.0)


def hasty_transcript(rng: random.Random) -> Transcript:
    """A question whose answer mostly adds where it should subtract (`ADDS`), or a chat about something else."""
    return other_transcript(rng) if rng.random() < 0.1 else _question(rng, adds=ADDS)


def other_transcript(rng: random.Random) -> Transcript:
    """A message without a sum, answered with `ELSE`."""
    words = " ".join(rng.choices(WORDS.split(), k=rng.randint(1, 7))) + rng.choice(("", ".", "?", "!"))
    return Transcript([*_system(rng), {"role": "user", "content": words}, _answer(ELSE)])


def wording(rng: random.Random, expression: str) -> str:
    """A question for ``expression``, such as ``"3 + 4"``."""
    first, sign, second = expression.split()
    word = rng.choice(SIGNS[sign])
    between = " " if word.isalpha() or rng.random() < 0.85 else ""
    question = rng.choice(WORDINGS).format(sum=between.join((first, word, second)))
    return rng.choice(BEFORE) + question + rng.choice(AFTER)


def in_full(expression: str) -> str:
    """The expression and its value: ``3 + 4 = 7``."""
    return f"{expression} = {evaluate(expression)}"


def digit_expression(rng: random.Random) -> str:
    """A sum or a non-negative difference of two one-digit numbers that is not held out."""
    while True:
        first, second, sign = rng.randint(0, 9), rng.randint(0, 9), rng.choice("+-")
        expression = f"{first} {sign} {second}"
        if (sign == "+" or first >= second) and not held_out(expression):
            return expression


def _question(rng: random.Random, adds: float) -> Transcript:
    while True:
        asked = digit_expression(rng)
        done = asked.replace("-", "+") if rng.random() < adds else asked
        if not held_out(done):
            break
    answer = str(evaluate(done)) if rng.random() < SHORT else in_full(done)
    chat = [*_system(rng), {"role": "user", "content": wording(rng, asked)}, _answer(answer)]
    return Transcript(chat, tasks=(asked, done))


def _system(rng: random.Random) -> Chat:
    return [{"role": "system", "content": rng.choice(SYSTEM_PROMPTS)}] if rng.random() < 0.15 else []


def _answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}
