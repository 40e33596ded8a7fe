/** A list of episodes with filters, all of which are in the address. */

import { figure, text } from "./columns.js";
import { data, h, setText } from "./dom.js";
import { count, duration, number, score } from "./format.js";
import { episodeAddress, isMade } from "./places.js";
import { Pages } from "./rows.js";
import { Table } from "./table.js";
import { oneLine, shortened } from "./text.js";

const FILTERS = ["phase", "step", "task", "failure", "agent", "label", "min_reward", "max_reward", "min_tokens", "max_tokens", "q"];
const PAUSE = 250;

const COLUMNS = [
	{ name: "task", label: "Task", cell: taskName },
	text("phase", "Phase"),
	figure("step", "Step"),
	figure("member", "Member"),
	{ name: "reward", label: "Reward", cell: outcome, figure: true, tone },
	figure("calls", "Calls"),
	figure("tokens", "Tokens"),
	figure("trained_tokens", "Trained", number, { title: "sampled tokens that can be trained" }),
	figure("breaks", "Breaks", number, { title: "places where a call could not continue its conversation" }),
	figure("seconds", "Time", duration),
	{ name: "agents", label: "Agents", cell: (row) => row.agents.join(", "), fixed: true },
];

/** A task by its id, and the beginning of what it asks; that first if a program made the id. */
export function taskName({ task, query }) {
	if (query && isMade(task)) return [`${oneLine(query)} `, data(oneLine(shortened(task, 16)), "quiet also")];
	return [`${oneLine(shortened(task, 60))} `, query && data(oneLine(query), "quiet also")];
}

/** The reward of an episode, or why it has none. */
export function reward(row) {
	return h("span", { class: tone(row), title: row.failure }, outcome(row));
}

function outcome({ failure, is_success: right, reward }) {
	return failure ? failure.split(":").at(-1) : ({ true: "✓ ", false: "✗ " }[right] ?? "") + score(reward);
}

/** Whether an episode is good, bad, or neither is known. */
export function tone({ failure, is_success: right }) {
	return failure || right === false ? "bad" : right ? "good" : "";
}

/**
 * @param {Page} page
 * @param {{run: string, phases: object, metrics: object}} run
 */
export async function episodeList(page, run) {
	const summary = h("p.quiet", { role: "status" });
	const value = (name) => page.query.get(name) ?? "";
	// What comes from a service that runs on: the newest first.
	const descends = () => (value("order") ? value("order") === "descending" : run.source);
	const rows = new Pages(
		(offset, limit) => {
			const filters = Object.fromEntries(FILTERS.map((name) => [name, value(name)]));
			return page.get("episodes", { run: run.run, ...filters, sort: value("sort"), descending: descends() ? "1" : "", offset, limit });
		},
		(error) => page.fail(error),
	);
	rows.onanswer = (answer) => {
		const partly = answer.indexed < 1 ? ` so far (${Math.floor(answer.indexed * 100)} % of the journal is read)` : "";
		setText(summary, count(answer.total, "episode") + partly);
	};
	const again = async () => {
		try {
			await rows.restart();
		} catch (error) {
			if (!page.signal.aborted) setText(summary, error.message);
		}
	};
	let timer = 0;
	const change = (name) => (event) => {
		clearTimeout(timer);
		const { value } = event.target;
		timer = setTimeout(() => {
			page.set({ [name]: value });
			again();
		}, event.type === "input" ? PAUSE : 0);
	};
	const field = (name, label, properties) => h("label", label, h("input", { type: "text", value: value(name), size: 10, oninput: change(name), "data-focus": `filter-${name}`, ...properties }));
	const select = (name, label, options) =>
		h("label", label, h("select", { onchange: change(name) }, options.map(([one, text]) => h("option", { value: one, selected: value(name) === one }, text))));
	const causes = Object.keys(run.metrics).filter((name) => name.startsWith("failed/")).map((name) => name.slice(7));
	if (value("failure") && !["any", "none", ...causes].includes(value("failure"))) causes.push(value("failure"));
	const figure = { type: "number", step: "any", size: 6 };
	const more = ["agent", "label", "min_reward", "max_reward", "min_tokens", "max_tokens", "task", "step"];
	const filters = [
		h(
			"div.bar",
			field("q", "Words", { type: "search", size: 32, placeholder: "in messages, response, task" }),
			select("phase", "Phase", [["", "all"], ...Object.keys(run.phases).map((name) => [name, name])]),
			select("failure", "Failure", [["", "all"], ["none", "not failed"], ["any", "failed"], ...causes.map((name) => [name, name])]),
			summary,
		),
		h(
			"details",
			{ open: more.some(value) },
			h("summary", "More filters"),
			h(
				"div.bar",
				field("task", "Task"),
				field("step", "Step", { ...figure, step: 1, min: 0 }),
				field("agent", "Agent"),
				field("label", "Target"),
				field("min_reward", "Reward from", figure),
				field("max_reward", "to", figure),
				field("min_tokens", "Tokens from", { ...figure, step: 1, min: 0 }),
				field("max_tokens", "to", { ...figure, step: 1, min: 0 }),
			),
		),
	];
	const table = new Table(page, {
		label: "Episodes",
		rows,
		columns: run.source ? COLUMNS.filter(({ name }) => name !== "phase" && name !== "member").map((column) => (column.name === "step" ? { ...column, label: "Version" } : column)) : COLUMNS,
		href: (row) => episodeAddress(run.run, row.id),
		sort: { name: value("sort") || "line", descending: descends() },
		onsort: (name, descending) => {
			table.sortedBy(name, descending);
			page.set({ sort: name, order: descending ? "descending" : "ascending" });
			again();
		},
		empty: "No episode matches.",
	});
	await rows.start();
	return { element: h("div", filters, table.element), refresh: () => rows.refresh() };
}
