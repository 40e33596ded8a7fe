/** One step: its metrics, and its groups with their rewards as bars. */

import { figure } from "../columns.js";
import { data, h } from "../dom.js";
import { taskName, tone } from "../episodes.js";
import { duration, number, score } from "../format.js";
import { above, groupAddress, neighbours, stepAddress, stepName } from "../places.js";
import { Rows } from "../rows.js";
import { sparkbars } from "../spark.js";
import { Table } from "../table.js";

const PAGE = 200;

/** @param {Page} page */
export async function stepView(page) {
	const run = page.query.get("run") ?? ".";
	const phase = page.query.get("phase") ?? "train";
	const step = Number(page.query.get("step") ?? 0);
	page.named(stepName(phase, step), above(run));
	const about = await page.get("run", { run });
	const [found, episodes] = await Promise.all([
		near(page, run, phase, step),
		episodesOf(page, run, phase, step),
	]);
	if (!found.row && !episodes.length) throw new Error(`${stepName(phase, step)}: the run has no such step.`);
	const rows = new Rows(groupsOf(episodes));
	const table = new Table(page, {
		label: "Groups",
		rows,
		columns: [
			{ name: "task", label: "Task", cell: taskName },
			{ name: "bars", label: "Rewards", cell: (row) => h("span", { title: row.rewards.map(score).join("  ") }, sparkbars(row.rewards, row.tones, row.low, row.high)) },
			figure("mean", "Mean", score),
			figure("least", "Min", score),
			figure("most", "Max", score),
			figure("rewards", "Episodes", (all) => number(all.length)),
			figure("failures", "Failures"),
		],
		href: (row) => groupAddress(run, { phase, step, task: row.task }),
		empty: "No episode of this step has ended yet.",
	});
	const metrics = h("div");
	const show = (row) => metrics.replaceChildren(facts(row ?? {}, about.metrics));
	show(found.row);
	page.follow([about], async () => {
		rows.set(groupsOf(await episodesOf(page, run, phase, step)));
		show((await near(page, run, phase, step)).row);
	});
	const one = (row) => row && stepAddress(run, { phase, step: row.step });
	return h(
		"div",
		h("div.title", h("h1", stepName(phase, step)), h("span.push", neighbours(page, "step", one(found.before), one(found.after)))),
		metrics,
		h("h2", "Groups"),
		table.element,
	);
}

/** The row of a step, and those of the steps before and after it. */
async function near(page, run, phase, step) {
	const ask = (after, limit) => page.get("steps", { run, phase, after, limit });
	// Steps are numbered from 0 or 1 and seldom have gaps, so a few further back are enough to find the one before.
	const { rows } = await ask(step - 50, 60);
	const before = rows.filter((row) => row.step < step).at(-1);
	return { before, row: rows.find((row) => row.step === step), after: rows.find((row) => row.step > step) ?? (await ask(step, 1)).rows[0] };
}

async function episodesOf(page, run, phase, step) {
	const found = [];
	let total = 1;
	while (found.length < total) {
		const answer = await page.get("episodes", { run, phase, step, limit: PAGE, offset: found.length });
		found.push(...answer.rows);
		total = answer.rows.length ? answer.total : 0;
	}
	return found;
}

function groupsOf(episodes) {
	const groups = new Map();
	for (const episode of episodes) {
		if (!groups.has(episode.task)) groups.set(episode.task, []);
		groups.get(episode.task).push(episode);
	}
	const all = episodes.filter((one) => !one.failure && one.reward !== null).map((one) => one.reward);
	const [low, high] = [all.reduce((a, b) => Math.min(a, b), 0), all.reduce((a, b) => Math.max(a, b), -Infinity)];
	return [...groups].map(([task, siblings]) => {
		siblings.sort((a, b) => a.member - b.member);
		const rewards = siblings.map((one) => (one.failure ? null : one.reward));
		const judged = rewards.filter((one) => one !== null);
		return {
			task,
			query: siblings[0].query,
			rewards,
			tones: siblings.map(tone),
			low,
			high,
			mean: judged.length ? judged.reduce((a, b) => a + b, 0) / judged.length : null,
			least: judged.length ? Math.min(...judged) : null,
			most: judged.length ? Math.max(...judged) : null,
			failures: siblings.filter((one) => one.failure).length,
		};
	});
}

/** Metrics by what they are about; what is in none of these is `Other`. */
const PARTS = {
	Rewards: /^(reward|accuracy|pass|greedy|groups|episodes_zero|rewards?\/|judge\/)/,
	Episodes: /^(episodes|forks|steered|failed|calls|timelines|merge|breaks|missed)/,
	Tokens: /^(tokens|dropped|staleness|weight_version|prompt|answer|sampled|repetition)/,
	Update: /^(loss|grad|optimizer|learning|logprob|reference|entropy|kl|clip|ratio|value)/,
	Time: /^seconds/,
	Other: /./,
};
function facts(row, metrics) {
	// What the studio counts while a step runs is among the metrics of a finished one.
	const twice = ["step", "episodes_failed" in row && "failures", "seconds_rollout" in row && "seconds"];
	const left = new Set(Object.keys(row).filter((name) => typeof row[name] === "number" && !twice.includes(name)));
	const part = ([title, about]) => {
		const names = [...left].filter((name) => about.test(name)).slice(0, 40);
		for (const name of names) left.delete(name);
		const one = (name) => h("div", { title: metrics[name]?.explanation }, h("dt", data(name)), h("dd", unit(name, row[name])));
		return names.length > 0 && h("section", h("h2", title), h("dl", names.map(one)));
	};
	return h("div.metrics", Object.entries(PARTS).map(part));
}

function unit(name, value) {
	if (name.startsWith("seconds")) return duration(value);
	if (name === "tokens_per_second") return `${number(value)} /s`;
	return /(zero_advantage|accuracy)$/.test(name) && !name.startsWith("tokens") ? `${number(100 * value)} %` : number(value);
}
