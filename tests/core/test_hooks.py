"""Hooks that are functions: who calls them, when, and what becomes of their exceptions."""

from __future__ import annotations

import importlib.metadata
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np
import pytest
import yaml

from ajet import (
    AjetError,
    Backbone,
    Judge,
    JudgeOutput,
    Logger,
    hookimpl,
    load_run,
)
from ajet import plugins as plugin_module
from ajet.capture.wires.chat_completions import ChatCompletions
from ajet.interfaces.backbone import Capabilities, RunResult
from ajet.interfaces.events import Attempt, CheckpointSaved, EpisodeEnd, RunEnd, RunStart, StepEnd
from ajet.interfaces.progress import Silent, current_progress
from ajet.job.config import Layers
from ajet.job.job import Job
from ajet.job.prepare import prepare
from ajet.plugins import Plugins, load_plugins
from ajet.rollout.recorder import METRICS, live_lines
from ajet.testing import ScriptedEngine
from ajet.types import Batch, ConfigError, Metrics

AGENT = """
import httpx2
URL = "http://127.0.0.1:9/v1/chat/completions"
def ask(task):
    return {"model": "m", "messages": [{"role": "user", "content": task.query}]}
async def run(task):
    async with httpx2.AsyncClient() as client:
        return (await client.post(URL, json=ask(task))).json()["choices"][0]["message"]["content"]
async def labelled(task):
    import ajet
    with ajet.label(agent="by-hand"):
        return await run(task)
def in_thread(task):
    return httpx2.post(URL, json=ask(task)).json()["choices"][0]["message"]["content"]
async def fails(task):
    await run(task)
    raise KeyError("lost")
async def half(task):
    answer = await run(task)
    if task.id == "t1":
        raise KeyError("lost")
    return answer
"""


def plugin(name: str, **hooks: Callable[..., Any]) -> Any:
    """A plugin module with these hooks."""
    return SimpleNamespace(__name__=name, **{hook: hookimpl(function) for hook, function in hooks.items()})


def around(
    start: Callable[[Attempt], object] = lambda attempt: None,
    end: Callable[[Attempt], object] = lambda attempt: None,
) -> Callable[[Attempt], AbstractAsyncContextManager[None]]:
    """A hook `ajet_attempt`."""

    @asynccontextmanager
    async def hook(attempt: Attempt) -> AsyncIterator[None]:
        start(attempt)
        yield
        end(attempt)

    return hook


class Lines(Silent):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


Script = Callable[[Any, str], str]


class ScriptTrainer:
    """A trainer over a scripted engine: learns nothing, counts all."""

    def __init__(self, tokenizer: Any, script: Script = lambda request, prompt: "4") -> None:
        self.engine = ScriptedEngine(tokenizer, script)
        self.version = 0

    def update(self, batch: Batch) -> Metrics:
        return {
            "tokens_trained": float(sum(np.sum(s.mask) for s in batch.samples)),
            "tokens_zero_advantage": 0.0,
        }

    async def publish(self) -> int:
        self.version += 1
        self.engine.version = self.version
        return self.version

    def save(self, path: Path) -> None:
        path.mkdir()

    def load(self, path: Path) -> None: ...


class Training:
    """A small training job with plugins of this test."""

    def __init__(self, folder: Path, tokenizer: Any, plugins: Plugins) -> None:
        self.folder, self.plugins, self.lines = folder, plugins, Lines()
        (folder / "agent.py").write_text(AGENT)
        (folder / "tasks.jsonl").write_text(
            "".join(f"{json.dumps({'id': f't{i}', 'query': '?'})}\n" for i in range(2))
        )
        self.attach("trainer", ajet_plugins=lambda: [scripted_backbone(tokenizer)])

    def attach(self, name: str, **hooks: Callable[..., Any]) -> None:
        self.plugins.register(plugin(name, **hooks), f"ajet-{name}", "1")

    def run(
        self,
        workflow: str = "run",
        steps: int = 2,
        sets: Mapping[str, Any] = MappingProxyType({}),
        resume: Path | None = None,
        **run: Any,
    ) -> RunResult:
        layers = Layers()
        job = {
            "task": {"reader": "tasks.jsonl"},
            "workflow": f"agent.py:{workflow}",
            "judge": "always",
            "rollout": {"group_size": 2, "retries": 1},
            "train": {"steps": steps, "batch_size": 2},
            "run": {"dir": str(self.folder / "runs"), **run},
            "backbone": "scripted",
        }
        layers.add(job, "job.yaml", self.folder)
        for key, value in sets.items():
            layers.set(key, value, "--set", self.folder)
        ready = prepare(layers, resume=resume).with_progress(self.lines)
        return ready.backbone.run(ready)

    def journal(self, result: RunResult) -> list[dict[str, Any]]:
        return list(live_lines(result.run_dir / "episodes.jsonl"))


