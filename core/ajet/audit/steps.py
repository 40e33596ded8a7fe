"""Every sampled token of every call: trained once in its context with the algorithm's credit, or excluded by a rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ajet.audit import credit
from ajet.audit.batches import Row, Step, read_step
from ajet.audit.branches import unused
from ajet.audit.files import Folder
from ajet.audit.journal import Call, Entry, Episode, Journal, names_of
from ajet.audit.prompts import Prompts
from ajet.types import AjetError

SIDE_CALLS = "side_calls"
"""The rule that excludes the calls which a program makes beside its agent's work."""
CLOSE, NEARLY_ZERO = 2e-5, 1e-7
"""How far, relative and absolute, advantages and weights, float32, may be from those computed here in double precision."""


class Audit:
    """The audit of a run; `run` does it. The counts are of tokens, but `calls` of calls."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.journal = Journal(folder)
        self.prompts = Prompts(
            folder.path / "tokenizer",
            folder.setting("rollout.chat_template", {}),
            bool(folder.setting("rollout.tool_prompt", "")),
        )
        self.algorithm: Mapping[str, Any] = folder.setting("train.algorithm")
        self.is_verl = folder.setting("backbone.name") == "verl"
        self.faults = folder.faults
        self.notes: list[str] = []
        """What could not be checked, and why."""
        self.calls = self.sampled = self.trained = 0
        self.excluded: Counter[str] = Counter()
        self.unused: dict[str, list[int]] = {}
        """By episode, the trained calls whose answers no later call used. They are told, and do not count as faults."""
        self.unused_tokens = 0

    def run(self) -> Audit:
        """Check the whole run."""
        for file in sorted((self.folder.path / "tokenizer").glob("*")):
            self.folder.read(f"tokenizer/{file.name}")
        by_step: dict[int, list[Entry]] = {step: [] for step in self.folder.steps}
        for entry in self.journal.entries:
            if entry.phase == "train" and entry.step in by_step and entry.is_latest and not entry.done_again:
                by_step[entry.step].append(entry)
            else:
                self._leave_out(self._outside(entry), self.journal.episode(entry))
        for step, entries in by_step.items():
            self._step(step, [self.journal.episode(entry) for entry in entries])
        if self.prompts.missing:
            self.notes.append(f"prompts were not compared with the chat template: {self.prompts.missing}")
        for why, count in self.prompts.skipped.items():
            self.notes.append(f"{count} prompts {why} were not compared with the chat template")
        if not credit.known(self.algorithm):
            self.notes.append(
                f"the algorithm {self.algorithm['type']!r} is not one of AgentJet's: its advantages are not computed here, and its "
                "weights are compared with the sums in the record"
            )
        return self

    def _outside(self, entry: Entry) -> str:
        """Why the weights cannot have learned from an episode."""
        if entry.phase != "train":
            return "validation"
        if entry.done_again or not entry.is_latest:
            return "done_again"
        return "after_the_last_checkpoint"

    def _leave_out(self, rule: str, episode: Episode) -> None:
        for call in episode.calls.values():
            self._count(episode, call, rule)
        self._beside(episode)

    def _count(self, episode: Episode, call: Call, rule: str) -> None:
        """Count a call under the rule that keeps its tokens from being trained; an empty rule counts nothing."""
        if not call.replayed:
            self.calls += 1
            self.sampled += call.end - call.start
            if rule:
                self.excluded[rule] += call.end - call.start
        if fault := call.fault() or self.prompts.fault(episode, call):
            self.faults.append(f"episode {episode.id}, call {call.number}: {fault}")

    def _beside(self, episode: Episode) -> None:
        """Count what an episode sampled and did not record."""
        count = episode.unrecorded()
        self.sampled += count
        if count:
            self.excluded["retried_attempts" if episode.line["attempt"] else "not_received"] += count

    # ---------------------------------------------------------------- a step

    def _step(self, step: int, episodes: Sequence[Episode]) -> None:
        wrong = _Told(self.faults, f"step {step}")
        if step not in self.folder.metrics:
            wrong("metrics.jsonl has no line of it, although later weights contain it")
        try:
            record = read_step(self.folder, step)
        except (AjetError, ValueError) as error:
            wrong(f"what it trained is unknown: {error}")
            for episode in episodes:
                self._leave_out("", episode)
            return
        if not record.with_tokens and not any("token ids" in note for note in self.notes):
            self.notes.append(
                "the backbone records no token ids and logprobs of its rows: only their places are compared"
            )
        by_id = {episode.id: episode for episode in episodes}
        for name in sorted({row.episode for row in record.rows} - by_id.keys()):
            wrong(f"it trained episode {name}, which is not one of its episodes in the journal")
        found: dict[tuple[str, int], int] = {}
        for row in record.rows:
            self._row(wrong.at(f"episode {row.episode}"), row, by_id.get(row.episode), record, found)
        self._credit(wrong, record, by_id, self.folder.metrics.get(step, {}))
        for episode in episodes:
            self._episode(wrong.at(f"episode {episode.id}"), episode, record, by_id, found, step)

    def _row(
        self,
        wrong: _Told,
        row: Row,
        episode: Episode | None,
        record: Step,
        found: dict[tuple[str, int], int],
    ) -> None:
        """Compare a row with the calls in it; ``found`` gets the tokens with credit of each."""
        inside = np.zeros(len(row.mask), bool)
        for start, end, number, agent, target, checksum in row.spans:
            call = episode.calls.get(number) if episode else None
            if inside[start:end].any():
                wrong(f"call {number}: a token is in the row twice")
            inside[start:end] = True
            if call is None:
                wrong(f"call {number} is not in the journal")
                continue
            if (row.episode, number) in found:
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
            if not row.mask[start:end].all():
                wrong(f"call {number}: {int((~row.mask[start:end]).sum())} of its tokens are not trained")
            counts = row.mask[start:end]
            if record.zero_costs_nothing:
                counts = counts & (row.weights[start:end] * row.advantages[start:end] != 0)
            found[row.episode, number] = int(counts.sum())
        if (row.mask & ~inside).any():
            wrong(f"{int((row.mask & ~inside).sum())} tokens are trained that no call sampled")
        if (row.weights[~row.mask] != 0).any():
            at = int(((row.weights != 0) & ~row.mask).argmax())
            wrong(f"token {at}, which is only context, has the weight {row.weights[at]:g}")

    def _credit(
        self, wrong: _Told, record: Step, by_id: Mapping[str, Episode], metrics: Mapping[str, float]
    ) -> None:
        """Compare mini-batches, weights and advantages with the algorithm's."""
        epochs = self.folder.setting("train.epochs", 1)
        passes = record.passes
        if sorted(i for mini in passes for i in mini) != list(range(len(record.rows))):
            wrong("a pass over the batch does not have each row once")
        repeats = 1 if self.is_verl else epochs  # verl repeats the pass itself
        if list(record.mini_batches) != [*passes] * repeats:
            wrong(f"its mini-batches are not {epochs} equal passes over the batch")
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

    def _weights(
        self,
        wrong: _Told,
        rows: Sequence[Row],
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

    def _is_untaught(self, row: Row) -> bool:
        """Whether an algorithm with a teacher had none for a row, as where there is no feedback on its episode."""
        return self.algorithm["type"] == "sdpo" and not row.advantages.any()

    def _may_teach(self, row: Row, by_id: Mapping[str, Episode]) -> bool:
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
        found: dict[tuple[int, str | None], set[float]] = {}
        for row in record.rows:
            for _, _, number, agent, target, _ in row.spans:
                sign = float(np.sign(credit.applied(expected[row.episode, number], agent, target)))
                found.setdefault((record.groups[row.episode], row.adapter), set()).add(sign)
        return {key: signs - {0.0} for key, signs in found.items()}

    # ---------------------------------------------------------------- an episode

    def _episode(
        self,
        wrong: _Told,
        episode: Episode,
        record: Step,
        by_id: Mapping[str, Episode],
        found: Mapping[tuple[str, int], int],
        step: int,
    ) -> None:
        """Count each call of an episode as trained, or under the rule that excludes it."""
        self._beside(episode)
        whole = self._rule(wrong, episode, record, by_id, step)
        by_filter = {
            number: rule
            for rule, calls in record.calls_left_out.items()
            for number in calls.get(episode.id, ())
        }
        allowed = names_of(self.folder.setting("train.filters", ())) | {SIDE_CALLS}
        if self.folder.setting("train.max_timelines"):
            allowed.add("max_timelines")
        if self.is_verl:
            allowed.add("over_long_rows")
        for number, call in episode.calls.items():
            count = call.end - call.start
            rule = whole
            if call.replayed:
                rule = "replayed"
                if not _is_of_its_parent(call, by_id):
                    wrong(f"call {number}, which is replayed, is not one of its parent")
            elif not call.trained:
                rule = self._untrained(wrong, call)
            elif not whole and number in by_filter:
                rule = by_filter[number]
                if rule not in allowed:
                    wrong(f"call {number} was left out by {rule}, which the job does not name")
                elif (rule == SIDE_CALLS) != call.side:
                    marked = "is not marked as one in" if rule == SIDE_CALLS else "is a side call in"
                    wrong(f"call {number} was left out by {rule}, but {marked} the journal")
            is_found = (episode.id, number) in found
            if is_found and rule:
                wrong(f"call {number} is trained, although it is excluded as {rule}")
            elif is_found:
                self.trained += found[episode.id, number]
                self.excluded["no_credit"] += count - found[episode.id, number]
            elif not rule and count:
                wrong(f"call {number}: {count} tokens are neither trained nor excluded")
            self._count(episode, call, "" if is_found else rule)
        if idle := [number for number in unused(episode) if (episode.id, number) in found]:
            self.unused[episode.id] = idle
            self.unused_tokens += sum(found[episode.id, number] for number in idle)

    def _untrained(self, wrong: _Told, call: Call) -> str:
        """Why a call is not one to train."""
        trained = self.folder.setting("train.targets")
        target = self.folder.setting(f"targets.{call.data['target']}", {})
        if (trained and call.data["target"] not in trained) or target.get("frozen_model"):
            return "frozen"
        if self.folder.setting("rollout.sampling.temperature") == 0:
            return "greedy"
        wrong(f"call {call.number} is marked as not trained, without a reason")
        return ""

    def _rule(
        self, wrong: _Told, episode: Episode, record: Step, by_id: Mapping[str, Episode], step: int
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
        self, rule: str, episode: Episode, record: Step, by_id: Mapping[str, Episode], step: int
    ) -> str:
        """What speaks against a rule that excludes an episode."""
        name = episode.id.rsplit("/", 1)[0]
        group = [e for e in by_id.values() if e.id.rsplit("/", 1)[0] == name]
        judged = [(e.line["reward"], e.line["rewards"]) for e in group if not e.line["failure"]]
        if rule == "equal_rewards":
            if self.folder.setting("train.dynamic_sampling", 1) == 1:
                return "the job has no train.dynamic_sampling"
            return "" if all(each == judged[0] for each in judged) else "the rewards of its group differ"
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
            oldest = min(
                (int(c.versions.min()) for c in episode.calls.values() if len(c.versions)), default=0
            )
            learning = self.folder.metrics.get(step, {}).get("weight_version", step) - 1
            if bound is None:
                return "the job has no train.max_staleness"
            return (
                ""
                if learning - oldest > bound
                else f"its oldest token is {learning - oldest:.0f} versions old"
            )
        return "no such rule is known"


def _is_of_its_parent(call: Call, by_id: Mapping[str, Episode]) -> bool:
    """Whether the parent of a fork, if it is known, has a call with the same tokens and logprobs."""
    parent = by_id.get((call.episode.line.get("fork") or {}).get("parent", ""))
    return parent is None or any(
        call.checksum == other.checksum and np.array_equal(call.ids, other.ids)
        for other in parent.calls.values()
    )


class _Told:
    """Adds faults at one place, as lines."""

    def __init__(self, faults: list[str], place: str) -> None:
        self._faults, self._place = faults, place

    def at(self, place: str) -> _Told:
        """The same for a place in this one."""
        return _Told(self._faults, f"{self._place}, {place}")

    def __call__(self, fault: str) -> None:
        self._faults.append(f"{self._place}: {fault}")
