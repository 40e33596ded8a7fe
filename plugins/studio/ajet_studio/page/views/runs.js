/** All runs of the folder: sort, filter, choose columns, and some to compare. */

import { MOST_SERIES } from "../chart.js";
import { figure, order, text } from "../columns.js";
import { address, data, fill, h, setText } from "../dom.js";
import { count, duration, moment, number, score, signed } from "../format.js";
import { recall, remember } from "../kept.js";
import { named, runAddress } from "../places.js";
import { open } from "../router.js";
import { Rows } from "../rows.js";
import { say } from "../shell.js";
import { sparkline } from "../spark.js";
import { Table } from "../table.js";
import { oneLine } from "../text.js";

const AGAIN = 5000;
const HIDDEN = ["workflow", "backbone", "episodes"];
/** Columns, in their order; the first is always there. */
const COLUMNS = [
	{ name: "name", label: "Run", cell: name },
	{ name: "state", label: "State", cell: state },
	{ name: "validation_after", label: "Validation", cell: validation, figure: true, title: "accuracy on the validation tasks, or reward, before the first step → after the last one" },
	figure("gain", "Gain", (gain) => signed(gain), { title: "what training has changed of the validation" }),
	{ name: "reward", label: "Reward", cell: reward, figure: true, title: "mean reward of the training steps, and that of the last one" },
	figure("learning_rate", "Learning rate"),
	{ name: "model", label: "Model", cell: (run) => last(run.model) },
	text("algorithm", "Algorithm"),
	{ name: "steps", label: "Steps", cell: steps, figure: true },
	figure("episodes", "Episodes"),
	figure("seconds", "Time", duration, { title: "from the first episode to the last one" }),
	{ name: "started", label: "Started", cell: (run) => moment(run.started) },
	{ name: "workflow", label: "Workflow", cell: (run) => last(run.workflow) },
	text("backbone", "Backbone"),
];

/** @param {Page} page */
export async function runsView(page) {
	page.named("Runs");
	let answer = await page.get("runs", {});
	if (answer.runs[0]?.run === ".") return runAddress(".");
	const chosen = new Set(page.query.getAll("choose"));
	const rows = new Rows();
	const sort = { name: page.query.get("sort") ?? "started", descending: page.query.get("order") !== "ascending" };
	const hidden = new Set(recall("hidden", HIDDEN));

	const compare = h("button", { class: "main", onclick: () => open(comparison()) });
	const comparison = () => (chosen.size > 1 ? address("/compare", { run: [...chosen] }) : "");
	const chose = () => {
		setText(compare, chosen.size > 1 ? `Compare ${chosen.size} runs` : `Choose 2 to ${MOST_SERIES} runs to compare`);
		compare.disabled = chosen.size < 2;
		page.set({ choose: [...chosen] });
	};
	const choose = (run, is) => {
		if (is && chosen.size >= MOST_SERIES) {
			say(`At most ${MOST_SERIES} runs can be compared.`);
			return false;
		}
		if (is) chosen.add(run);
		else chosen.delete(run);
		chose();
		return is;
	};

	const filter = h("input", { type: "search", size: 34, "aria-label": "Filter runs", placeholder: "Filter by name, tag, model, state …", value: page.query.get("q") });
	const arrange = () => {
		const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
		const trained = answer.runs.filter((run) => run.backbone !== "debug");
		const wanted = words.length ? answer.runs.filter((run) => words.every((word) => haystack(run).includes(word))) : trained.length ? trained : [...answer.runs];
		const others = answer.runs.length - wanted.length;
		named(answer.runs);
		rows.set(wanted.sort(order(sort.name, sort.descending)));
		const more = others ? `, and ${number(others)} without training: filter by “check”, “forecast”, “eval” or “debug”` : "";
		setText(summary, words.length ? `${number(wanted.length)} of ${count(answer.runs.length, "run")}` : `${count(wanted.length, "run")}${more}`);
		compare.hidden = answer.runs.length < 2;
	};
	filter.addEventListener("input", () => {
		page.set({ q: filter.value });
		arrange();
	});

	const place = h("div");
	let table;
	const build = () => {
		table = new Table(page, {
			label: "Runs",
			rows,
			main: 1,
			columns: [box(chosen, choose), ...COLUMNS.filter(({ name }) => !hidden.has(name))],
			href: (run) => runAddress(run.run),
			sort,
			onsort: (name, descending) => {
				Object.assign(sort, { name, descending });
				table.sortedBy(name, descending);
				page.set({ sort: name, order: descending ? "" : "ascending" });
				arrange();
			},
			empty: answer.runs.length ? "No run matches the filter." : "There are no runs in this folder yet. `ajet run` writes one; this page then shows it.",
		});
		fill(place, table.element);
	};
	const show = (name) => (event) => {
		hidden[event.target.checked ? "delete" : "add"](name);
		remember("hidden", [...hidden]);
		build();
	};
	const columns = h(
		"details.menu",
		h("summary", "Columns"),
		h("div.choices", COLUMNS.slice(1).map(({ name, label }) => h("label", h("input", { type: "checkbox", checked: !hidden.has(name), onchange: show(name) }), label))),
	);
	const summary = h("p.quiet", { role: "status" });
	page.keys.x = () => document.activeElement?.closest("tr")?.querySelector("input[type=checkbox]")?.click();
	page.keys.c = () => open(comparison());
	build();
	chose();
	arrange();

	const timer = setInterval(async () => {
		if (document.hidden) return;
		try {
			answer = await page.get("runs", {});
			arrange();
		} catch (error) {
			page.fail(error);
		}
	}, AGAIN);
	page.signal.addEventListener("abort", () => clearInterval(timer));

	return h("div", h("div.title", h("h1", "Runs"), data(answer.folder, "quiet mono")), h("div.bar", filter, summary, compare, columns), place);
}

function box(chosen, choose) {
	const cell = (run) =>
		h("input", {
			type: "checkbox",
			checked: chosen.has(run.run),
			"aria-label": `Compare ${run.name}`,
			onchange: (event) => {
				event.target.checked = choose(run.run, event.target.checked);
			},
		});
	return { name: "choose", label: "", cell, title: "Choose for a comparison", fixed: true };
}

function name(run) {
	return h("bdi", { title: run.run }, oneLine(run.name), run.tags.map((tag) => h("span.tag", oneLine(tag))));
}

/** The state of a run, with its problem as a hint. */
export function state(run) {
	return h("span", { class: `state ${run.state}`, title: run.problem || null }, run.state, run.problem && h("span.bad", " !"));
}

/** The last part of a path, which is the name of a file or folder; the whole path is a hint. */
export function last(path) {
	return h("bdi", { title: path }, oneLine(path.split("/").at(-1)));
}

function steps(run) {
	return run.steps_wanted ? `${number(run.steps)} / ${number(run.steps_wanted)}` : number(run.steps);
}

function reward(run) {
	return [sparkline(run.rewards), " ", score(run.reward)];
}

/** Validation before and after training. */
export function validation(run) {
	if (run.validation_before === null && run.validation_after === null) return "–";
	return `${score(run.validation_before)} → ${score(run.validation_after)}`;
}

function haystack(run) {
	return [run.name, run.run, ...run.tags, run.state, run.workflow, run.backbone, run.model, run.algorithm].join(" ").toLowerCase();
}
