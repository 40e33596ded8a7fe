"""The trainer: takes what users have rated, lets the job's backbone learn from it, and publishes what passes the gate.

Each update is a short run of the job's backbone, in the run folder of the trainer, on tasks whose episodes took place before.
A checkpoint counts only if it is in the store, where its traces are marked as trained in the same transaction. So a trainer
that is killed at any time continues from the store: a checkpoint that is not there is added, or set aside if its lease is
lost.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ajet import AjetError, ConfigError, Job, model_source
from ajet.chat.renderer import Chat
from ajet.interfaces.backbone import Metrics
from ajet.interfaces.helpers import write_whole
from ajet.learning.rollouts import ValidationFailed
from ajet.rollout.checkpoints import CHECKPOINTS, checkpoints, fault, step_of
from ajet.rollout.recorder import JOURNAL, METRICS, live_lines
from ajet.runs.restarts import run_job
from ajet.runs.run_dir import new_run_dir
from ajet.runs.runtime import make_chat
from ajet_online.database import StoreFailed
from ajet_online.episodes import (
    Usable,
    compares_runs,
    corrected,
    learns_rewards,
    ratings_needed,
    too_long,
    usable,
)
from ajet_online.gate import Measured, decide
from ajet_online.schema import Stage
from ajet_online.settings import OnlineSettings
from ajet_online.store import Lease, TraceStore
from ajet_online.trace import Trace
from ajet_online.versions import Version, Versions, distance

ROUND = "round.json"
"""File of the run folder that names the lease and the parent of the update in progress."""
ASIDE = "aside_"
"""Prefix of the folders of checkpoints from which no run continues: they were rejected or withdrawn, or lost their lease."""
STALENESS = 8
"""Default of `train.max_staleness`: how many updates may lie between the weights that sampled and those that learn."""
KEPT = 5
"""Default of `train.keep_last`: how many versions back a rollback can go."""
MOST_JOURNAL = 256 << 20
"""Bytes of the run folder's journal, which each update reads, after which the next update begins a new run folder."""
RETRY_SECONDS = 1.0
"""How long the trainer waits before it tries a store again."""
MOST_WAITED = 8
"""An update takes at most so many times the ratings that it has waited for."""
MEMORY = 0.5
"""Share of the earlier updates in the running baseline."""


