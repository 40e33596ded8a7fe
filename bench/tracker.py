"""Measures what merging saves and costs: rows, tokens and CPU of timelines and token trees on call logs.

    python bench/tracker.py

Rows and tokens are compared with optima that the tests' independent checker computes from the raw log; it also counts
tokens that are lost, doubled or out of context. CPU is compared in the same run with a merger that compares message lists
pairwise, and with a floor: a radix tree that records nothing. If the floor is too slow relative to the merger, the
ratios would look better than they are, so the benchmark fails. Each call verifies that its prompt is what the chat
template writes; the cost is compared with parsing the request's JSON. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import copy
import functools
import gc
import itertools
import json
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from call_logs import SCENARIOS, Log, LoggedCall, generations, grow, make_log, mixed, recorded, versions
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ajet.chat.messages import normalise
from ajet.chat.renderer import Chat, Turn
from ajet.chat.templates import Template, plain_copy
from ajet.tracker.call import Call, new_root
from ajet.tracker.conversations import Recognised, recognise
from ajet.tracker.forest import forest
from ajet.tracker.prompt import ClientChat, make_prompt
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    found: dict[str, Any] = {
        "scenarios": merging(seed),
        **cpu(seed),
        **memory(seed),
        **conversations(seed),
        **verification(seed),
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


def fastest(*works: Callable[[], object]) -> list[float]:
    """CPU seconds of each function: the minimum of several alternating runs (fewer if they are slow), without garbage
    collection."""
    runs: list[list[float]] = []
    while len(runs) < REPETITIONS and (not runs or sum(map(sum, runs)) < PATIENCE):
        runs.append([])
        for work in works:
            gc.collect()
            gc.disable()
            start = time.process_time()
            result = work()
            runs[-1].append(time.process_time() - start)
            gc.enable()
            del result
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
    short, long = (min(continued(chat, turns, seed) for _ in range(2)) for turns in (1000, 5000))
    print(f"\nprompts and records of 1,000 turns: {short:.2f} s of CPU; of 5,000: {long:.2f} s")
    recognising, parsing = recognised(seed)
    print(
        f"recognising the messages of {RECOGNISED_TURNS} turns: {recognising:.3f} s; json.loads of the same bodies: {parsing:.3f} s"
    )
    return {
        "turns_growth_1000_to_5000": round(long / short, 2),
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
        prompt = make_prompt(record, chat, "policy", ClientChat(Recognised(chat_end, 0, {})), ())
        end = record.tree("policy").extend(prompt.node, ids)
        call = Call(
            number,
            "solver",
            "policy",
            "policy",
            prompt.node,
            end,
            generation,
            1.0,
            True,
            prompt.parent,
            chat_end=chat_end,
            basis=prompt.basis,
        )
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
            chat_end = recognise(root, request).chat_end
            chat_end.add(answer)

    recognising, parsing = fastest(recognise_all, lambda: [json.loads(body) for body in bodies])
    return recognising, parsing


# --------------------------------------------------------------------------- verification


COMMON = ("qwen3", "llama3")
"""Templates with a target for the ratio. They are proven, so a call costs its new messages."""
COMPARED = "not proven"
"""A template that reads the chat's length, so it is not proven and each call renders two whole chats."""
AGENTS = ("tool30", "fanout", "grow")
"""Conversations of one agent: many short messages, a long shared beginning, very many turns."""
VERIFIED_CALLS, REPEATED = 12, 25


def verification(seed: int) -> dict[str, float]:
    """CPU of verifying a prompt, relative to parsing its request's JSON: the cost of continuing a chat minus that of only
    rendering and encoding the answer and the new messages. The tokenizer's own work is in neither. Verifying adds the
    decoding of the answer, which is a separate column."""
    columns = f"{'JSON':>8}{'continue':>10}{'render new':>12}{'verify':>8}{'ratio':>7}{'decode':>8}"
    print(f"\n{'us a call':24}{columns}")
    ratios = {
        (template, log): verified(template, log, seed) for template in (*COMMON, COMPARED) for log in AGENTS
    }
    mean = {t: sum(ratios[t, log] for log in AGENTS) / len(AGENTS) for t in (*COMMON, COMPARED)}
    return {
        "verify_ratio_to_json": round(max(mean[template] for template in COMMON), 2),
        "verify_ratio_to_json_not_proven": round(mean[COMPARED], 1),
    }


