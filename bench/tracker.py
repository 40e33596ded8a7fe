"""Measures what merging saves and costs: rows, tokens and CPU of timelines and token trees on call logs.

    python bench/tracker.py

Rows and tokens are compared with optima that the tests' independent checker computes from the raw log; it also counts
tokens that are lost, doubled or out of context. CPU is compared in the same run with a merger that compares message lists
pairwise, and with a floor: a radix tree that records nothing. If the floor is too slow relative to the merger, the
ratios would look better than they are, so the benchmark fails. Each call renders its chat and compares it with the
earlier prompt; this is compared with transformers' rendering alone, and with parsing the request's JSON. Last line: one
JSON object.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib.resources
import json
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from call_logs import (
    SCENARIOS,
    WORDS,
    Log,
    LoggedCall,
    generations,
    grow,
    make_log,
    mixed,
    recorded,
    versions,
)

from ajet.chat.messages import normalise
from ajet.chat.renderer import Chat, Turn
from ajet.chat.template import given
from ajet.tracker.call import Call, new_root, recognise
from ajet.tracker.forest import forest
from ajet.tracker.prompt import make_prompt
from ajet.tracker.record import EpisodeRecord
from ajet.tracker.timelines import timelines
from ajet.types import Generation

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests import templates
from tests.tracker.checker import RawCall, distinct_prefixes, judge_forest, judge_timelines, maximal

FLOOR_SHARE = 250
"""The radix floor must be this many times as fast as the pairwise merger, …"""
TOLERANCE = 1.3
"""… within this factor."""
SIZES = (10, 100, 1000, 5000)
REPETITIONS = 7
PATIENCE = 5.0
"""CPU seconds after which no run is repeated."""
PAIRWISE_LINEAR = 100
"""Maximum calls of a linear conversation for the pairwise merger, whose work grows with N³."""
RECOGNISED_TURNS = 300
TURNS = (200, 1000)
"""Turns of the conversations whose cost is compared. Each call renders its chat, so the cost grows with their square."""
CHATS = (20, 100, 200, 1000)
"""Messages of the chats that a call continues."""
TEMPLATES = {"qwen3": "qwen3", "llama3": "llama3_1"}
"""Chat templates of the tests, and TRL's files of the published ones, which take their place where TRL is installed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    found: dict[str, Any] = {
        "scenarios": merging(seed),
        **cpu(seed),
        **memory(seed),
        **conversations(seed),
        **continuing(seed),
    }
    print(json.dumps(found))


# --------------------------------------------------------------------------- rows and tokens


def merging(seed: int) -> dict[str, dict[str, float]]:
    """Rows and tokens of each scenario, with the optima."""
    print(f"{'log':10}{'calls':>6}{'tokens of one':>15}{'rows':>6}{'optimum':>9}{'tokens':>9}{'optimum':>9}")
    print(f"{'':10}{'':6}{'row per call':>15}{'tree tokens':>24}{'bound':>9}")
    return {name: merged(name, make_log(scenario, seed)) for name, scenario in SCENARIOS.items()}


def merged(name: str, log: Sequence[LoggedCall]) -> dict[str, float]:
    record = recorded(log, generations(log))
    lines, tree = timelines(record.trained_calls), forest(record.trained_calls)
    raw = {
        c.number: RawCall(c.prompt_ids, c.completion_ids, c.logprobs, versions(c.completion_ids)) for c in log
    }
    wholes = [call.whole for call in raw.values()]
    optimum, bound = maximal(wholes), distinct_prefixes(wholes)
    tokens = sum(len(line.token_ids) for line in lines)
    verdict = judge_timelines(lines, raw) + judge_forest(tree, raw)
    print(
        f"{name:10}{len(log):6}{sum(map(len, wholes)):15,}"
        f"{len(lines):6}{len(optimum):9}{tokens:9,}{sum(optimum):9,}"
    )
    print(f"{'':10}{'':21}{len(tree.token_ids):24,}{bound:9,}")
    return {
        "calls": len(log),
        "tokens_one_row_per_call": sum(map(len, wholes)),
        "tokens_timelines": tokens,
        "tokens_trees": len(tree.token_ids),
        "rows_ratio_to_optimum": round(tokens / sum(optimum), 4),
        "tree_ratio_to_bound": round(len(tree.token_ids) / bound, 4),
        "lost": verdict.lost,
        "doubled": verdict.doubled,
        "out_of_context": verdict.out_of_context,
    }


