"""Every sampled token of every call: trained once in its context with the algorithm's credit, or excluded by a rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ajet import AjetError
from ajet_audit import counts, credit
from ajet_audit.batches import SampleRow, Step, read_step
from ajet_audit.branches import unused
from ajet_audit.files import Folder
from ajet_audit.filters import MAX_TIMELINES, SIDE_CALLS, Filters
from ajet_audit.journal import Journal, JournalCall, JournalEntry, JournalEpisode
from ajet_audit.parent import ParentRun
from ajet_audit.prompts import PromptCheck
from ajet_audit.starts import Starts

OVER_LONG_ROWS = "over_long_rows"
"""The rule of the backbone verl for timelines that its workers cannot hold."""
CLOSE, NEARLY_ZERO = 2e-5, 1e-7
"""How far, relative and absolute, advantages and weights, float32, may be from those computed here in double precision."""


class Audit:
    """The audit of a run; `run` does it. The counts are of tokens, but `calls` of calls."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.journal = Journal(folder)
        self.prompts = PromptCheck(
            folder.path / "tokenizer",
            folder.setting("rollout.chat_template", {}),
            bool(folder.setting("rollout.tool_prompt", "")),
        )
        self.starts = Starts(folder, self.journal)
        self.algorithm: Mapping[str, Any] = folder.setting("train.algorithm")
        self.filters = Filters(
            folder.setting("train.filters", ()),
            folder.setting("train.max_timelines"),
            folder.setting("run.seed", 0),
        )
        self.is_verl = folder.setting("backbone.name") == "verl"
        self.has_record = not (self.is_verl and folder.setting("backbone.mode") == "separate_async")
        self.faults = folder.faults
        self.notes: list[str] = []
        """What could not be checked, and why."""
        if not self.has_record:
            self.notes.append("what was trained, of which verl keeps no record in separate_async")
        elif self.is_verl:
            self.notes.append(
                "what was trained token by token, as verl records no token ids and logprobs of its rows, only their places; how many "
                "episodes a step has, and their weight versions"
            )
        self.calls = self.sampled = self.trained = 0
        self.excluded: Counter[str] = Counter()
        self.unused: dict[str, list[int]] = {}
        """By episode, the trained calls whose answers no later call used. They are told, and do not count as faults."""
        self.unused_tokens = 0
        self.recorded = 0
        """Episodes that took place before the run, such as those of an online store."""

    def run(self) -> Audit:
        """Check the whole run."""
        for file in sorted((self.folder.path / "tokenizer").glob("*")):
            self.folder.read(f"tokenizer/{file.name}")
        by_step: dict[int, list[JournalEntry]] = {step: [] for step in self.folder.steps}
        validated: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
        for entry in self.journal.entries:
            if entry.phase == "train" and entry.step in by_step and entry.is_latest and not entry.done_again:
                by_step[entry.step].append(entry)
            else:
                episode = self.journal.episode(entry)
                self._leave_out(self._outside(entry), episode)
                self._name(entry, episode)
                if entry.phase != "train" and entry.is_latest and not entry.done_again:
                    validated.setdefault((entry.phase, entry.step), []).append(counts.figures(episode))
        # Of a run whose judge this one corrects.
        taken = [entry.id for entries in by_step.values() for entry in entries if entry.is_taken]
        parent = ParentRun(self.folder, taken)
        if parent.missing:
            self.notes.append(
                f"{len(taken)} episodes were not compared with the run that they are of: {parent.missing}"
            )
        for step, entries in by_step.items():
            episodes = [self.journal.episode(entry) for entry in entries]
            version = self.folder.metrics.get(step, {}).get("weight_version", step)
            for entry, episode in zip(entries, episodes, strict=True):
                self._name(entry, episode)
                if wrong := parent.fault(episode, step, version):
                    self.faults.append(f"step {step}, episode {entry.id}: {wrong}")
            try:
                self._step(step, episodes)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                self.faults.append(
                    f"step {step}: its files have other values than AgentJet writes ({type(error).__name__}: {error})"
                )
        self._validations(validated)
        if self.filters.unknown:
            self.notes.append(
                f"which calls the filters {', '.join(self.filters.unknown)} leave out: they are not AgentJet's"
            )
        if self.recorded:
            self.notes.append(
                f"{self.recorded} episodes took place before the run: their weight versions and the sizes of their groups were not "
                "compared with the job"
            )
        if self.prompts.missing:
            self.notes.append(f"prompts were not compared with the chat template: {self.prompts.missing}")
        self.notes += self.starts.notes
        for why, count in self.prompts.skipped.items():
            self.notes.append(f"{count} prompts {why} were not compared with the chat template")
        if not credit.known(self.algorithm):
            self.notes.append(
                f"the audit does not know the algorithm {self.algorithm['type']!r}: its advantages are not computed anew, and its "
                "weights are compared with the sums in the record"
            )
        return self

    def _name(self, entry: JournalEntry, episode: JournalEpisode) -> None:
        wrong = counts.named(
            entry, episode.line, is_verl=self.is_verl or not self.has_record, is_loop=self.folder.is_loop
        )
        if wrong:
            self.faults.append(f"episode {entry.id}: {wrong}")

    def _validations(self, figures: Mapping[tuple[str, int], Sequence[Mapping[str, Any]]]) -> None:
        """Compare the figures of each validation with its episodes; one that was tried twice has two lines."""
        lines: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
        for line in self.folder.validations:
            lines.setdefault((line["type"], line["step"]), []).append(line)
        for (kind, step), told in {} if self.is_verl else lines.items():
            wrong = _Told(self.faults, f"{kind} at step {step}")
            if len(told) == 1:
                counts.wrong_metrics(told[0], figures.get((kind, step), ()), wrong)
        for kind, step in sorted(figures.keys() - lines.keys()):
            if step >= self.folder.last and not self.folder.has_finished:
                self.notes.append(f"{kind} at step {step}, which did not come to its end")
            else:
                self.faults.append(f"{kind} at step {step}: metrics.jsonl has no line of it")

    def _outside(self, entry: JournalEntry) -> str:
        """Why the weights cannot have learned from an episode."""
        if entry.phase != "train":
            return "validation"
        if entry.done_again or not entry.is_latest:
            return "done_again"
        return "after_the_last_checkpoint"

    def _leave_out(self, rule: str, episode: JournalEpisode) -> None:
        for call in episode.calls.values():
            self._count(episode, call, rule)
        self._beside(episode)

    def _count(self, episode: JournalEpisode, call: JournalCall, rule: str) -> None:
        """Count a call under the rule that keeps its tokens from being trained; an empty rule counts nothing."""
        if not call.replayed:
            self.calls += 1
            self.sampled += call.end - call.start
            if rule:
                self.excluded[rule] += call.end - call.start
        if fault := call.fault() or self.prompts.fault(episode, call):
            self.faults.append(f"episode {episode.id}, call {call.number}: {fault}")

    def _beside(self, episode: JournalEpisode) -> None:
        """Count what an episode sampled and did not record."""
        count, lost = episode.unrecorded(), episode.line["counters"].get("tokens_not_received", 0)
        is_explained = count == lost or (count > lost and episode.line["attempt"])
        if "spent" in episode.line and not episode.others and not is_explained:
            self.faults.append(
                f"episode {episode.id}: it sampled {count} tokens beside those of its calls, of which it knows {lost}"
            )
        self.sampled += count
        if count:
            self.excluded["retried_attempts" if episode.line["attempt"] else "not_received"] += count

    # ---------------------------------------------------------------- a step

    def _step(self, step: int, episodes: Sequence[JournalEpisode]) -> None:
        wrong = _Told(self.faults, f"step {step}")
        if step not in self.folder.metrics:
            wrong("metrics.jsonl has no line of it, although later weights contain it")
        if not self.has_record:
            for episode in episodes:
                self._leave_out("not_recorded", episode)
            return
        try:
            record = read_step(self.folder, step)
        except (AjetError, ValueError) as error:
            wrong(f"what it trained is unknown: {error}")
            for episode in episodes:
                self._leave_out("", episode)
            return
        by_id = {episode.id: episode for episode in episodes}
        for name in sorted({row.episode for row in record.rows} - by_id.keys()):
            wrong(f"it trained episode {name}, which is not one of its episodes in the journal")
        credited: dict[tuple[str, int], int] = {}
        for row in record.rows:
            self._row(wrong.at(f"episode {row.episode}"), row, by_id.get(row.episode), record, credited)
        metrics = self.folder.metrics.get(step, {})
        self._credit(wrong, record, by_id, metrics, step)
        self._rate(wrong, record, metrics, step)
        self._versions(wrong, episodes, record, step)
        if not self.is_verl:
            self._counts(wrong, episodes, record, metrics, step)
        before = Counter(self.excluded)
        for episode in episodes:
            self._episode(wrong.at(f"episode {episode.id}"), episode, record, by_id, credited, step)
        for rule in record.calls_left_out if metrics else ():
            said, count = metrics.get(f"dropped_tokens/{rule}", 0), self.excluded[rule] - before[rule]
            if said != count:
                wrong(f"metrics.jsonl says dropped_tokens/{rule} {said:g}, but the record gives {count}")

    def _rate(self, wrong: _Told, record: Step, metrics: Mapping[str, float], step: int) -> None:
        """Compare the learning rates of the record, of metrics.jsonl and of the job."""
        said = {"metrics.jsonl": metrics.get("learning_rate", record.learning_rate)}
        if self.folder.is_loop and step >= self.folder.since:
            said["the job"] = self.folder.rate_at(step)
        for where, rate in said.items():
            if not np.isclose(record.learning_rate, rate, rtol=1e-6, atol=0):
                wrong(
                    f"the learning rate in its record is {record.learning_rate:g}, but {where} has {rate:g}"
                )

    def _versions(self, wrong: _Told, episodes: Sequence[JournalEpisode], record: Step, step: int) -> None:
        """Compare the weight versions of its tokens with the one that learned from them."""
        before, published = (self.folder.metrics.get(s, {}).get("weight_version") for s in (step - 1, step))
        if before is not None and published is not None and published != before + 1:
            wrong(f"it ended with weight version {published:g}, and the step before with {before:g}")
        if self.is_verl or published is None:
            return
        learning, bound = int(published) - 1, self.folder.setting("train.max_staleness")
        late = int(self.folder.setting("train.asynchronous", False))
        bounds = [late] if self.folder.is_loop else []
        usual = learning - min([*bounds, learning if bound is None else bound])
        stale = record.episodes_left_out.get("stale", ())
        for episode in episodes:
            # Those of the run before were not sampled step by step; the job says how old they may be.
            taken = "parent" in episode.line
            oldest = learning - (late if bound is None else bound) if taken else usual
            for call in episode.calls.values() if "given" in episode.line and episode.id not in stale else ():
                other = call.versions[(call.versions < oldest) | (call.versions > learning)]
                if call.trained and len(other):
                    wrong(
                        f"episode {episode.id}, call {call.number}: a token was sampled by weight version {other[0]}, but version "
                        f"{learning} learned from it"
                    )

    def _counts(
        self,
        wrong: _Told,
        episodes: Sequence[JournalEpisode],
        record: Step,
        metrics: Mapping[str, float],
        step: int,
    ) -> None:
        """Compare the numbers of episodes, groups and tokens with metrics.jsonl and the job."""
        spare = record.episodes_left_out.get("oversampled", ())
        complete = [episode for episode in episodes if episode.id not in spare]
        by_id = {episode.id: episode for episode in complete}
        if metrics:
            counts.wrong_metrics(metrics, [counts.figures(e) for e in complete], wrong)
            count = len(set(record.groups.values()))
            if metrics.get("groups", count) != count:
                wrong(f"metrics.jsonl says groups {metrics['groups']:g}, but its batch has {count}")
            steered = {n for id, n in record.groups.items() if id in by_id and by_id[id].is_steered}
            if metrics.get("groups_steered", 0) != len(steered):
                said = metrics.get("groups_steered", 0)
                wrong(f"metrics.jsonl says groups_steered {said:g}, but its batch has {len(steered)}")
        groups: dict[str, list[JournalEpisode]] = {}
        for episode in complete:
            groups.setdefault(episode.group, []).append(episode)
        if self.folder.setting("train.dynamic_sampling", 1) > 1:
            differing = {name for name, group in groups.items() if self._rewards_differ(group)}
            equal = [n for n in record.groups if n in by_id and by_id[n].group not in differing]
            if differing and equal:
                wrong(f"episode {equal[0]}: it is in the batch, but the rewards of its group are equal")
        before = sum("given" not in episode.line for episode in complete)
        self.recorded += before
        if self.folder.is_loop and not before and step >= self.folder.since:
            counts.wrong_groups(self.folder, groups, record.groups, wrong)

    def _row(
        self,
        wrong: _Told,
        row: SampleRow,
        episode: JournalEpisode | None,
        record: Step,
        credited: dict[tuple[str, int], int],
    ) -> None:
        """Compare a row with the calls in it; ``credited`` gets the tokens with credit of each."""
        inside = np.zeros(len(row.mask), bool)
        for start, end, number, agent, target, checksum in row.spans:
            call = episode.calls.get(number) if episode else None
            if inside[start:end].any():
                wrong(f"call {number}: a token is in the row twice")
            inside[start:end] = True
            if call is None:
                wrong(f"call {number} is not in the journal")
                continue
            if (row.episode, number) in credited:
                wrong(f"call {number} is trained twice")
            if (start, end) != (call.start, call.end):
                wrong(
                    f"call {number}: tokens {start} to {end} are trained, but it sampled {call.start} to {call.end}"
                )
            elif record.with_tokens and not np.array_equal(row.ids[:end], call.ids):
                same = row.ids[:end] == call.ids
                wrong(
                    f"call {number}: token {int(same.argmin())} of what was trained is not that of the journal"
                )
            if checksum is not None and checksum != call.checksum:
                wrong(f"call {number}: its logprobs are not those that were trained")
            if (agent, target) != (call.data["agent"], call.data["target"]):
                wrong(f"call {number}: its agent or target is another one in the journal")
            if self._is_frozen(call):
                wrong(f"call {number}: it is trained, but the job does not train target {target}")
            adapter = target if self.folder.setting("targets", {}).get(target, {}).get("lora") else None
            if row.adapter != adapter:
                wrong(
                    f"call {number}: it trains {_adapter(row.adapter)}, but its target {target} has {_adapter(adapter)}"
                )
            if not row.mask[start:end].all():
                wrong(f"call {number}: {int((~row.mask[start:end]).sum())} of its tokens are not trained")
            counts = row.mask[start:end]
            if record.zero_costs_nothing:
                counts = counts & (row.weights[start:end] * row.advantages[start:end] != 0)
            credited[row.episode, number] = int(counts.sum())
        if (row.mask & ~inside).any():
            wrong(f"{int((row.mask & ~inside).sum())} tokens are trained that no call sampled")
        for name, values in {"weight": row.weights, "advantage": row.advantages}.items():
            if (values[~row.mask] != 0).any():
                at = int(((values != 0) & ~row.mask).argmax())
                wrong(f"token {at}, which is only context, has the {name} {values[at]:g}")

    def _credit(
        self,
        wrong: _Told,
        record: Step,
        by_id: Mapping[str, JournalEpisode],
        metrics: Mapping[str, float],
        step: int,
    ) -> None:
        """Compare mini-batches, weights and advantages with the algorithm's."""
        epochs = self.folder.setting("train.epochs", 1)
        passes = record.passes
        if sorted(i for mini in passes for i in mini) != list(range(len(record.rows))):
            wrong("a pass over the batch does not have each row once")
        repeats = 1 if self.is_verl else epochs  # verl repeats the pass itself
        if list(record.mini_batches) != [*passes] * repeats:
            wrong(f"its mini-batches are not {epochs} equal passes over the batch")
        if step >= self.folder.since:
            self._shares(wrong, record, step)
        seen = metrics.get("tokens_trained", 0) + metrics.get("tokens_zero_advantage", 0)
        given = epochs * sum(int(row.mask.sum()) for row in record.rows)
        if metrics and seen != given:
            wrong(f"the trainer reports {seen:.0f} tokens, but its batch has {given}")
        lines = {name: by_id[name].line for name in record.groups if name in by_id}
        for number, mini in enumerate(passes):
            rows = [record.rows[i] for i in mini]
            own = {record.groups.get(row.episode) for row in rows}
            ways = [credit.path(line, lines) for name, line in lines.items() if record.groups[name] in own]
            self._weights(wrong, rows, ways, record.sums[number])
        if not credit.known(self.algorithm) or not by_id:
            return
        groups: dict[int, list[Mapping[str, Any]]] = {}
        for name, group in record.groups.items():
            if name in by_id:
                groups.setdefault(group, []).append(by_id[name].line)
        trained = {row.episode for row in record.rows}
        expected = credit.expected(
            self.algorithm,
            list(groups.values()),
            {name: name in trained for name in record.groups},
            self.folder.setting("train.credit", "episode") == "tree",
            self.folder.setting("train.call_discount", 1.0),
        )
        for group, members in groups.items():
            if len({m["task"] for m in members}) > 1:
                wrong(f"group {group} has episodes of several tasks")
        sides = self._sides(record, expected)
        for row in record.rows:
            if not self._may_teach(row, by_id):
                wrong(f"episode {row.episode}: it is trained, but there is no feedback on it")
            for start, end, number, agent, target, _ in row.spans:
                if (row.episode, number) not in expected:
                    continue  # which is told above
                wanted = credit.applied(expected[row.episode, number], agent, target)
                if self._is_untaught(row) or (
                    sides is not None and sides[record.groups[row.episode], row.adapter] != {1.0, -1.0}
                ):
                    wanted = 0.0
                if not np.allclose(row.advantages[start:end], wanted, rtol=CLOSE, atol=NEARLY_ZERO):
                    wrong(
                        f"episode {row.episode}, call {number}: its advantage is {row.advantages[start]:g}, but "
                        f"{self.algorithm['type']} gives {wanted:g}"
                    )

    def _shares(self, wrong: _Told, record: Step, step: int) -> None:
        """Compare the mini-batches of a pass, each an optimizer step, with the shares of the groups."""
        parts, seed = self.folder.setting("train.mini_batches", 1), self.folder.setting("run.seed", 0)
        rows = {record.groups.get(row.episode) for row in record.rows}
        numbers = list(dict.fromkeys(record.groups.values()))
        wanted = [
            own for share in counts.shares(numbers, parts, f"{seed}:{step}") if (own := {*share} & rows)
        ]
        taken = [{record.groups.get(record.rows[i].episode) for i in mini} for mini in record.passes]
        if len(taken) != len(wanted):
            wrong(f"it took {len(taken)} optimizer steps a pass, but train.mini_batches gives {len(wanted)}")
        elif taken != wanted:
            wrong("its mini-batches have other groups than the seed gives them")

    def _weights(
        self,
        wrong: _Told,
        rows: Sequence[SampleRow],
        ways: Sequence[Sequence[credit.Sampled]],
        sums: Mapping[str, float],
    ) -> None:
        """Compare the weights of a mini-batch; ``ways`` are the calls on the path of each of its episodes."""
        for adapter in {row.adapter for row in rows}:
            own = [row for row in rows if row.adapter == adapter]
            spans = [(row, start, end, number) for row in own for start, end, number, *_ in row.spans]
            tokens: Counter[credit.Sampled] = Counter()
            for row, start, end, number in spans:
                if not self._is_untaught(row):
                    tokens[row.episode, number] += int(row.mask[start:end].sum())
            known = credit.weights(self.algorithm, ways, tokens) if credit.known(self.algorithm) else {}
            for row, start, end, number in spans:
                values = row.weights[start:end][row.mask[start:end]]
                wanted: Any = known.get((row.episode, number), values[:1])
                if self._is_untaught(row):
                    wanted = 0.0
                if not np.allclose(values, wanted, rtol=CLOSE, atol=NEARLY_ZERO):
                    at = int(np.abs(values - wanted).argmax())
                    wrong(
                        f"episode {row.episode}: a token has the weight {values[at]:g}, but {self.algorithm['type']} gives "
                        f"{float(np.max(wanted)):g}"
                    )
            total = float(sum(row.weights.sum(dtype=np.float64) for row in own))
            if not np.isclose(total, sums.get(adapter or "", np.nan), rtol=1e-4):
                wrong(f"its weights add up to {total:g}, not to {sums.get(adapter or '', np.nan):g}")

    def _is_untaught(self, row: SampleRow) -> bool:
        """Whether an algorithm with a teacher had none for a row, as where there is no feedback on its episode."""
        return self.algorithm["type"] == "sdpo" and not row.advantages.any()

    def _may_teach(self, row: SampleRow, by_id: Mapping[str, JournalEpisode]) -> bool:
        """Whether a row that such an algorithm trains has feedback."""
        if self.algorithm["type"] != "sdpo" or not row.advantages.any() or row.episode not in by_id:
            return True
        return bool(by_id[row.episode].line.get("feedback")) or self.algorithm.get("solution") is not None

    def _sides(
        self, record: Step, expected: Mapping[credit.Sampled, Mapping[str, float]]
    ) -> dict[tuple[int, str | None], set[float]] | None:
        """Of each group and adapter, the signs of advantages; None for an algorithm without pairs."""
        if self.algorithm["type"] != "dpo":
            return None
        sides: dict[tuple[int, str | None], set[float]] = {}
        for row in record.rows:
            for _, _, number, agent, target, _ in row.spans:
                sign = float(np.sign(credit.applied(expected[row.episode, number], agent, target)))
                sides.setdefault((record.groups[row.episode], row.adapter), set()).add(sign)
        return {key: signs - {0.0} for key, signs in sides.items()}

    # ---------------------------------------------------------------- an episode

    def _episode(
        self,
        wrong: _Told,
        episode: JournalEpisode,
        record: Step,
        by_id: Mapping[str, JournalEpisode],
        credited: Mapping[tuple[str, int], int],
        step: int,
    ) -> None:
        """Count each call of an episode as trained, or under the rule that excludes it."""
        self._beside(episode)
        whole = self._rule(wrong, episode, record, by_id, step)
        told = {
            number: rule
            for rule, calls in record.calls_left_out.items()
            for number in calls.get(episode.id, ())
        }
        if not whole:
            self._left_out(wrong, episode, told)
        if fault := self.starts.unlike(episode, by_id):
            wrong(fault)
        for number, call in episode.calls.items():
            count = call.end - call.start
            rule = whole
            if call.replayed:
                rule = "replayed"
            elif not call.trained:
                rule = self._untrained(wrong, call)
            elif not whole:
                rule = told.get(number, "")
            is_found = (episode.id, number) in credited
            if is_found and rule:
                wrong(f"call {number} is trained, although it is excluded as {rule}")
            elif is_found:
                self.trained += credited[episode.id, number]
                self.excluded["no_credit"] += count - credited[episode.id, number]
            elif not rule and count:
                wrong(f"call {number}: {count} tokens are neither trained nor excluded")
            self._count(episode, call, "" if is_found else rule)
        if idle := [number for number in unused(episode) if (episode.id, number) in credited]:
            self.unused[episode.id] = idle
            self.unused_tokens += sum(credited[episode.id, number] for number in idle)

    def _left_out(self, wrong: _Told, episode: JournalEpisode, told: Mapping[int, str]) -> None:
        """Compare the calls that the record leaves out, by rule, with those that the job's filters and limits do."""
        on_rows = {n for n, rule in told.items() if rule == OVER_LONG_ROWS and self.is_verl}
        known = {n: rule for n, rule in told.items() if n not in on_rows}
        wanted = self.filters.left_out(episode, known)
        for number in sorted(known.keys() | wanted.keys()):
            call, rule, other = episode.calls.get(number), known.get(number), wanted.get(number)
            if rule == other or number in on_rows or call is None or call.end == call.start:
                continue
            if on_rows and MAX_TIMELINES in (rule, other):  # which of them were too long is unknown
                continue
            if rule is None:
                wrong(f"call {number} is in the batch, but {other} leaves it out")
            elif rule == SIDE_CALLS:
                wrong(f"call {number} was left out by {rule}, but is not marked as one in the journal")
            elif rule not in self.filters.names:
                wrong(f"call {number} was left out by {rule}, which the job does not name")
            else:
                wrong(f"call {number} was left out by {rule}, but {other or 'nothing'} leaves it out")
        side = [n for n, call in episode.calls.items() if call.side and call.end > call.start]
        if side and self.folder.setting("rollout.side_calls") == "train":
            target = self.folder.setting("targets", {}).get(episode.calls[side[0]].data["target"], {})
            if target.get("train", True):
                wrong(f"call {side[0]} is marked as a side call, but the job has rollout.side_calls: train")

    def _is_frozen(self, call: JournalCall) -> bool:
        """Whether the job does not train a call's target."""
        trained, target = self.folder.setting("train.targets"), call.data["target"]
        own = self.folder.setting("targets", {}).get(target, {})
        return bool((trained and target not in trained) or own.get("frozen_model"))

    def _untrained(self, wrong: _Told, call: JournalCall) -> str:
        """Why a call is not one to train."""
        if self._is_frozen(call):
            return "frozen"
        if self.folder.setting("rollout.sampling.temperature") == 0:
            return "greedy"
        wrong(f"call {call.number} is marked as not trained, without a reason")
        return ""

    def _rule(
        self,
        wrong: _Told,
        episode: JournalEpisode,
        record: Step,
        by_id: Mapping[str, JournalEpisode],
        step: int,
    ) -> str:
        """The rule that excludes the whole episode; empty if it is to be trained."""
        in_batch = episode.id in record.groups
        rules = [rule for rule, names in record.episodes_left_out.items() if episode.id in names]
        if in_batch and rules:
            wrong(f"it is in the batch, but also excluded as {rules[0]}")
        if episode.line["failure"]:
            if in_batch:
                wrong(f"it failed ({episode.line['failure']}), but counts in its group")
            return "failed"
        if in_batch:
            return ""
        for rule in rules:
            if why := self._contradicts(rule, episode, record, by_id, step):
                wrong(f"it is excluded as {rule}, but {why}")
            return rule
        return "not_in_batch" if self.is_verl else ""

    def _contradicts(
        self, rule: str, episode: JournalEpisode, record: Step, by_id: Mapping[str, JournalEpisode], step: int
    ) -> str:
        """What speaks against a rule that excludes an episode."""
        group = [e for e in by_id.values() if e.group == episode.group]
        if rule == "equal_rewards":
            if self.folder.setting("train.dynamic_sampling", 1) == 1:
                return "the job has no train.dynamic_sampling"
            return "the rewards of its group differ" if self._rewards_differ(group) else ""
        if rule == "oversampled":
            if self.folder.setting("rollout.oversample", 1) == 1:
                return "the job has no rollout.oversample"
            return (
                "another member of its group is in the batch"
                if any(e.id in record.groups for e in group)
                else ""
            )
        if rule == "stale":
            bound = self.folder.setting("train.max_staleness")
            learning = self.folder.metrics.get(step, {}).get("weight_version", step) - 1
            sampled = [int(c.versions.min()) for c in episode.calls.values() if c.trained and len(c.versions)]
            oldest = min(sampled, default=learning)
            if bound is None:
                return "the job has no train.max_staleness"
            return (
                ""
                if learning - oldest > bound
                else f"its oldest token is {learning - oldest:.0f} versions old"
            )
        return "no such rule is known"

    def _rewards_differ(self, group: Sequence[JournalEpisode]) -> bool:
        """Whether what the group's episodes train has different rewards."""
        judged = [e for e in group if not e.line["failure"] and e.to_train()]
        named = {name for e in judged for name in e.line["rewards"]}
        trained = {e.id: [c.data for c in e.calls.values() if c.trained] for e in judged}
        pairs = {(c["agent"], c["target"]) for calls in trained.values() for c in calls}
        applied = sorted({next((name for name in pair if name in named), "") for pair in pairs})
        discounts = self.folder.setting("train.call_discount", 1.0) != 1
        earned = set()
        for e in judged:
            own = [e.line["rewards"].get(name, e.line["reward"]) for name in applied]
            count = len(trained[e.id]) if discounts and any(own) else 0
            earned.add((*own, *sorted(e.line.get("call_rewards", {}).items()), count))
        return len(earned) > 1


def _adapter(name: str | None) -> str:
    return "no adapter" if name is None else f"the adapter {name}"


class _Told:
    """Adds faults at one place, as lines."""

    def __init__(self, faults: list[str], place: str) -> None:
        self._faults, self._place = faults, place

    def at(self, place: str) -> _Told:
        """The same for a place in this one."""
        return _Told(self._faults, f"{self._place}, {place}")

    def __call__(self, fault: str) -> None:
        self._faults.append(f"{self._place}: {fault}")
