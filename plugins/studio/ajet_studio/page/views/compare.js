/** Up to six runs: their curves in the same axes, and the settings in which they differ. */

import { MOST_SERIES } from "../chart.js";
import { curves } from "../curves.js";
import { data, h } from "../dom.js";
import { number, score } from "../format.js";
import { runAddress, runName } from "../places.js";
import { Rows } from "../rows.js";
import { Table } from "../table.js";
import { state } from "./runs.js";

/** @param {Page} page */
export async function compareView(page) {
	page.named("Comparison");
	const ids = [...new Set(page.query.getAll("run"))].slice(0, MOST_SERIES);
	if (ids.length < 2) throw new Error("A comparison needs two runs or more. Choose them in the list of runs.");
	const runs = await Promise.all(ids.map((run) => page.get("run", { run })));
	const names = distinct(ids);

	const metrics = {};
	for (const run of runs) {
		for (const [name, { explanation, phases }] of Object.entries(run.metrics)) {
			metrics[name] ??= { explanation, phases };
		}
	}
	const phases = [...new Set(runs.flatMap((run) => Object.keys(run.phases)))];
	let phase = page.query.get("phase") ?? (phases.includes("train") ? "train" : phases[0]);
	const drawn = curves(page, metrics, (name) => {
		const of = metrics[name].phases.includes(phase) ? phase : metrics[name].phases[0];
		return ids.map((run, place) => ({ name: names[place], run, phase: of }));
	});
	const choose = h(
		"select",
		{ onchange: (event) => {
			phase = event.target.value;
			page.set({ phase });
			drawn.refresh();
		} },
		phases.map((one) => h("option", { value: one, selected: one === phase }, one)),
	);

	const rows = new Rows();
	const all = h("input", { type: "checkbox", onchange: () => rows.set(settings(runs, all.checked)) });
	rows.rows = settings(runs, false);
	const table = new Table(page, {
		label: "Settings",
		rows,
		columns: [
			{ name: "setting", label: "Setting", cell: (row) => row.name },
			...names.map((name, place) => ({ name: `run${place}`, label: `${"ABCDEF"[place]} ${name}`, cell: (row) => row.values[place] })),
		],
		empty: "These runs have the same settings.",
	});
	for (const run of runs) if (run.state === "live") page.follow(run, () => drawn.refresh());
	await drawn.start();
	return h(
		"div",
		h("h1", `Comparison of ${runs.length} runs`),
		summary(runs, names),
		h("h2", "Curves"),
		h("div.bar", h("label", "Phase", choose)),
		drawn.element,
		h("h2", "Settings that differ"),
		h("div.bar", h("label", all, "also those that are the same")),
		table.element,
	);
}

function summary(runs, names) {
	const row = (run, place) =>
		h(
			"li.bar",
			h("b", { class: `s${place}` }, "ABCDEF"[place]),
			h("a", { href: runAddress(run.run) }, data(names[place])),
			state(run),
			h("span.quiet", `${number(run.steps)} steps · reward ${score(run.reward)} · validation ${score(run.validation_before)} → ${score(run.validation_after)}`),
		);
	return h("ul", runs.map(row));
}

/** The last folder of each id, or the whole id where two would be the same. */
function distinct(ids) {
	const short = ids.map(runName);
	return ids.map((id, place) => (short.filter((one) => one === short[place]).length > 1 ? id : short[place]));
}

function settings(runs, all) {
	const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))].sort();
	return names
		.map((name) => ({ name, values: runs.map((run) => (name in run.settings ? written(run.settings[name]) : "–")) }))
		.filter(({ values }) => all || new Set(values).size > 1);
}

function written(value) {
	return typeof value === "string" ? value : JSON.stringify(value);
}