# --------------------------------------------------------------------------- opponents


class Radix:
    """A node of a radix tree over int32 bytes: the floor. Every inserted sequence ends at a node, and only sequences are
    stored."""

    __slots__ = ("children", "label")

    def __init__(self, label: bytes) -> None:
        self.label = label
        self.children: dict[bytes, Radix] = {}

    def insert(self, sequence: bytes) -> None:
        """Add a sequence below this node."""
        node, at, stop = self, 0, len(sequence)
        while at < stop:
            key = sequence[at : at + 4]
            child = node.children.get(key)
            if child is None:
                node.children[key] = Radix(sequence[at:])
                return
            label = child.label
            if not sequence.startswith(label, at):
                same = common_bytes(label, sequence[at : at + len(label)])
                upper = node.children[key] = Radix(label[:same])
                child.label = label[same:]
                upper.children[label[same : same + 4]] = child
                child, label = upper, upper.label
            at += len(label)
            node = child


def common_bytes(a: bytes, b: bytes) -> int:
    """Length in bytes of the tokens that two labels begin with."""
    n = min(len(a), len(b))
    same = np.frombuffer(a, np.int32, n // 4) == np.frombuffer(b, np.int32, n // 4)
    return n if same.all() else 4 * int(same.argmin())


def radix_floor(log: Sequence[LoggedCall]) -> Radix:
    root = Radix(b"")
    for call in log:
        root.insert(call.prompt_ids.tobytes() + call.completion_ids.tobytes())
    return root


def pairwise_merger(chats: Sequence[Sequence[Any]]) -> list[int | None]:
    """For each call, the earlier call that it continues: of those whose messages it begins with, the longest."""
    parents: list[int | None] = []
    for number, chat in enumerate(chats):
        parent, longest = None, 0
        for earlier, other in enumerate(chats[:number]):
            if len(other) > longest and begins_with(chat, other):
                parent, longest = earlier, len(other)
        parents.append(parent)
    return parents


def begins_with(chat: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(other) <= len(chat) and all(a == b for a, b in zip(other, chat, strict=False))


# --------------------------------------------------------------------------- CPU and memory


def cpu(seed: int) -> dict[str, float]:
    """CPU of an episode by its number of calls. Exits if the floor is too slow."""
    print(f"\n{'CPU ms':8}{'calls':>6}{'ours':>9}{'floor':>9}{'ratio':>7}{'forest':>9}{'pairwise':>10}")
    for size in SIZES:
        measured(grow, size, seed, pairwise=size <= PAIRWISE_LINEAR)
    interleaved = [measured(mixed, size, seed, pairwise=True) for size in SIZES]
    (before, _, _), (ours, floor, merger) = interleaved[-2:]
    share = merger / floor
    print(f"The floor at {SIZES[-1]:,} interleaved calls is 1/{share:.0f} of the pairwise merger.")
    if share * TOLERANCE < FLOOR_SHARE:
        sys.exit(
            f"the radix floor takes 1/{share:.0f} of the pairwise merger's time; a fair one takes 1/{FLOOR_SHARE} or "
            f"less (within {TOLERANCE - 1:.0%}), so the ratios above look better than they are. Make the floor faster."
        )
    return {
        "cpu_ratio_to_floor_5000": round(ours / floor, 2),
        "growth_1000_to_5000": round(ours / before, 2),
    }


def measured(
    scenario: Callable[[Log, int], None], size: int, seed: int, *, pairwise: bool
) -> tuple[float, float, float]:
    """CPU seconds of our record and timelines, the floor and the merger (without ``pairwise``, that of no calls)."""
    log = make_log(lambda log: scenario(log, size), seed)
    answers = generations(log)
    calls = recorded(log, answers).trained_calls
    ours, floor, trees = fastest(
        lambda: timelines(recorded(log, answers).trained_calls),
        lambda: radix_floor(log),
        lambda: forest(calls),
    )
    chats = [json.loads(json.dumps(call.messages)) for call in log] if pairwise else []
    (merger,) = fastest(lambda: pairwise_merger(chats))
    print(
        f"{scenario.__name__:8}{size:6}{1e3 * ours:9.2f}{1e3 * floor:9.2f}{ours / floor:7.2f}{1e3 * trees:9.2f}"
        + (f"{1e3 * merger:10.1f}" if pairwise else f"{'–':>10}")
    )
    return ours, floor, merger


def fastest(*works: Callable[[], object], repetitions: int = REPETITIONS) -> list[float]:
    """CPU seconds of each function: the minimum of several alternating runs (fewer if they are slow), without garbage
    collection."""
    runs: list[list[float]] = []
    gc.freeze()  # so that collecting what a run leaves is quick
    while len(runs) < repetitions and (not runs or sum(map(sum, runs)) < PATIENCE):
        runs.append([])
        for work in works:
            gc.collect()
            gc.disable()
            start = time.process_time()
            result = work()
            runs[-1].append(time.process_time() - start)
            gc.enable()
            del result
    gc.unfreeze()
    return [min(seconds) for seconds in zip(*runs, strict=True)]


def memory(seed: int) -> dict[str, float]:
    """Bytes per token of the tree of 5,000 interleaved calls."""
    log = make_log(lambda log: mixed(log, 5000), seed)
    answers = generations(log)
    gc.collect()
    tracemalloc.start()
    record = recorded(log, answers)
    whole = tracemalloc.get_traced_memory()[0]
    tree = record.tree("policy")
    del log, answers, record  # and what numpy caches for arrays whose bytes were read
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    tokens = tree.unique_tokens()
    print(
        f"\n{tokens:,} unique tokens: {held / tokens:.2f} bytes each in the tree, {whole / tokens:.2f} with the calls' records"
    )
    return {"bytes_per_token": round(held / tokens, 2)}


# --------------------------------------------------------------------------- conversations


def conversations(seed: int) -> dict[str, float]:
    """A linear conversation in the chat format: growth with its turns, and the cost of recognising messages."""
    from ajet_local.starter.calculator import Calculator

    chat = Chat(Calculator().tokenizer(0)[0], "qwen3")
    short, long = (min(continued(chat, turns, seed) for _ in range(2)) for turns in TURNS)
    print(f"\nprompts and records of {TURNS[0]:,} turns: {short:.2f} s of CPU; of {TURNS[1]:,}: {long:.2f} s")
    recognising, parsing = recognised(seed)
    print(
        f"recognising the messages of {RECOGNISED_TURNS} turns: {recognising:.3f} s; json.loads of the same bodies: {parsing:.3f} s"
    )
    return {
        f"turns_growth_{TURNS[0]}_to_{TURNS[1]}": round(long / short, 2),
        "recognise_ratio_to_json": round(recognising / parsing, 2),
    }


def continued(chat: Chat, turns: int, seed: int) -> float:
    """CPU seconds of a conversation's prompts and records, without recognising its messages."""
    log = make_log(lambda log: grow(log, turns), seed)
    stop = chat.stop_token_ids[0]
    messages = [normalise(m, 0) for m in log[-1].messages]
    record = EpisodeRecord()
    chat_end = record.chat("policy").add(messages[0]).add(messages[1])
    spent = 0.0
    for number in range(turns):
        answer = messages[2 * number + 2]
        ids = np.array([*chat.tokenizer.encode(answer["content"], add_special_tokens=False), stop], np.int32)
        generation = Generation(ids, np.zeros(len(ids), np.float32), versions(ids), "stop")
        start = time.process_time()
        call = Call(
            number, "solver", "policy", "policy", generation=generation, trained=True, chat_end=chat_end
        )
        make_prompt(record, chat, call)
        call.end = record.tree("policy").extend(call.prompt, ids)
        record.add(call, answer)
        spent += time.process_time() - start
        if number + 1 < turns:
            chat_end = chat_end.add(answer).add(messages[2 * number + 3])
    start = time.process_time()
    lines = timelines(record.trained_calls)
    spent += time.process_time() - start
    assert len(lines) == 1, f"a linear conversation of {turns} turns became {len(lines)} rows"
    return spent


def recognised(seed: int) -> tuple[float, float]:
    """CPU seconds of recognising the messages of every request of a conversation, and of parsing their JSON."""
    log = make_log(lambda log: grow(log, RECOGNISED_TURNS), seed)
    bodies = [json.dumps({"model": "policy", "messages": call.prompt_messages}) for call in log]
    requests = [json.loads(body)["messages"] for body in bodies]
    answers = [call.answer for call in log]

    def recognise_all() -> None:
        root = new_root()
        for request, answer in zip(requests, answers, strict=True):
            chat_end, *_ = recognise(root, request)
            chat_end.add(answer)

    recognising, parsing = fastest(recognise_all, lambda: [json.loads(body) for body in bodies])
    return recognising, parsing


# --------------------------------------------------------------------------- continuing a chat


TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the library.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["query"],
        },
    },
}
WORDS_A_MESSAGE, REPEATED = 48, 25


