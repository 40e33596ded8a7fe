/** What a later judge says of a run: its rewards beside the recorded ones, and which updates it would have made otherwise. */

import { Chart, legend } from "./chart.js";
import { figure, text } from "./columns.js";
import { data, h } from "./dom.js";
import { reward, taskName } from "./episodes.js";
import { count, number, score, signed } from "./format.js";
import { episodeAddress, stepAddress, stepName } from "./places.js";
import { Rows } from "./rows.js";
import { Table } from "./table.js";

/** @param {Page} page */
export async function rejudgedTab(page, { run }) {
	const again = await page.get("rejudged", { run });
	const table = (label, rows, columns, href) => [h("h2", label), new Table(page, { label, rows: new Rows(rows), columns, href, empty: "None." }).element];
	const left = (more, noun) => more > 0 && h("p.quiet", `${count(more, noun)} not listed.`);
	const rewards = [
		{ name: "reward", label: "Recorded", cell: reward, figure: true },
		{ name: "judged", label: "Later", cell: (row) => (row.judged === null ? data(row.why ?? "failed") : score(row.judged)), figure: true },
	];
	const steps = [
		text("step", "Step", { cell: (row) => stepName(row.phase, row.step) }),
		figure("changed", "Other verdicts", number),
		figure("episodes", "Episodes"),
		figure("recorded", "Recorded", score),
		figure("judged", "Later", score),
		{ name: "wrong", label: "Wrong sign", cell: (row) => (row.trained ? percent(row) : "–"), figure: true, title: WRONG, tone: ({ wrong }) => (wrong ? "bad" : "") },
	];
	const episodes = [
		{ name: "task", label: "Task", cell: taskName },
		text("phase", "Step", { cell: (row) => stepName(row.phase, row.step) }),
		figure("member", "Member"),
		...rewards,
		{ name: "push", label: "Push", cell: ({ push }) => (push ? push.map(signed).join(" → ") : "–"), figure: true, title: "the sum of weight times advantage over the tokens of the episode: as trained → with the later verdicts" },
	];
	return {
		element: h(
			"div",
			summary(run, again),
			curves(page, again),
			table("Steps that change", again.steps, steps, (row) => stepAddress(run, row)),
			left(again.more_steps, "further step"),
			table("Episodes with another verdict", again.episodes, episodes, (row) => episodeAddress(run, row.id)),
			left(again.changed - again.episodes.length, "further episode"),
		),
	};
}

const WRONG = "share of the trained tokens whose episode was made likelier and should not have been, or the other way round";
const percent = ({ wrong, trained }) => `${((100 * wrong) / trained).toFixed(1)} %`;

function summary(run, again) {
	const first = again.steps.find(({ wrong }) => wrong);
	const told = [
		[again.failing, "verdict", "failed: the later judge raised an error"],
		...again.unknown.map(([why, many]) => [many, "episode", `not judged again: ${why}`]),
		[again.later, "episode", "of the journal not in rejudged.jsonl"],
		[again.gone, "line", "of rejudged.jsonl about no episode of the journal"],
		[again.broken, "line", "of rejudged.jsonl that cannot be read"],
	];
	const stale = again.later + again.gone + again.broken > 0 || again.cut;
	return [
		h(
			"p",
			h("strong", `${number(again.changed)} of ${number(again.judged)}`),
			" verdicts change. ",
			first ? ["The first update with wrong signs is that of ", h("a", { href: stepAddress(run, first) }, stepName(first.phase, first.step)), `: ${percent(first)} of its trained tokens.`] : "No trained token had an advantage of the wrong sign.",
		),
		told.filter(([many]) => many).map(([many, noun, what]) => h("p.quiet", count(many, noun), " ", data(what), ".")),
		stale && h("p.problem.notice", again.cut ? "rejudged.jsonl is too long to be read whole. " : "", "The file is not of this state of the run: `ajet rejudge` writes it anew."),
	];
}

/** Both curves of each phase. */
function curves(page, again) {
	const shared = { step: "step", smoothing: 0, log: false, range: null };
	const phases = Object.entries(again.curves);
	const chart = ([phase, series]) => {
		const zoom = (range) => {
			one.shared.range = range;
			one.again();
		};
		const marks = phase === "train" ? again.marks : [];
		const one = new Chart(`reward, ${phase}`, { ...shared, marks, choose: (place) => one.choose(place), zoom }, page.signal);
		one.show(series, false);
		return h("section", h("h3", data(phase), marks.length > 0 && h("small", "a red line marks a step that was trained with wrong signs")), one.element);
	};
	return [
		h("h2", "Rewards"),
		legend(["recorded", "of the later judge"]),
		h("div.charts.wide", phases.map(chart)),
	];
}
