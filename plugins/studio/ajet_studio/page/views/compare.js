/** Up to six runs: the settings in which they differ, their curves in the same axes, and their last metrics. */

import { letter, MOST_SERIES } from "../chart.js";
import { curves } from "../curves.js";
import { data, fill, h } from "../dom.js";
import { number, score, signed } from "../format.js";
import { runAddress } from "../places.js";
import { Rows } from "../rows.js";
import { Table } from "../table.js";
import { state, validation } from "./runs.js";

/** @param {Page} page */
export async function compareView(page) {
	page.named("Comparison");
	const ids = [...new Set(page.query.getAll("run"))].slice(0, MOST_SERIES);
	if (ids.length < 2) throw new Error("A comparison needs two runs or more. Choose them in the list of runs.");
	const runs = await Promise.all(ids.map((run) => page.get("run", { run })));
	const names = distinct(runs);

	const phases = [...new Set(runs.flatMap((run) => Object.values(run.metrics).flatMap((metric) => Object.keys(metric.last))))];
	let phase = page.query.get("phase") ?? (phases.includes("train") ? "train" : phases[0]);
	const has = (run, name) => run.metrics[name]?.last[phase] !== undefined;
	const metrics = {};
	for (const run of runs) {
		for (const [name, { explanation, varies }] of Object.entries(run.metrics)) {
			metrics[name] = { explanation, varies: (varies && has(run, name)) || Boolean(metrics[name]?.varies) };
		}
	}
	const drawn = curves(page, metrics, names, (name) => runs.map((run) => (has(run, name) ? { run: run.run, phase } : null)));
	const without = h("span.quiet");
	const figures = new Rows();
	const arrange = () => {
		const none = names.filter((_, place) => !Object.keys(metrics).some((name) => has(runs[place], name)));
		without.textContent = none.length ? `No metrics of ${phase}: ${none.join(", ")}` : "";
		figures.set(lastValues(runs, Object.keys(metrics), phase));
	};
	const choose = h(
		"select",
		{ onchange: (event) => {
			phase = event.target.value;
			page.set({ phase });
			arrange();
			drawn.refresh();
		} },
		phases.map((one) => h("option", { value: one, selected: one === phase }, one)),
	);

	const columns = (more) => [{ name: "setting", label: more.label, cell: (row) => row.name }, ...names.map((name, place) => ({ name: `run${place}`, label: `${letter(place)} ${name}`, cell: (row) => row.values[place], ...more.column }))];
	const rows = new Rows();
	const all = h("input", { type: "checkbox", onchange: () => rows.set(settings(runs, all.checked)) });
	rows.rows = settings(runs, false);
	const table = new Table(page, { label: "Settings", rows, columns: columns({ label: "Setting" }), empty: "These runs have the same settings." });
	const last = new Table(page, { label: "Last metrics", rows: figures, columns: columns({ label: "Metric", column: { figure: true } }) });
	arrange();
	const head = h("div", summary(runs, names));
	const running = runs.filter((run) => run.state === "live");
	const again = async () => {
		for (const now of await Promise.all(running.map(({ run }) => page.get("run", { run })))) runs[runs.findIndex(({ run }) => run === now.run)] = now;
		fill(head, summary(runs, names));
		arrange();
		await drawn.refresh();
	};
	if (running.length) page.follow(running, again);
	await drawn.start();
	return h(
		"div",
		h("h1", `Comparison of ${runs.length} runs`),
		head,
		h("h2", "Settings that differ"),
		table.element,
		h("div.bar", h("label", all, "also those that are the same")),
		h("h2", "Curves"),
		h("div.bar", h("label", "Phase", choose), without),
		drawn.element,
		h("h2", "Last values, and how far from those of A"),
		last.element,
	);
}

function summary(runs, names) {
	const row = (run, place) =>
		h(
			"li.bar",
			h("b", { class: `s${place}` }, letter(place)),
			h("a", { href: runAddress(run.run) }, data(names[place])),
			state(run),
			h("span.quiet", [`${number(run.steps)} steps`, `reward ${score(run.reward)}`, `validation ${validation(run)}`, run.learning_rate !== null && `learning rate ${number(run.learning_rate)}`].filter(Boolean).join(" · ")),
		);
	return h("ul", runs.map(row));
}

/** The name of each run, with its folder where two would be the same. */
function distinct(runs) {
	return runs.map(({ run, name }) => (runs.filter((one) => one.name === name).length > 1 && name !== run ? `${name} (${run})` : name));
}

function settings(runs, all) {
	const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))].sort().filter((name) => name !== "run.name");
	return names
		.map((name) => ({ name, values: runs.map((run) => (name in run.settings ? written(run.settings[name]) : "–")) }))
		.filter(({ values }) => all || new Set(values).size > 1);
}

function lastValues(runs, names, phase) {
	const shown = names.map((name) => ({ name, found: runs.map((run) => run.metrics[name]?.last[phase]) })).filter(({ found }) => found.some((value) => value !== undefined));
	return shown.map(({ name, found }) => ({ name, values: found.map((value, place) => `${number(value)}${place && value !== undefined && found[0] !== undefined ? ` (${difference(value - found[0])})` : ""}`) }));
}

function difference(by) {
	return Math.abs(by) >= 0.001 || by === 0 ? signed(by) : `${by < 0 ? "−" : "+"}${number(Math.abs(by))}`;
}

function written(value) {
	return typeof value === "string" ? value : JSON.stringify(value);
}
