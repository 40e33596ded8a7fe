"""The tables of bench/README.md, from bench/results/*.json and the examples' learned.json. The site (`make docs`) has them.

python tools/benchmarks_page.py prints the page with them.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
LEARNED = sorted(ROOT.glob("examples/*/learned.json"))
Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """A file of bench/results, which `bench/save.py` writes."""

    date: str
    machine: str
    command: str
    figures: Figures
    commit: str | None
    """None if it was not noted."""


@dataclass(frozen=True)
class Area:
    """A table of the page."""

    names: Sequence[str]
    """The results that it shows."""
    lines: Callable[..., Iterator[str]]
    """The table's lines, from the figures of each result."""


def read(name: str) -> Result:
    """A result by its name. Raises TypeError if a field is missing or unknown."""
    return Result(**json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")))


# --------------------------------------------------------------------------- kinds of tables


def cell(form: str, figures: Figures) -> str:
    """A format string with a result's figures in it; 1.2e-06 is written 1.2e-6, and 5% is written 5 %."""
    return re.sub(r"(?<=\d)%", " %", re.sub(r"e-0(?=\d)", "e-", form.format_map(figures)))


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def by_figure(columns: Mapping[str, Figures], rows: Mapping[str, str | tuple[str, str]]) -> Iterator[str]:
    """One row for each figure: title -> format string, or (format string, target). One column for each title -> figures; a cell of one
    that lacks them is empty."""
    has_targets = any(isinstance(form, tuple) for form in rows.values())
    titles = ["", *columns, *(["target"] if has_targets else [])]
    yield row(*titles)
    yield "|" + "---|" * len(titles)
    for title, form in rows.items():
        form, *target = (form,) if isinstance(form, str) else form
        names = {name.partition("[")[0] for _, name, *_ in Formatter().parse(form) if name}
        measured = [figures for figures in columns.values() if names <= figures.keys()]
        if not measured:
            raise KeyError(f"{title}: {form}")
        found = [cell(form, figures) if figures in measured else "" for figures in columns.values()]
        yield row(title, *found, *((target or [""]) if has_targets else []))


def by_item(kind: str, items: Mapping[str, Figures], columns: Mapping[str, str]) -> Iterator[str]:
    """One row for each title -> figures; one column for each title -> format string."""
    yield row(kind, *columns)
    yield "|---|" + "---|" * len(columns)
    for title, figures in items.items():
        yield row(title, *(cell(form, figures) for form in columns.values()))


def as_noted(*notes: Figures) -> Iterator[str]:
    """What was noted by hand: what was run -> what was found."""
    yield row("what was run", "found")
    yield "|---|---|"
    for note in notes:
        yield from (row(run, found) for run, found in note.items())


def origins(results: Sequence[Result]) -> Iterator[str]:
    """On which machines, by which commands, when and of which commit results were made."""
    made: defaultdict[str, defaultdict[str, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
    for found in results:
        when = f"{found.date}, commit {found.commit}" if found.commit else found.date
        made[found.machine][when][f"`{found.command}`"] = None
    for machine, times in made.items():
        yield ""
        yield (
            f"{machine}: " + "; ".join(f"{', '.join(names)} ({when})" for when, names in times.items()) + "."
        )


# --------------------------------------------------------------------------- the tables


def learning(*seeds: Figures) -> Iterator[str]:
    columns = {
        "sampled": "{accuracy_before:.3f} → {accuracy_after:.3f}",
        "greedy": "{greedy_before:.3f} → {greedy_after:.3f}",
        "control": "{control[before]:.3f} → {control[after]:.3f}",
        "control's change, in standard errors": "{control[moved_in_standard_errors]:+.1f}",
    }
    return by_item("seed", {str(found["seed"]): found for found in seeds}, columns)


def examples() -> Iterator[str]:
    """Of each example, its seeds; then when and where they were measured."""
    results = []
    yield row(
        "example",
        "held-out reward before → after, by seed",
        "smallest gain, in standard errors",
        "training, s",
    )
    yield "|---|---|---|---|"
    for path in LEARNED:
        seeds = json.loads(path.read_text(encoding="utf-8")).values()
        yield row(
            path.parent.name,
            ", ".join(f"{found['before']:.3f} → {found['after']:.3f}" for found in seeds),
            str(min(found["standard_errors"] for found in seeds)),
            ", ".join(f"{found['train_seconds']:.0f}" for found in seeds),
        )
        results += [
            Result(found["date"], found["machine"], path.parent.name, found, found["commit"])
            for found in seeds
        ]
    yield from origins(results)


LOGS = {
    "tool30": "30 calls of an agent with tools",
    "drift": "the same, which changes a fifth of its answers later",
    "werewolf": "200 calls of nine players who hear each other",
    "retry": "42 calls, of which failed ones are taken back",
    "fanout": "16 branches of a prompt of 8,000 tokens",
}
"""The logs of bench/call_logs.py whose tokens the page shows."""


def merging(found: Figures) -> Iterator[str]:
    yield row("log", "one row for each call", "timelines", "times fewer", "trees", "times fewer")
    yield "|---|---|---|---|---|---|"
    for name, title in LOGS.items():
        log = found["scenarios"][name]
        single, timelines, trees = (
            log[f"tokens_{key}"] for key in ("one_row_per_call", "timelines", "trees")
        )
        fewer = (f"{single / tokens:.1f}" for tokens in (timelines, trees))
        yield row(title, f"{single:,}", f"{timelines:,}", next(fewer), f"{trees:,}", next(fewer))


def tracker(found: Figures) -> Iterator[str]:
    prompts = {
        f"a call that continues a tool loop of {count:,} messages; share of transformers' rendering": (
            f"{{continue_ms_{count}:.1f}} ms; {{continue_ratio_to_transformers_{count}:.2f}}",
            target,
        )
        for count, target in ((20, ""), (100, "2.5 ms"), (200, "4 ms"), (1000, "20 ms"))
    }
    rows = {
        "record and timelines of 5,000 calls of nine agents, beside the radix tree of their tokens": (
            "{cpu_ratio_to_floor_5000:.2f} ×",
            "3",
        ),
        "the same, 5,000 calls beside 1,000": ("{growth_1000_to_5000:.1f} ×", "7"),
        "recognising the messages of a request, beside `json.loads` of it": (
            "{recognise_ratio_to_json:.1f} ×",
            "2",
        ),
        "memory for each unique token": "{bytes_per_token:.2f} bytes",
        **prompts,
        "a conversation of 1,000 turns beside one of 200": "{turns_growth_200_to_1000:.0f} ×",
    }
    return by_figure({"CPU time": found}, rows)


ATTACKS = {
    "nothing": "none",
    "regular_expression": "a schema with `^(a+)+$`",
    "messages": "1,000,000 messages",
    "text": "30 MB of text",
    "tools": "200,000 tools",
    "header": "a header of 192 MB",
    "half_open": "2,000 half-open connections",
    "schema_references": "a schema of doubling references",
    "most_messages": "as many messages as are let in",
}
"""Descriptions of attacks; of others, the page shows the name."""


def attacks(found: Figures) -> Iterator[str]:
    slowest = {
        ATTACKS.get(name, name.replace("_", " ")): {"ms": ms} for name, ms in found["worst_health_ms"].items()
    }
    yield from by_item("attack", slowest, {"slowest answer, ms": "{ms}"})
    yield ""
    yield cell(
        "The server took at most {peak_mb} MB, and SIGTERM ended it within {worst_stop_s} s in all attacks.",
        found,
    )


PHASES = {
    "usual": "none",
    "flood": "100 half-sent bodies without a key; ids and comments of 30 MB, 10,000,000 lists, with a customer's key",
    "pages": "the largest feedback that is read, from 16 clients with a customer's key",
}


def flood(found: Figures) -> Iterator[str]:
    phases = {title: found["online_flood"][name] for name, title in PHASES.items()}
    form = "{%s[p50_ms]} ms, {%s[p99_ms]} ms, {%s[worst_ms]} ms"
    columns = {
        "`/health`: median, 99th percentile, slowest": form % (("health",) * 3),
        "a chat of a paying user": form % (("chat",) * 3),
        "CPU of the server during the slowest chat": "{chat[cpu_ms]} ms",
    }
    return by_item("flood", phases, columns)


def online(*seeds: Figures) -> Iterator[str]:
    rows = {
        "acceptance before, of 400 replies": "{acceptance_before:.3f}",
        "after nine minutes of ratings": "{acceptance_after:.3f}",
        "gain, in standard errors": "{standard_errors:.1f}",
        "frozen control before, after": "{control_before:.3f}, {control_after:.3f}",
        "regression set (sums only) before, after": "{regression_before:.3f}, {regression_after:.3f}",
        "after two updates with inverted ratings": "{acceptance_poisoned:.3f}",
        "after three more minutes of true ratings": "{acceptance_recovered:.3f}",
        "updates, versions that the gate rejected": "{updates}, {rejected}",
        "mean staleness of the trained replies, in versions": "{staleness:.1f}",
        "latency beside `ajet serve`, 16 clients: median, 99th percentile": "{latency_p50_ratio:.2f}, {latency_p99_ratio:.2f}",
        "the same with the starter's short replies, median": "{latency_p50_ratio_short:.2f}",
        "recorded calls per second, 16 clients": "{calls_per_second:.0f}",
        "latency with shadow runs of all requests, hosted model: median, 99th percentile": (
            "{shadow_p50_ratio:.2f}, {shadow_p99_ratio:.2f}"
        ),
    }
    return by_figure({f"seed {found['seed']}": found for found in seeds}, rows)


def store(sqlite: Figures, postgresql: Figures) -> Iterator[str]:
    rows = {
        "feedback: median, 99th percentile": "{feedback_ms_p50} ms, {feedback_ms_p99} ms",
        "a repeated feedback, 99th percentile": "{repeated_feedback_ms_p99} ms",
        "lease of 16 of 10,000 ready tasks": "{lease_of_16_ms_p50} ms, {lease_of_16_ms_p99} ms",
        "reading a conversation, 99th percentile": "{conversation_ms_p99} ms",
        "opening the store": "{open_ms_p99} ms",
        "size of a call": "{bytes_per_trace:,} bytes",
        "calls recorded per second, 2,000 in a transaction": "{recorded_per_second:,}",
    }
    return by_figure({"SQLite": sqlite["online_store"], "PostgreSQL 15": postgresql["online_store"]}, rows)


def runner(found: Figures) -> Iterator[str]:
    rows = {
        "calls a second, with one core": "{calls_per_second}",
        "new tokens of a call": "{new_tokens_per_call:,}",
        "a call in the journal": "{journal_bytes_per_call:,} bytes",
        "a call in verl's queue": "{queue_bytes_per_call:,} bytes",
        "the journal, written with one core": "{recorder_mb_per_second:,} MB/s",
        "the journal, read by a resumed run": "{resume_mb_per_second} MB/s",
    }
    return by_figure(found["verl_runner"], rows)


def scale(found: Figures) -> Iterator[str]:
    memory = {
        f"memory of {process}": f"{{peak_mib_of_a_process[{kind}]}} MiB"
        for process, kind in (
            ("a runner", "Runner"),
            ("the conductor", "Conductor"),
            ("the recorder", "Recorder"),
            ("a storage unit of the queue", "SimpleStorageUnit"),
        )
    }
    rows = {
        "lost": "{lost} of {episodes:,}",
        "CPU per call, all processes except vLLM's": "{cpu_ms_per_call:.1f} ms",
        "of that, runners": "{cpu_ms_per_call_by_process[Runner]:.1f} ms",
        "CPU per episode": "{cpu_ms_per_episode:.0f} ms",
        "credit, CPU per row; with trees": "{credit_cpu_ms_per_row} ms; {credit_for_trees_cpu_ms_per_row} ms",
        "a row in the queue; a call in the journal": "{row_kib_per_row} KiB; {journal_kib_per_call} KiB",
        **memory,
    }
    return by_figure({f"{int(size):,} at once": of for size, of in found["verl_scale"].items()}, rows)


def local(step: Figures, learning: Figures, generation: Figures) -> Iterator[str]:
    rows = {
        "CPU of a step, agent with raw HTTP": ("{step_ratio_trl:.2f}", "0.60"),
        "CPU of a step, agent with the OpenAI SDK": ("{step_ratio_trl_sdk:.2f}", "0.66"),
        "CPU until 90 % of digit sums are right, raw HTTP": ("{cpu_to_90_ratio_trl:.2f}", "0.30"),
        "the same, OpenAI SDK": ("{cpu_to_90_ratio_trl_sdk:.2f}", "0.50"),
        "steps until then": ("{steps_to_90_ratio_trl:.2f}", "1.1"),
        "tokens per CPU second, beside Hugging Face's `generate`": ("{generation_ratio_hf:.2f}", "1.4"),
        "computed tokens of 64 conversations, beside their radix tree": "{prefilled_ratio_unique:.3f}",
    }
    return by_figure({"of TRL's": step | learning | generation}, rows)


def trees(found: Figures) -> Iterator[str]:
    columns = {
        "tokens of trees, times fewer": "{token_ratio:.1f}",
        "trees, times as fast": "{speedup:.1f}",
        "timelines, times as fast": "{linear_speedup:.1f}",
        "difference of gradients": "{grad_rel_diff:.1e}",
    }
    return by_item("log", found["tree"], columns)


def verl_trees(found: Figures) -> Iterator[str]:
    logs = {
        name: {**of, "auto": "trees" if of["chosen"] else "rows"} for name, of in found["verl_trees"].items()
    }
    columns = {
        "tokens of trees, times fewer": "{token_ratio:.2f}",
        "trees, times as fast": "{speedup:.2f}",
        "chosen by `auto`": "{auto}",
        "difference of gradients": "{grad_rel_diff:.1e}",
    }
    return by_item("log", logs, columns)


def trinity(learned: Figures, exact: Figures) -> Iterator[str]:
    form = (
        "sampled {accuracy_before:.3f} → {accuracy_after:.3f}, greedy {greedy_before:.3f} → {greedy_after:.3f} of 256 held-out "
        "tasks; {steps} steps in {train_seconds:.0f} s"
    )
    return as_noted({"`examples/math/job.yaml --backbone trinity`": cell(form, learned)}, exact)


def profile(found: Figures) -> Iterator[str]:
    parts = sorted((name for name in found if name != "ours"), key=lambda name: -float(found[name]))
    rows: dict[str, str | tuple[str, str]] = {name: f"{{{name}:.1%}}" for name in parts}
    return by_figure(
        {"of a step": found}, {**rows, "capture, scheduler and journal together": ("{ours:.1%}", "15 %")}
    )


def gpu(found: Figures, less: Figures, h100: Figures) -> Iterator[str]:
    columns = {}
    for one in (found, h100):
        checks = {check["name"]: check["figures"] for check in one["checks"]}
        attention, checks["mask"] = checks["attention"], checks["masks"]["131072"]
        checks["whole"], checks["lora"] = checks["memory"]["1.7B"], checks["memory"]["8B lora"]
        for kind in ("bfloat16", "float32"):
            errors = [
                of["error"] for name, of in attention.items() if name.startswith(kind) and "error" in of
            ]
            checks[kind] = {"error": max(errors)}
        columns[one["device"]] = checks
    columns[found["device"]] |= {"bits": less["1.7B adamw_8bit"], "quantized": less["8B lora 4bit"]}
    rows = {
        "`flex_attention` over trees of 1 to 8,192 tokens beside exact attention in float32, relative error": (
            "{bfloat16[error]:.1e} in bfloat16, {float32[error]:.1e} in float32"
        ),
        "forward and backward of 8,192 and 32,768 tokens (16 heads of 128, bfloat16)": (
            "{attention[bfloat16/8192][ms]:.1f} ms and {attention[bfloat16/32768][ms]:.1f} ms"
        ),
        "peak memory of these": "{attention[bfloat16/8192][peak_gib]:.1f} GiB and {attention[bfloat16/32768][peak_gib]:.1f} GiB",
        "block mask of 131,072 tokens": "{mask[seconds]} s, {mask[peak_gib]:.2f} GiB",
        "28 layers as in Qwen3-0.6B, groups of 16 with 1,024 shared tokens of 1,280: trees beside rows": (
            "{trees[tree_speedup]:.2f} times as fast, {trees[tree_memory_ratio]:.0%} of the memory"
        ),
        "a step of a job with 128 episodes": (
            "update {steps[seconds_update]:.1f} s, sampling by the local engine {steps[seconds_rollout]:.1f} s"
        ),
        "five of them: peak memory, the plan's": "{steps[peak_gib]:.0f} GiB, {steps[plan_peak_gib]:.0f} GiB",
        "two steps of 1.7B, all weights: peak memory, the plan's": "{whole[peak_gib]:.0f} GiB, {whole[plan_gib]:.0f} GiB",
        "two steps of 8B, LoRA: peak memory, the plan's": "{lora[peak_gib]:.0f} GiB, {lora[plan_gib]:.0f} GiB",
        "two steps of 1.7B, all weights, AdamW of 8 bits: peak memory, the plan's": (
            "{bits[peak_gib]:.0f} GiB, {bits[plan_gib]:.0f} GiB"
        ),
        "two steps of 8B, LoRA over weights of 4 bits: peak memory, the plan's": (
            "{quantized[peak_gib]:.0f} GiB, {quantized[plan_gib]:.0f} GiB"
        ),
        "logprobs of the engine beside the trainer's in bfloat16, mean difference": "{steps[logprob_diff_mean]:.3f}",
        "the local engine, 128 completions of 256 tokens at once": "{generation[generated_tokens_per_second]:,.0f} tokens a second",
        "tests marked `gpu`: gradients, adapters, bit-equal deterministic runs, recurrent layers": "{marked_tests[summary]}",
    }
    return by_figure(columns, rows)


def gpu_vllm(found: Figures) -> Iterator[str]:
    checks = {check["name"]: check["figures"] for check in found["checks"]}
    rows = {
        "the contract of engines (`ajet.testing`), passed": "{colocated[checks_passed]} checks",
        "a step of a job with 128 episodes": "sampling {steps_vllm[seconds_rollout]:.1f} s, update {steps_vllm[seconds_update]:.1f} s",
        "sampling of 128 episodes of 512 + 256 tokens": "{steps_vllm[tokens_per_second]:,.0f} tokens a second",
        "five steps: peak memory, the plan's": "{steps_vllm[peak_gib]:.0f} GiB, {steps_vllm[plan_peak_gib]:.0f} GiB",
        "logprobs of vLLM beside the trainer's in bfloat16, mean difference": "{steps_vllm[logprob_diff_mean]:.3f}",
        "memory with a cache of 8 GiB, awake and asleep": (
            "{colocated[awake_gib]:.1f} GiB, {colocated[asleep_gib_2]:.1f} GiB"
        ),
        "the weights of an update, until vLLM samples from them": "{colocated[seconds_new_weights]:.1f} s",
        "start": "{colocated[seconds_start]:.0f} s",
    }
    return by_figure({f"vLLM {found['vllm']}, {found['device']}": checks}, rows)


def studio(found: Figures) -> Iterator[str]:
    rows = {
        "building the index, once": ("{index_mb_s:.0f} MB/s", "100 MB/s"),
        "first view: what it asks the server for; the page": ("{first_view_s:.2f} s; {page_s:.2f} s", "1 s"),
        "the same before there is an index": "{first_view_unindexed_s:.2f} s",
        "an episode, the slowest of 200; the page of one": (
            "{episode_s:.2f} s; {page_episode_s:.2f} s",
            "0.3 s",
        ),
        "tokens in the middle of a million; their page": (
            "{million_tokens_s:.2f} s; {page_million_s:.2f} s",
            "0.5 s",
        ),
        "1,000 episodes are written, until the list has them": "{extended_s:.2f} s",
        "the first full-text search, which indexes all words; the next": "{search_first_s:.1f} s; {search_s:.2f} s",
        "DOM nodes of any view, at most": ("{dom_nodes:,}", "2,000"),
        "memory of the server": ("{server_mb} MB", "300 MB"),
    }
    return by_figure({"found": found["studio"]}, rows)


def wheels(found: Figures) -> Iterator[str]:
    rows = {
        "the core with what it needs, bytecode included": ("{core_megabytes:.0f} MiB", "120 MiB"),
        "CPU time of `import ajet`": ("{import_ms} ms", "50 ms"),
        "CPU time of `ajet --help`": ("{help_seconds:.2f} s", "0.5 s"),
        "`ajet[local,openai]`, most of it PyTorch's CPU build": "{megabytes} MiB",
        "the README's commands: a default model and training": "{train_minutes} minutes",
        "reward before and after them": ("{reward_before:.2f}, {reward_after:.2f}", "+0.3"),
    }
    return by_figure({"found": found}, rows)


def capture(gateway: Figures, hook: Figures) -> Iterator[str]:
    rows = {
        "hook, of the CPU of the SDK's call": "{hook_ratio_to_sdk:.2f}",
        "hook, if the model lets the call wait": ("{waiting_ratio_to_sdk:.2f}", "0.40"),
        "hook and recording": "{recorded_ratio_to_sdk:.2f}",
        "rendering a continued conversation": "{render_ratio_to_sdk:.2f}",
        "gateway, calls per second of a minimal recording proxy, 32 at once": (
            "{ratio_to_minimal_proxy_32:.2f}",
            "0.5",
        ),
        "gateway, added median latency beside that proxy's": "{added_p50_ratio_to_proxy:.2f}",
        "memory of a recorded call; of a waiting episode beyond its data": "{kib_per_call} KiB; {episodes_1000_kib_each} KiB",
    }
    return by_figure({"found": gateway | hook}, rows)


def agents(found: Figures) -> Iterator[str]:
    lost = "{%s[11700 tokens/s]:.0%%}; {%s[36000 tokens/s]:.0%%}"
    columns = {
        "CPU of a call: the SDK": "{sdk_ms:.1f} ms",
        "all of the thread": "{thread_ms:.1f} ms",
        "lost of 11,700; 36,000 tokens/s": lost % ("lost", "lost"),
        "with vLLM's client": lost % ("lost_with_vllm", "lost_with_vllm"),
    }
    return by_item("calls × tokens", found["agents"], columns)


def verdict(found: Figures) -> Iterator[str]:
    rows = {
        "runs in which nothing changes that are called learned or worse, in the worst cell": (
            "{false_verdicts_max:.1%}",
            "5 %",
        ),
        "healthy runs with rare rewards that raise `collapse`": ("{collapse_false:.1%}", "1 %"),
        "runs that learn short answers and raise `length_collapse`": ("{length_collapse_false:.1%}", "5 %"),
    }
    return by_figure({"found": found}, rows)


def rejudge(*seeds: Figures) -> Iterator[str]:
    rows = {
        "holes whose first wrong step is named exactly": ("{found} of {of}", "8 of 8"),
        "runs with the right judge in which one is named": ("{false}", "0"),
        "tokens until the target, going on beside a new start, median of the holes": (
            "{tokens_share:.1%}",
            "60 %",
        ),
        "planted regressions that `ajet bisect` finds": ("{bisect_right} of 10", "9 of 10"),
        "evaluations of checkpoints, of 32, at most": ("{bisect_evaluations}", "7"),
        "seconds to rejudge 10,000 episodes": ("{seconds:.0f}", "120"),
    }
    return by_figure({f"seed {found['seed']}": found for found in seeds}, rows)


def forecast(*seeds: Figures) -> Iterator[str]:
    rows = {
        "jobs of known fate whose first named cause is the true one, before or within a quarter of the run": (
            "{named} of {of}",
            "11 of 12",
        ),
        "alarms in healthy runs that reach the target": ("{false_alarms}", "0"),
        "true shares of groups with signal, and pass@k, in the forecast's intervals": (
            "{intervals_held}",
            "36 of 40",
        ),
        "of all these runs, steps to the target within a factor of 2 of what the run took, with `--probe`": (
            "{steps_within_factor_2}",
            "8 of 12",
        ),
        "judges with a planted hole in which `--attack` finds it; sound judges that it names": (
            "{holes_found}; {sound_judges_flagged}",
            "8 of 8; 0",
        ),
        "CPU of a step that alarms take": ("{alarm_cpu_share:.1%}", "1 %"),
    }
    return by_figure({f"seed {found['seed']}": found for found in seeds}, rows)


def vocabulary(found: Figures) -> Iterator[str]:
    rows = {
        "peak memory of an update beyond the model's: all logits; chunks": (
            "{logits[peak_mib]:,.0f} MiB; {chunks[peak_mib]:,.0f} MiB",
            "60 % less",
        ),
        "CPU time: all logits; chunks": (
            "{logits[seconds]:.0f} s; {chunks[seconds]:.0f} s",
            "1.2 times as much",
        ),
    }
    return by_figure({f"{found['tokens']:,} tokens": found}, rows)


def credit(*seeds: Figures) -> Iterator[str]:
    tokens = "sampled tokens until nine tenths of plain groups' gain, plain / tree; until half: "
    gains = "gain, plain; tree: "
    rows: dict[str, str | tuple[str, str]] = {}
    for task, least in (("doors", "1.5"), ("frozenlake", "1.2"), ("learn_to_ask", "1.2"), ("search", "1.2")):
        ratios = f"{{tasks[{task}][tokens_ratio]:.2f}}; {{tasks[{task}][half_ratio]:.2f}}"
        rows[f"{tokens}`{task}`"] = (ratios, least)
        rows[f"{gains}`{task}`"] = f"{{tasks[{task}][gain_grpo]:+.2f}}; {{tasks[{task}][gain_tree]:+.2f}}"
    rows["correlation with the true advantages, `doors`: plain; tree"] = (
        "{correlation_grpo:.2f}; {correlation_tree:.2f}",
        "tree 0.8",
    )
    rows["forks that diverged"] = "{forks_diverged}"
    return by_figure({f"seed {found['seed']}": found for found in seeds}, rows)


def steering(*seeds: Figures) -> Iterator[str]:
    tasks = {
        f"`{name}`, seed {found['seed']}": {
            **task,
            "ratio": task["tokens_ratio"] or "plain groups gain too little",
        }
        for found in seeds
        for name, task in found["tasks"].items()
    }
    columns = {
        "sampled tokens": "{tokens:,}",
        "gain, plain; steered": "{gain_plain:+.2f}; {gain_steered:+.2f}",
        "tokens until nine tenths of plain groups' gain, plain / steered": "{ratio}",
        "groups without signal": "{groups_without_signal[0]:.2f}; {groups_without_signal[1]:.2f}",
    }
    return by_item("task", tasks, columns)


SEEDS = range(3)
AREAS = {
    "learning": Area([f"learning_seed{seed}" for seed in SEEDS], learning),
    "examples": Area([], examples),
    "wheels": Area(["from_wheels"], wheels),
    "merging": Area(["tracker"], merging),
    "tracker": Area(["tracker"], tracker),
    "capture": Area(["gateway", "capture"], capture),
    "agents": Area(["agents"], agents),
    "attacks": Area(["gateway_attack"], attacks),
    "online": Area([f"online_seed{seed}" for seed in SEEDS], online),
    "flood": Area(["online_flood"], flood),
    "store": Area(["online_store_sqlite", "online_store_postgresql"], store),
    "runner": Area(["verl_runner"], runner),
    "scale": Area(["verl_scale"], scale),
    "local": Area(["local_step", "local_learning", "generation"], local),
    "trees": Area(["tree_training"], trees),
    "vocabulary": Area(["vocabulary"], vocabulary),
    "verl": Area(["verl_math", "verl_timelines", "verl_async", "verl_exact"], as_noted),
    "verl_trees": Area(["verl_trees"], verl_trees),
    "trinity": Area(["trinity_learning", "trinity_exact"], trinity),
    "profile": Area(["step_profile"], profile),
    "gpu": Area(["prove_h200", "prove_h200_bitsandbytes", "prove_h100"], gpu),
    "gpu_vllm": Area(["prove_h100_vllm"], gpu_vllm),
    "studio": Area(["studio"], studio),
    "forecast": Area(["forecast", "forecast_seed2"], forecast),
    "verdict": Area(["verdict"], verdict),
    "rejudge": Area(["rejudge", "rejudge_seed1", "rejudge_seed2"], rejudge),
    "credit": Area([f"credit_seed{seed}" for seed in SEEDS], credit),
    "steering": Area([f"steering_seed{seed}" for seed in SEEDS], steering),
}
"""Name in the page's mark -> its table."""


def with_tables(page: str) -> str:
    """A page in which a table replaces each mark, ``<!-- table: NAME -->``. Raises KeyError if no table has that name."""
    return re.sub(r"<!-- table: (\w+) -->", lambda mark: "\n".join(lines(mark[1])), page)


def lines(name: str) -> Iterator[str]:
    """A table, and where it comes from."""
    results = [read(result) for result in AREAS[name].names]
    yield from AREAS[name].lines(*(found.figures for found in results))
    yield from origins(results)


if __name__ == "__main__":
    print(with_tables((ROOT / "bench" / "README.md").read_text(encoding="utf-8")))