def scripted_backbone(
    tokenizer: Any, script: Script = lambda request, prompt: "4", called: str = "scripted"
) -> type[Backbone]:
    class Scripted(Backbone):
        """Trains nothing."""

        name = called
        capabilities = Capabilities()

        def run(self, job: Job) -> RunResult:
            from ajet.runs.train import train_job

            return train_job(job, ScriptTrainer(tokenizer, script))

    return Scripted


class Always(Judge):
    """Reward 1."""

    name = "always"

    async def judge(self, task: Any, output: Any, episode: Any) -> JudgeOutput:
        return JudgeOutput(1.0)


@pytest.fixture
def training(tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    plugins = load_plugins.__wrapped__()
    monkeypatch.setattr(plugin_module, "load_plugins", lambda: plugins)
    monkeypatch.setattr("ajet.job.parts.load_plugins", lambda: plugins)
    plugins.register(plugin("always", ajet_plugins=lambda: [Always]), "ajet-always", "1")
    yield Training(tmp_path, tokenizer, plugins)


def agents(lines: list[dict[str, Any]]) -> set[str]:
    return {call["agent"] for line in lines for call in line["calls"]}


# ------------------------------------------------------------------ whose call is it


def test_a_plugin_names_the_agent_of_a_call(training: Training) -> None:
    seen: list[Any] = []

    def resolve(episode: str, request: Any) -> str:
        seen.append((episode, request["url"]))
        return "solver"

    training.attach("framework", ajet_resolve_agent=resolve)
    lines = training.journal(training.run())
    assert agents(lines) == {"solver"}
    assert {episode for episode, _ in seen} == {line["id"] for line in lines}
    assert {url for _, url in seen} == {"http://127.0.0.1:9/v1/chat/completions"}


def test_the_first_answer_wins_and_none_passes_on(training: Training) -> None:
    training.attach("last", ajet_resolve_agent=lambda: "never asked")
    training.attach("second", ajet_resolve_agent=lambda: "second")
    training.attach("first", ajet_resolve_agent=lambda: None)
    assert agents(training.journal(training.run())) == {"second"}


@pytest.mark.whole
def test_nobody_knows_the_agent(training: Training) -> None:
    training.attach("framework", ajet_resolve_agent=lambda: None)
    assert agents(training.journal(training.run())) == {"agent"}


@pytest.mark.whole
def test_a_label_of_the_user_beats_every_plugin(training: Training) -> None:
    training.attach("framework", ajet_resolve_agent=lambda: "solver")
    assert agents(training.journal(training.run("labelled"))) == {"by-hand"}


@pytest.mark.whole
@pytest.mark.parametrize("workflow", ["run", "in_thread"])
def test_an_exception_while_naming_is_counted_and_never_raised(training: Training, workflow: str) -> None:
    def resolve(episode: str) -> str:
        raise RuntimeError("no luck")

    training.attach("framework", ajet_resolve_agent=resolve)
    result = training.run(workflow, steps=1)
    lines = training.journal(result)
    assert agents(lines) == {"agent"} and all(line["failure"] is None for line in lines)
    assert [line["counters"]["resolve_agent_failed"] for line in lines] == [1] * 4
    (metrics,) = live_lines(result.run_dir / METRICS)
    assert metrics["calls/resolve_agent_failed"] == 4, "where the user sees it"


@pytest.mark.whole
def test_a_plugins_wire_is_asked_where_its_path_is_the_longest(training: Training) -> None:
    class Mine(ChatCompletions):
        path = "9/v1/chat/completions"

        def parse(self, body: bytes) -> Any:
            seen.append(body)
            return super().parse(body)

    seen: list[bytes] = []
    training.attach("dialect", ajet_wires=lambda: [Mine()])
    training.run(steps=1)
    assert not seen, "another path"
    Mine.path = "/v1/chat/completions"
    training.run(steps=1)
    assert len(seen) == 4


# ------------------------------------------------------------------ episodes


@pytest.mark.parametrize("workflow", ["run", "in_thread"])
def test_the_start_of_an_episode_runs_in_the_context_of_its_workflow(
    training: Training, workflow: str
) -> None:
    current: ContextVar[str] = ContextVar("current", default="outside")
    training.attach(
        "framework",
        ajet_attempt=around(lambda attempt: current.set(f"inside {attempt.episode}")),
        ajet_resolve_agent=lambda: current.get(),
    )
    lines = training.journal(training.run(workflow, steps=1))
    assert agents(lines) == {f"inside {line['id']}" for line in lines}
    assert current.get() == "outside", "and nowhere else"


@pytest.mark.whole
def test_start_and_end_are_told_of_every_attempt_with_its_failure(training: Training) -> None:
    started: list[str] = []
    ended: list[tuple[str, str | None]] = []
    training.attach(
        "framework",
        ajet_attempt=around(
            lambda attempt: started.append(attempt.episode),
            lambda attempt: ended.append((attempt.episode, attempt.failure)),
        ),
    )
    lines = training.journal(training.run(steps=1))
    assert sorted(started) == sorted(line["id"] for line in lines)
    assert sorted(ended) == sorted((line["id"], None) for line in lines)
    started.clear(), ended.clear()
    with pytest.raises(Exception, match="all 4 episodes failed"):
        training.run("fails", steps=1)
    assert len(started) == len(ended) == 4 * 2, "the first attempt and its retry"
    assert {failure for _, failure in ended} == {"workflow:KeyError"}


@pytest.mark.whole
def test_a_run_tells_the_first_failure_of_a_cause_at_once(training: Training) -> None:
    training.run("half", steps=2)
    (told,) = [line for line in training.lines.said if "the first by" in line]
    assert "t1/" in told and "failed, the first by workflow:KeyError: KeyError: 'lost' (" in told
    assert "agent.py:" in told and "Fix the agent; what the model did wrong" in told


def test_an_exception_at_an_episodes_end_is_counted_and_ends_nothing(training: Training) -> None:
    def end(attempt: Attempt) -> None:
        raise RuntimeError("no luck")

    training.attach("framework", ajet_attempt=around(end=end))
    lines = training.journal(training.run(steps=1))
    assert [line["counters"]["attempt_end_failed"] for line in lines] == [1] * 4
    assert all(line["failure"] is None for line in lines)


@pytest.mark.whole
def test_an_exception_at_an_episodes_start_fails_that_attempt_only(training: Training) -> None:
    started: list[str] = []

    def start(attempt: Attempt) -> None:
        started.append(attempt.episode)
        if len(started) <= 2:
            raise RuntimeError("not ready")

    training.attach("framework", ajet_attempt=around(start))
    lines = training.journal(training.run(steps=1))
    assert all(line["failure"] is None for line in lines)
    assert sorted(line["attempt"] for line in lines) == [0, 0, 1, 1]


# ------------------------------------------------------------------ steps


def test_the_end_of_each_step_is_told_with_its_metrics(training: Training) -> None:
    told: list[tuple[int, float]] = []
    training.attach("watcher", ajet_step_end=lambda event: told.append((event.step, event.metrics["reward"])))
    training.run(steps=3)
    assert told == [(1, 1.0), (2, 1.0), (3, 1.0)]


class Unlucky(Logger):
    """Raises always."""

    name = "unlucky"

    def log(self, run_dir: Path, step: int, metrics: Metrics) -> None:
        raise OSError("no connection")

    def close(self) -> None:
        raise OSError("no connection")


@pytest.mark.whole
def test_a_hook_and_a_logger_that_raise_are_reported_once_and_the_run_goes_on(training: Training) -> None:
    def step_end(event: StepEnd) -> None:
        raise RuntimeError("no luck")

    training.attach("watcher", ajet_step_end=step_end, ajet_plugins=lambda: [Unlucky])
    result = training.run(steps=3, loggers=["unlucky"])
    assert result.steps == 3 and result.checkpoint is not None
    said = [line for line in training.lines.said if "The run continues" in line]
    assert len(said) == 2
    assert any("hook ajet_step_end failed: RuntimeError: no luck" in line for line in said)
    assert any("logger 'unlucky' failed: OSError: no connection" in line for line in said)


# ------------------------------------------------------------------ the events of a run

EVENTS = ("ajet_run_start", "ajet_episode_end", "ajet_step_end", "ajet_checkpoint_saved", "ajet_run_end")


def watch(training: Training, name: str = "watcher") -> list[Any]:
    """All events that a plugin receives."""
    seen: list[Any] = []

    def keep(event: Any) -> None:
        seen.append(event)

    training.attach(name, **dict.fromkeys(EVENTS, keep))
    return seen


def names(events: list[Any]) -> list[str]:
    return [type(event).__name__ for event in events]


@pytest.mark.whole
def test_the_events_of_a_run_arrive_in_order(training: Training) -> None:
    events = watch(training)
    validation = {"task.validation": "tasks.jsonl", "train.save_every": 1, "eval.every": 0}
    result = training.run(steps=2, sets=validation)
    step = ["EpisodeEnd"] * 4 + ["StepEnd"]
    validated = ["EpisodeEnd"] * 2
    found = names(events)
    first = found.index("CheckpointSaved")
    assert (
        2 + len(validated + step) <= first + 1 < len(found) - len(["StepEnd", *validated, "CheckpointSaved"])
    )
    del found[first]  # while the episodes of step 2 run
    assert found == ["RunStart", *validated, *step, *step, *validated, "CheckpointSaved", "RunEnd"]
    assert {event.run_dir for event in events} == {result.run_dir}
    start, end = events[0], events[-1]
    assert start.config == yaml.safe_load((result.run_dir / "job.yaml").read_text())
    assert start.config["train"]["steps"] == 2 and start.resumed_after is None
    assert (end.result, end.error) == (result, None)
    saved = [event for event in events if type(event).__name__ == "CheckpointSaved"]
    assert [event.step for event in saved] == [1, 2]
    assert saved[-1].path == result.checkpoint
    episodes = [event for event in events if isinstance(event, EpisodeEnd)]
    assert [(e.phase, e.step) for e in episodes] == (
        [("validation", 0)] * 2 + [("train", 1)] * 4 + [("train", 2)] * 4 + [("validation", 2)] * 2
    )
    assert [e.id for e in episodes] == [line["id"] for line in training.journal(result)]


def test_an_episode_arrives_with_its_task_verdict_failure_chats_and_timelines(training: Training) -> None:
    events, began = watch(training), time.time()
    result = training.run("half", steps=1)
    episodes = [event for event in events if isinstance(event, EpisodeEnd)]
    assert sorted(e.task.id for e in episodes) == ["t0", "t0", "t1", "t1"]
    for episode in episodes:
        assert episode.task.query == "?"
        failed = episode.task.id == "t1"
        assert episode.failure == ("workflow:KeyError" if failed else None)
        assert episode.reward == (0.0 if failed else 1.0)
        assert ("lost" in episode.error) == failed
        assert episode.response == (None if failed else "4")
        assert [m["content"] for m in episode.messages[0]] == ["?", "4"]
        (call,) = episode.calls
        assert (call.agent, call.target, call.truncated) == ("agent", "policy", False)
        assert (call.prompt_tokens, call.sampled_tokens) == (len(prompt_of(episode)), 1 + 1), "4, end"
        assert began <= episode.started <= call.started
        (line,) = episode.timelines
        assert line.mask.any() and not line.mask.all()
        assert np.isnan(line.logprobs[~line.mask]).all() and np.isfinite(line.logprobs[line.mask]).all()
        (recorded,) = [e for e in load_run(result.run_dir).episodes() if e.id == episode.id]
        assert recorded.timelines[0].token_ids.tolist() == line.token_ids.tolist()


def prompt_of(episode: EpisodeEnd) -> Any:
    (line,) = episode.timelines
    return line.token_ids[~line.mask]


def test_a_run_that_fails_ends_with_its_error(training: Training) -> None:
    events = watch(training)
    with pytest.raises(AjetError, match="all 4 episodes failed") as raised:
        training.run("fails", steps=1)
    assert names(events) == ["RunStart", *["EpisodeEnd"] * 4, "RunEnd"]
    assert events[-1].error is raised.value and events[-1].result is None


@pytest.mark.whole
def test_a_resumed_run_says_after_which_step_and_sends_no_episode_twice(training: Training) -> None:
    def stop(event: StepEnd) -> None:
        if event.step == 2 and not stopped:
            stopped.append(event.step)
            raise KeyboardInterrupt

    stopped: list[int] = []
    events = watch(training)
    training.attach("stopper", ajet_step_end=stop)
    with pytest.raises(KeyboardInterrupt):
        training.run(steps=3, sets={"train.save_every": 1})
    assert isinstance(events[-1].error, KeyboardInterrupt)
    (before, run_dir) = len(events), events[0].run_dir
    result = training.run(steps=3, sets={"train.save_every": 1}, resume=run_dir)
    assert result.run_dir == run_dir
    resumed = events[before:]
    assert resumed[0].resumed_after == 1
    assert [e.step for e in resumed if isinstance(e, StepEnd)] == [2, 3]
    sent = [e.id for e in resumed if isinstance(e, EpisodeEnd)]
    again = [line["id"] for line in training.journal(result) if line["step"] == 3]
    assert set(again) <= set(sent) and len(sent) == len(set(sent))
    assert resumed[-1].result == result


class Keeps(Logger):
    """Keeps what it receives."""

    name = "keeps"
    seen: ClassVar[list[Any]] = []

    def run_start(self, event: RunStart) -> None:
        self.seen.append(event)

    def episode_end(self, event: EpisodeEnd) -> None:
        self.seen.append(event)

    def log(self, run_dir: Path, step: int, metrics: Metrics) -> None:
        self.seen.append(step)


def test_a_logger_receives_the_resolved_job_and_the_episodes(training: Training) -> None:
    Keeps.seen.clear()
    training.attach("keeps", ajet_plugins=lambda: [Keeps])
    result = training.run(steps=1, loggers=["keeps"])
    start, *episodes, step = Keeps.seen
    assert start.run_dir == result.run_dir and start.config["judge"] == {"type": "always"}
    assert sorted((e.task.id, e.reward) for e in episodes) == [("t0", 1.0)] * 2 + [("t1", 1.0)] * 2
    assert step == 1


class KeepsAll(Keeps):
    """Keeps checkpoints and the end, too, in every run."""

    name = "keeps_all"

    @classmethod
    def unnamed(cls) -> Self:
        return cls()

    def checkpoint_saved(self, event: CheckpointSaved) -> None:
        self.seen.append(event)

    def run_end(self, event: RunEnd) -> None:
        self.seen.append(event)

    def close(self) -> None:
        self.seen.append("close")


def test_a_logger_receives_checkpoints_and_the_end_and_is_closed_last(training: Training) -> None:
    Keeps.seen.clear()
    training.attach("keeps", ajet_plugins=lambda: [KeepsAll])
    result = training.run(steps=1, loggers=["keeps_all"])
    *_, step, checkpoint, end, closed = Keeps.seen
    assert (step, checkpoint.path, end.result, closed) == (1, result.checkpoint, result, "close")
    assert Keeps.seen.count("close") == 1, "a job that names it gets it once"


def test_a_logger_may_be_part_of_every_run_and_is_told_how_it_failed(training: Training) -> None:
    Keeps.seen.clear()
    training.attach("keeps", ajet_plugins=lambda: [KeepsAll])
    with pytest.raises(AjetError, match="all 4 episodes failed") as raised:
        training.run("fails", steps=1)
    assert isinstance(Keeps.seen[0], RunStart)
    assert Keeps.seen[-2].error is raised.value and Keeps.seen[-1] == "close"


class Says(Keeps):
    """Reports to the run's progress."""

    name = "says"

    def episode_end(self, event: EpisodeEnd) -> None:
        current_progress().say(f"reward {event.reward}")


def test_what_a_logger_reports_is_shown_by_the_run(training: Training) -> None:
    training.attach("says", ajet_plugins=lambda: [Says])
    training.run(steps=1, loggers=["says"])
    assert training.lines.said.count("reward 1.0") == 4


class Breaks(Keeps):
    """Raises always."""

    name = "breaks"

    def run_start(self, event: RunStart) -> None:
        raise OSError("no connection")

    def episode_end(self, event: EpisodeEnd) -> None:
        raise OSError("no connection")


@pytest.mark.whole
def test_what_raises_at_an_event_is_reported_once_and_the_others_receive_the_event(
    training: Training,
) -> None:
    def broken(event: Any) -> None:
        raise RuntimeError(f"no {type(event).__name__}")

    first = watch(training, "first")
    training.attach("broken", **dict.fromkeys(EVENTS, broken), ajet_plugins=lambda: [Breaks])
    last = watch(training, "last")
    result = training.run(steps=2, loggers=["breaks"])
    assert result.steps == 2 and result.checkpoint is not None
    assert names(first) == names(last) and len(first) == 1 + 8 + 2 + 1 + 1
    said = [line for line in training.lines.said if "The run continues" in line]
    assert len(said) == len(EVENTS) + 1, "each hook once, and the logger"
    for hook in EVENTS:
        (line,) = [
            line for line in said if f"plugin ajet-broken: hook {hook} failed: RuntimeError: no " in line
        ]
        assert "test_hooks.py" in line, "where"
    assert any("logger 'breaks' failed: OSError: no connection" in line for line in said)


# ------------------------------------------------------------------ broken entry points


@pytest.fixture
def entry_points(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plugins]:
    """Load plugins as if these modules were installed beside the core's own plugins."""
    core = [entry for entry in importlib.metadata.entry_points(group="ajet") if entry.dist.name == "ajet"]

    def load(**modules: Callable[[], Any]) -> Plugins:
        entries = [
            SimpleNamespace(
                name=n, value=f"{n}_module", dist=SimpleNamespace(name=f"ajet-{n}", version="1"), load=m
            )
            for n, m in modules.items()
        ]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [*entries, *core])
        return load_plugins.__wrapped__()

    return load