def verified(template: str, name: str, seed: int) -> float:
    """The ratio on some calls of a conversation, spread over its length."""
    chat, log = Chat(with_memory(tokenizer_of(template))), make_log(SCENARIOS[name], seed)
    log = [call for call in log if call.conversation is log[0].conversation]
    messages = [normalise(m, 0) for m in log[-1].messages]
    rendered = chat.begin(messages[: log[0].length], ())[1]
    chosen = set(range(0, len(log) - 1, max(1, len(log) // VERIFIED_CALLS)))
    raw, spent = tokenizer_of(template), np.zeros(4)
    for index, (call, later) in enumerate(itertools.pairwise(log)):
        turn = turn_of(chat, messages[: later.length], call.length, rendered)
        if index in chosen:
            body = json.dumps({"model": "policy", "messages": later.prompt_messages})
            spent += [
                least(lambda body=body: json.loads(body)),
                least(lambda turn=turn: chat.next_turn(turn, ())),
                least(alone(chat, turn)),
                least(lambda turn=turn: raw.decode(turn.completion)),
            ]
        rendered = chat.next_turn(turn, ()).rendered
    reading, continuing, new, decoding = 1e6 * spent / len(chosen)
    ratio = float((continuing - new) / reading)
    print(
        f"{template:12}{name:12}{reading:8.1f}{continuing:10.1f}{new:12.1f}{continuing - new:8.1f}{ratio:7.2f}"
        f"{decoding:8.1f}"
    )
    return ratio


def tokenizer_of(template: str) -> Any:
    if template != COMPARED:
        return templates.tokenizer(template)
    found = copy.copy(templates.tokenizer("plain"))
    found.chat_template = found.chat_template.replace(
        "m in messages -%}", "m in messages -%}{{- '' if loop.length -}}"
    )
    return found


def with_memory(tokenizer: Any) -> Any:
    """A copy that caches encoding and decoding, so that repeated runs exclude their cost."""
    found = copy.copy(tokenizer)
    encode = functools.cache(lambda text: tokenizer.encode(text, add_special_tokens=False))
    found.encode = lambda text, **options: encode(text)
    decoded: dict[tuple[Any, ...], tuple[Any, str]] = {}

    def decode(ids: Any, **options: Any) -> str:
        key = (len(ids), ids[0], ids[-1], options.get("skip_special_tokens"))
        if key not in decoded:
            decoded[key] = list(ids), tokenizer.decode(ids, **options)
        same, text = decoded[key]
        return text if same == ids else tokenizer.decode(ids, **options)

    found.decode = decode
    return found


def turn_of(chat: Chat, messages: Sequence[Any], before: int, rendered: Any) -> Turn:
    """The turn that the prompt of these messages continues: its answer follows the first ``before`` messages."""
    answer, new = messages[before], messages[before + 1 :]
    completion = [*chat.prefill_ids(answer["content"]), chat.stop_token_ids[0]]
    return Turn([], completion, answer, new, len(messages), lambda: messages, rendered)


def alone(chat: Chat, turn: Turn) -> Callable[[], object]:
    """A function that renders the answer and the new messages of a turn after a question, and encodes the new text. It
    uses the template as transformers does, but compiled once."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = json.dumps
    template = environment.from_string(chat.tokenizer.chat_template)
    variables = {**chat.tokenizer.special_tokens_map, "add_generation_prompt": True, "tools": None}
    question = {"role": "user", "content": "?"}
    own = Template(chat.tokenizer, plain_copy(chat.tokenizer))
    new = str(chat.tokenizer.decode(chat.next_turn(turn, ()).ids))

    def render() -> object:
        messages = [question, *own.prepared([turn.answer, *turn.new])]
        return template.render(messages=messages, **variables), own.encoder.encode(new, inside=True)

    return render


def least(work: Callable[[], object]) -> float:
    """CPU seconds of a short function: the minimum of many runs."""
    times = []
    for _ in range(REPEATED):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


if __name__ == "__main__":
    main()
