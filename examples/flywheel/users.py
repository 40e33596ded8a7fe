"""Simulated users: they ask for small sums and differences, say whether they like the reply, and correct some of the others."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
from agent import last_number

WRONG = 0.1
"""Share of ratings that are wrong."""
CORRECTED = 0.5
"""Share of disliked replies that users correct."""
AT_ONCE = 4


def question(draw: random.Random) -> tuple[str, str]:
    """A question and its answer."""
    a = draw.randint(1, 9)
    if draw.random() < 0.7:
        b = draw.randint(0, a)
        return f"What is {a} - {b}?", str(a - b)
    b = draw.randint(0, 9 - a)
    return f"What is {a} + {b}?", str(a + b)


def use(url: str, key: str, count: int, seed: int) -> float:
    """Ask so many questions and give feedback on each reply: the share of replies that users like."""
    with ThreadPoolExecutor(AT_ONCE) as users:
        liked = list(users.map(partial(_ask, url, key), [f"{seed}/{n}" for n in range(count)]))
    return sum(liked) / count


def _ask(url: str, key: str, seed: str) -> bool:
    draw = random.Random(seed)
    asked, answer = question(draw)
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
        body = {"model": "agent", "messages": [{"role": "user", "content": asked}], "max_tokens": 16}
        reply = client.post("/v1/chat/completions", json=body).raise_for_status().json()
        likes = last_number(reply["choices"][0]["message"]["content"]) == answer
        says = likes != (draw.random() < WRONG)
        feedback = {"msg_ids": [reply["id"]], "reward": float(says), "task_id": seed, "run_id": "0"}
        if not says and draw.random() < CORRECTED:
            feedback["correction"] = answer
        client.post("/feedback", json=feedback).raise_for_status()
    return likes