@dataclass(kw_only=True)
class OnlineTrainer:
    """Trains a prepared job on the traces of a store. ``run_dir`` is a run folder of the job, in a folder that this process
    holds."""

    job: Job
    store: TraceStore
    settings: OnlineSettings
    run_dir: Path
    say: Callable[[str], None]
    stop: threading.Event = field(default_factory=threading.Event)
    """Set it to end `run` before the next update."""

    def __post_init__(self) -> None:
        self.versions = Versions(self.store)
        self._single = not compares_runs(self.job.algorithm)
        self._updates = 0
        self._waits_for: int | None = None
        """The version whose ratings an update has last waited for."""
        self._shares = False
        """Whether it was said that another trainer uses the store."""
        targets = [target.name for target in self.job.targets if target.trained]
        if len(targets) != 1:
            raise ConfigError(f"targets: online training trains one target, not {', '.join(targets)}.")
        if self.job.config.train.schedule != "constant":
            raise ConfigError("train.schedule: online training has no last step; remove the key.")
        if self.job.config.run.deterministic:
            raise ConfigError("run.deterministic: what users say cannot be repeated; remove the key.")
        self._target = targets[0]

    # ---------------------------------------------------------------- the loop

    def run(self) -> None:
        """Train until `stop` is set, or after ``settings.updates`` updates. Waits for a store that fails. Raises AjetError if the
        backbone fails; leased traces are then ready again."""
        problem = ""
        recovered = False
        while not self.stop.is_set() and self._updates != self.settings.updates:
            try:
                if not recovered:
                    self.versions.begin(self.job.model)
                    self.recover()
                    recovered = True
                self._once()
                problem = ""
            except StoreFailed as error:  # it may come back; what was acknowledged is in it
                recovered = False
                if str(error) != problem:
                    problem = str(error)
                    self.say(f"{problem} Training waits for it.")
                self.stop.wait(RETRY_SECONDS)

    def _once(self) -> None:
        """One look at the store, and an update if there is enough to learn from."""
        wanted, needed = self.job.config.train.batch_size, ratings_needed(self.job.algorithm, self.settings)
        # While the served version gets its ratings and the update learns, more comes than it has waited for. What stayed behind
        # would be too old for the updates after this one.
        most = max(wanted, MOST_WAITED * needed)
        if self.commits:
            self.store.commit()
        if self.store.ready(by_run=self._single) < wanted or (needed and self._is_short_of(needed)):
            self.stop.wait(self.settings.poll)
        elif lease := self.store.lease(self.name, most, self.settings.lease, by_run=self._single):
            self.update(lease)
        else:
            if (other := self.store.holder()) and not self._shares:
                self._shares = True
                self.say(f"the trainer in {other} makes an update, and this one waits: trainers take turns")
            self.stop.wait(self.settings.poll)

    def _is_short_of(self, ratings: int) -> bool:
        """Whether the served version has fewer ratings."""
        number = self._serving().number
        short = self.versions.count_ratings(number) < ratings
        if short and self._waits_for != number:
            self._waits_for = number
            self.say(
                f"the update waits for {ratings} ratings of version {number} (plugins.online.rollback.ratings)"
            )
        return short

    @property
    def name(self) -> str:
        """What the store calls this trainer."""
        return self.settings.folder

    @property
    def commits(self) -> bool:
        """Whether feedback is complete as soon as it is given."""
        return self.settings.commit == "auto" or (self.settings.commit is None and self._single)

    def update(self, lease: Lease) -> Version | None:
        """Learn from the traces of a lease and let the gate decide. Returns the new version; None if there is none."""
        if _size(self.run_dir / JOURNAL) > MOST_JOURNAL:
            self.run_dir = new_run_dir(self.job)
        self._note(lease, 0, -1, {})  # so that a trainer of this folder releases it after a kill
        parent = self._serving()
        self._continue_from(parent)
        material = self._usable(lease, parent)
        for why in sorted(set(material.unusable.values())):
            self.store.discard([name for name, said in material.unusable.items() if said == why], why)
        if not material.tasks:
            self._register()
            self.say(
                f"{len(lease.traces)} replies cannot be trained: {'; '.join(set(material.unusable.values()))}"
            )
            return None
        job = self._job(material, parent)
        self._note(lease, parent.number, job.config.train.steps, self._about(material, parent))
        try:
            with self._renewing(lease.id):
                run_job(job)
        except FloatingPointError as error:
            names = [trace.id for trace in lease.traces]
            self.store.discard(names, f"the update failed: {error}")
            self.store.release(lease.id)
            self.say(f"the update failed, and its {len(names)} replies are discarded: {error}")
            return None
        except BaseException as error:
            # With a checkpoint it counts, as after a kill: another attempt would learn the same again.
            if step_of(self._newest()) != job.config.train.steps:
                self.store.release(lease.id)
                raise
            if not isinstance(error, ValidationFailed):
                raise
            self.say(str(error))
        return self._register()

    def _note(self, lease: Lease, parent: int, step: int, about: Mapping[str, Any]) -> None:
        """Note the update in progress in the run folder."""
        said = {"lease": lease.id, "parent": parent, "step": step, "about": about}
        write_whole(self.run_dir / ROUND, json.dumps(said))

    def recover(self) -> None:
        """Go on from where a trainer of this run folder was killed."""
        if (self.run_dir / ROUND).exists():
            self._register()
        self.store.release_all(self.name)  # of a trainer that was killed before it could note its lease

    # ---------------------------------------------------------------- one update

    def _job(self, material: Usable, parent: Version) -> Job:
        """The job of one update."""
        step = (step_of(self._newest()) or 0) + 1
        members = max(len(task.runs) for task in material.tasks)
        algorithm = self.job.algorithm.model_copy(update=self._running(material, parent))
        spec = {**self.job.config.train.algorithm, **self._running(material, parent)}
        given = self.job.layers.source_of
        own, tasks = self.job.config.train, len(material.tasks)
        train = own.model_copy(
            update={
                "steps": step,
                "batch_size": tasks,
                "mini_batches": own.mini_batches * max(tasks // own.batch_size, 1),
                "algorithm": spec,
                "max_staleness": None,  # `_usable` has compared versions of the store, which the backbone does not know
                "asynchronous": False,
                "dynamic_sampling": 1.0,
                "save_every": 1,
                # The served version stays until the gate has decided.
                "keep_last": KEPT if given("train.keep_last") == "default" else max(own.keep_last, 2),
            }
        )
        config = self.job.config.model_copy(
            update={
                "train": train,
                "rollout": self.job.config.rollout.model_copy(
                    update={"group_size": members, "oversample": 1.0, "fork": None, "steer": None}
                ),
            }
        )
        return replace(
            self.job, config=config, algorithm=algorithm, tasks=material.tasks, resume=self.run_dir
        )

    def _usable(self, lease: Lease, parent: Version) -> Usable:
        known = self.versions.all()
        most = self.job.config.train.max_staleness
        most = STALENESS if most is None else most
        learns_corrections = self.job.algorithm.name == "sft"
        needs_reward = learns_rewards(self.job.algorithm)
        low, high = self.settings.rewards

        def problem(trace: Trace) -> str | None:
            if not len(trace.tokens):
                return "its tokens are not stored (its text was redacted, or its conversation pruned)"
            if trace.reward is not None and not low <= trace.reward <= high:
                return f"its reward is not from {low:g} to {high:g} (plugins.online.rewards)"
            if learns_corrections and trace.correction:
                # At least; to count those of a very long text takes long.
                tokens = len(trace.correction) / self._widest
                return too_long(self._context) if tokens > self._context else None
            if learns_corrections:
                return "it has no correction"
            if needs_reward and trace.reward is None:
                return "it has no reward"
            if not trace.trained:
                return "it was sampled greedily, or with top_p or top_k"
            stale = distance(known, _version_of(trace), parent.number)
            return f"it is more than {most} updates old (train.max_staleness)" if stale > most else None

        traces = [
            t if problem(t) or not learns_corrections else corrected(t, self._chat) for t in lease.traces
        ]
        return usable(
            traces,
            self.store.conversation,
            problem,
            target=self._target,
            split=self._single,
            context=self._context,
        )

    def _running(self, material: Usable, parent: Version) -> dict[str, float]:
        """The fields of the algorithm that follow the course of training."""
        if self.job.algorithm.name == "reinforce" and not self._is_given("baseline"):
            mean = float(np.mean([run.reward for run in material.runs]))
            before = parent.report.get("baseline", mean)
            return {"baseline": MEMORY * before + (1 - MEMORY) * mean}
        if self.job.algorithm.name == "kto" and not self._is_given("reference_point"):
            return {"reference_point": max(parent.report.get("reference_log_ratio", 0.0), 0.0)}
        return {}

    def _is_given(self, name: str) -> bool:
        return name in self.job.algorithm.model_fields_set

    @contextmanager
    def _renewing(self, lease: int) -> Iterator[None]:
        """A block during which a lease does not expire."""
        over = threading.Event()

        def renew() -> None:
            while not over.wait(self.settings.lease / 3):
                try:
                    self.store.renew(lease, self.settings.lease)
                except AjetError as error:  # the next time may succeed
                    self.say(str(error))

        thread = threading.Thread(target=renew, name="ajet-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @cached_property
    def _source(self) -> str:
        return str(model_source(self.job.model, self.job.config.run.seed, self.job.progress))

    @cached_property
    def _config(self) -> Any:
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(self._source, trust_remote_code=False)

    @cached_property
    def _chat(self) -> Chat:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self._source, trust_remote_code=False)
        return make_chat(tokenizer, self._config.model_type, self.job.config.rollout)

    @cached_property
    def _context(self) -> int:
        """How many tokens an episode's conversation may have."""
        own = getattr(self._config.get_text_config(), "max_position_embeddings", sys.maxsize)
        return int(min(own, self.job.config.rollout.context_length or own))

    @cached_property
    def _widest(self) -> int:
        """Characters of the longest token."""
        return max(map(len, self._chat.tokenizer.get_vocab()))

    # ---------------------------------------------------------------- versions and checkpoints

    def _register(self) -> Version | None:
        """Add the checkpoint of an update to the store, and let the gate decide. Without a checkpoint, or without its validation, the
        traces are ready again. May be repeated after a kill."""
        said = json.loads((self.run_dir / ROUND).read_text())
        newest = self._newest()
        version = None
        if newest is None or step_of(newest) != said["step"]:
            self.store.release(said["lease"])
        elif self.job.validation and not _last(
            live_lines(self.run_dir / METRICS), "validation", said["step"]
        ):  # the gate would publish what nothing has measured
            self._set_aside(newest)
            self.store.release(said["lease"])
            self.say("the update is made again: it was interrupted before its validation")
        elif (number := self.versions.learned(said["lease"], str(newest), said["parent"])) is None:
            self._set_aside(newest)
            self.say(
                f"the update is not used: its lease had expired (plugins.online.lease is {self.settings.lease:g} s), so another "
                "trainer may have learned from the same replies"
            )
        else:
            self._updates += 1
            version = self._version(number)
            if version.stage == Stage.CANDIDATE:
                version = self._decide(version, said["about"])
        (self.run_dir / ROUND).unlink()
        return version

    def _decide(self, version: Version, about: Mapping[str, Any]) -> Version:
        """Publish a candidate or keep it back."""
        lines = live_lines(self.run_dir / METRICS)
        step = step_of(Path(version.path))
        self._measure_first(lines)
        known = self.versions.all()
        measured = Measured.of(_last(lines, "validation", step), known)
        reward = measured.reward if measured else None
        report = {**about, **_report(_last(lines, "train", step)), **(measured.report() if measured else {})}
        if "reference_kl" in report:
            report["reference_log_ratio"] = report["reference_kl"] * report["tokens_per_reply"]
        decision = decide(self.settings.gate, measured, known)
        if not decision.publish:
            self.versions.reject(version.number, reward, report, decision.text)
            self._set_aside(Path(version.path), version.number)
            self.say(f"version {version.number} is not published: {decision.text}")
        elif self.versions.publish(version.number, reward, report):
            self.say(f"version {version.number} is published: {decision.text}")
        else:
            self._set_aside(Path(version.path), version.number)
            reason = self._version(version.number).reason
            self.say(
                f"version {version.number} is not published, and its replies are learned again: {reason}"
            )
        return self._version(version.number)

    def _measure_first(self, lines: list[dict[str, Any]]) -> None:
        """Note the validation reward of version 0, which the first update measures."""
        first = self.versions.all()[0]
        measured = Measured.of(_last(lines, "validation", 0), ())
        if first.reward is None and measured:
            self.versions.measured(0, measured.reward, {**first.report, **measured.report()})

    def _about(self, material: Usable, parent: Version) -> dict[str, Any]:
        """What an update learns from."""
        known = self.versions.all()
        own = [t for run in material.runs for t in run.traces if t.trained]
        stale = [distance(known, _version_of(t), parent.number) for t in own]
        return {
            "replies": len(own),
            "reward": float(np.mean([run.reward for run in material.runs])),
            "staleness": float(np.mean(stale)),
            "staleness_max": max(stale),
            "discarded": len(material.unusable),
            "tokens_per_reply": float(np.mean([len(t.tokens) for t in own])),
            **self._running(material, parent),
        }

    def _version(self, number: int) -> Version:
        (wanted,) = [version for version in self.versions.all() if version.number == number]
        return wanted

    def _serving(self) -> Version:
        serving = self.versions.serving()
        assert serving  # `run` begins with one
        return serving

    def _owns(self, path: str) -> bool:
        return Path(path).parent == self.run_dir / CHECKPOINTS

    def _newest(self) -> Path | None:
        return next(reversed(checkpoints(self.run_dir)), None)

    def _continue_from(self, version: Version) -> None:
        """Let the run folder's newest checkpoint be that of a version: later ones are set aside, and another trainer's is
        copied."""
        own = {v.path: v.number for v in self.versions.all()}
        held = version.number == 0 or self._owns(version.path)
        for checkpoint in reversed(checkpoints(self.run_dir)):
            if held and str(checkpoint) == version.path:
                return
            self._set_aside(checkpoint, own.get(str(checkpoint)))
        if version.number == 0:
            return
        if why := fault(Path(version.path)):
            raise AjetError(
                f"version {version.number}: its checkpoint {version.path} cannot be used: {why}. Roll back to another version: "
                "`ajet online rollback`."
            )
        # Its own name may say that it was set aside, and no run continues from such a one.
        target = self.run_dir / CHECKPOINTS / f"step_{step_of(Path(version.path)):06d}"
        partial = target.with_name(f".partial_{target.name}")
        for left in (partial, target):
            shutil.rmtree(left, ignore_errors=True)
        shutil.copytree(version.path, partial)
        os.replace(partial, target)

    def _set_aside(self, checkpoint: Path, number: int | None = None) -> None:
        """Keep a checkpoint, but let no run continue from it."""
        name = f"{ASIDE}{checkpoint.name}" + (f"_version_{number}" if number is not None else "")
        aside = checkpoint.with_name(name)
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(checkpoint, aside)
        if number is not None:
            self.versions.moved(number, str(aside))


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _version_of(trace: Trace) -> int:
    """The version of the weights that sampled a reply."""
    return int(trace.versions[0]) if len(trace.versions) else 0


def _last(lines: list[dict[str, Any]], kind: str, step: int) -> dict[str, Any]:
    """The last metrics of a kind at a step; {} if there are none."""
    return next((line for line in reversed(lines) if line["type"] == kind and line["step"] == step), {})


def _report(trained: Metrics) -> dict[str, float]:
    """What is worth knowing of an update's metrics."""
    names = ("loss", "grad_norm", "logprob_diff_max", "reference_kl", "tokens_trained", "seconds_update")
    return {name: trained[name] for name in names if name in trained}