def broken_import() -> Any:
    raise ImportError("libheavy.so is missing")


def test_a_broken_entry_point_is_listed_and_fails_only_jobs_that_name_it(
    entry_points: Callable[..., Plugins],
) -> None:
    plugins = entry_points(bad=broken_import, good=lambda: plugin("good", ajet_plugins=lambda: [Always]))
    (broken,) = plugins.broken
    assert (broken.entry_point, broken.distribution) == ("bad_module", "ajet-bad")
    assert broken.error == "ImportError: libheavy.so is missing"
    assert plugins.build(Judge, {"type": "always"}, "judge") == Always()
    with pytest.raises(
        ConfigError, match=r"unknown judge 'bad'.*ajet-bad did not load: ImportError: libheavy"
    ):
        plugins.build(Judge, {"type": "bad"}, "judge")


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ({"ajet_plugin": lambda: [Always]}, "ajet_plugin: no such hook; did you mean 'ajet_plugins'"),
        ({"ajet_step_end": lambda evnet: None}, "evnet"),
        ({"ajet_handles": lambda: 1 / 0}, "ZeroDivisionError"),
    ],
    ids=["a misspelt hook", "a misspelt argument", "a hook that raises"],
)
def test_a_plugin_is_checked_when_it_registers_and_taken_whole_or_not_at_all(
    entry_points: Callable[..., Plugins], hooks: dict[str, Any], said: str
) -> None:
    called: list[str] = []
    bad = plugin(
        "bad",
        ajet_plugins=lambda: [Always],
        ajet_doctor=lambda: called.append("doctor") or [],
        **hooks,
    )
    plugins = entry_points(bad=lambda: bad)
    (broken,) = plugins.broken
    assert said in broken.error
    assert ("judge", "always") not in plugins.classes
    plugins.manager.hook.ajet_doctor()
    assert called == []