def continuing(seed: int) -> dict[str, float]:
    """CPU milliseconds of one prompt in a tool loop, for the slower template, and the largest ratio to what transformers
    takes only to render the chat."""
    columns = f"{'messages':>8}{'ours':>8}{'transformers':>14}{'ratio':>7}{'JSON':>8}"
    print(f"\n{'CPU ms a call':14}{columns}")
    found: dict[str, float] = {}
    for template in TEMPLATES:
        for count in CHATS:
            ours, rendering, parsing = (1e3 * seconds for seconds in one_prompt(template, count, seed))
            ratio = ours / rendering
            print(f"{template:14}{count:8,}{ours:8.2f}{rendering:14.2f}{ratio:7.2f}{parsing:8.2f}")
            for key, value in (("ms", ours), ("ratio_to_transformers", ratio)):
                name = f"continue_{key}_{count}"
                found[name] = max(found.get(name, 0.0), round(value, 2))
    return found


def one_prompt(template: str, count: int, seed: int) -> list[float]:
    """CPU seconds of continuing a chat to ``count`` messages, of rendering these with transformers, and of parsing them."""
    chat, messages, tools = chat_of(template), tool_loop(count, seed), [TOOL]
    *earlier, answer, result = messages
    prompt, rendered = chat.begin(earlier, tools)
    completion = [*chat.prefill_ids(chat.written(answer)), chat.stop_token_ids[0]]
    turn = Turn(prompt[-64:].tolist(), completion, answer, [result], count, messages.copy, rendered)
    assert chat.next_turn(turn, tools).ids is not None, f"the template {template!r} breaks a tool loop"
    body, objects = json.dumps({"messages": messages, "tools": tools}), given(messages)

    def render() -> object:
        return chat.tokenizer.apply_chat_template(
            objects, tools=tools, tokenize=False, add_generation_prompt=True
        )

    return fastest(
        lambda: chat.next_turn(turn, tools), render, lambda: json.loads(body), repetitions=REPEATED
    )


def chat_of(template: str) -> Chat:
    tokenizer = copy.copy(templates.tokenizer(template))
    with suppress(ModuleNotFoundError):
        folder = importlib.resources.files("trl") / "chat_templates"
        tokenizer.chat_template = (folder / f"{TEMPLATES[template]}.jinja").read_text()
    return Chat(tokenizer)


def tool_loop(count: int, seed: int) -> list[dict[str, Any]]:
    """A chat whose messages have some 240 characters each: system, user, then calls of a tool and their results."""
    rng = np.random.default_rng(seed)

    def text() -> str:
        return " ".join(rng.choice(WORDS, WORDS_A_MESSAGE))

    chat: list[dict[str, Any]] = [{"role": role, "content": text()} for role in ("system", "user")]
    for number in range(count // 2 - 1):
        arguments = json.dumps({"query": text(), "limit": number})
        call = {
            "id": f"call{number:05}",
            "type": "function",
            "function": {"name": "search", "arguments": arguments},
        }
        chat.append({"role": "assistant", "content": "", "tool_calls": [call]})
        chat.append({"role": "tool", "tool_call_id": call["id"], "name": "search", "content": text()})
    return [normalise(message, index) for index, message in enumerate(chat)]


if __name__ == "__main__":
    main()
