/** All runs of the folder: sort, filter, choose some to compare. */

import { MOST_SERIES } from "../chart.js";
import { figure, order, text } from "../columns.js";
import { address, data, h, setText } from "../dom.js";
import { duration, moment, number, score } from "../format.js";
import { runAddress } from "../places.js";
import { open } from "../router.js";
import { Rows } from "../rows.js";
import { say } from "../shell.js";
import { Table } from "../table.js";
import { oneLine } from "../text.js";

const AGAIN = 5000;

/** @param {Page} page */
export async function runsView(page) {
	page.named("Runs");
	let answer = await page.get("runs", {});
	const chosen = new Set(page.query.getAll("choose"));
	const rows = new Rows();
	const name = page.query.get("sort") ?? "started";
	const descending = page.query.get("order") !== "ascending";

	const compare = h("button", { class: "main", onclick: () => open(comparison()) });
	const comparison = () => (chosen.size > 1 ? address("/compare", { run: [...chosen] }) : "");
	const chose = () => {
		setText(compare, chosen.size > 1 ? `Compare ${chosen.size} runs` : `Compare (choose 2 to ${MOST_SERIES} runs)`);
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

	const filter = h("input", { type: "search", "aria-label": "Filter runs", placeholder: "Filter: name, workflow, model, state …", value: page.query.get("q") });
	const arrange = () => {
		const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
		const wanted = answer.runs.filter((run) => words.every((word) => haystack(run).includes(word)));
		rows.set(wanted.sort(order(table.sort.name, table.sort.descending)));
		setText(summary, `${number(wanted.length)} of ${number(answer.runs.length)} runs`);
	};
	filter.addEventListener("input", () => {
		page.set({ q: filter.value });
		arrange();
	});

	const table = new Table(page, {
		label: "Runs",
		rows,
		main: 1,
		columns: columns(chosen, choose),
		href: (run) => runAddress(run.run),
		sort: { name, descending },
		onsort: (name, descending) => {
			table.sortedBy(name, descending);
			page.set({ sort: name, order: descending ? "" : "ascending" });
			arrange();
		},
		empty: answer.runs.length ? "No run matches the filter." : "There are no runs in this folder yet. `ajet run` writes one; this page then shows it.",
	});
	const summary = h("p.quiet", { role: "status" });
	page.keys.x = () => {
		const box = document.activeElement?.closest("tr")?.querySelector("input[type=checkbox]");
		box?.click();
	};
	page.keys.c = () => open(comparison());
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

	return h(
		"div",
		h("div.title", h("h1", "Runs"), data(answer.folder, "quiet mono")),
		h("div.bar", filter, summary, compare),
		table.element,
	);
}

function columns(chosen, choose) {
	const box = (run) =>
		h("input", {
			type: "checkbox",
			checked: chosen.has(run.run),
			"aria-label": `Compare ${run.name}`,
			onchange: (event) => {
				event.target.checked = choose(run.run, event.target.checked);
			},
		});
	return [
		{ name: "choose", label: "", cell: box, title: "Choose for a comparison", fixed: true },
		text("name", "Run"),
		{ name: "state", label: "State", cell: state },
		{ name: "started", label: "Started", cell: (run) => moment(run.started) },
		{ name: "workflow", label: "Workflow", cell: workflow },
		text("backbone", "Backbone"),
		{ name: "steps", label: "Steps", cell: steps, figure: true },
		figure("episodes", "Episodes"),
		figure("seconds", "Time", duration),
		figure("reward", "Reward", score, { title: "mean reward of the last training step" }),
		{ name: "validation_after", label: "Validation", cell: validation, figure: true, title: "validation before the first step → after the last one" },
	];
}

/** The state of a run, with its problem as a hint. */
export function state(run) {
	return h("span", { class: `state ${run.state}`, title: run.problem || null }, run.state, run.problem && h("span.bad", " !"));
}

/** The file and function of a workflow; the whole path is a hint. */
function workflow(run) {
	return h("bdi", { title: run.workflow }, oneLine(run.workflow.split("/").at(-1)));
}

function steps(run) {
	return run.steps_wanted ? `${number(run.steps)} / ${number(run.steps_wanted)}` : number(run.steps);
}

/** Validation before and after training. */
export function validation(run) {
	if (run.validation_before === null && run.validation_after === null) return "–";
	return `${score(run.validation_before)} → ${score(run.validation_after)}`;
}

function haystack(run) {
	return [run.name, run.run, run.state, run.workflow, run.backbone, run.model, run.algorithm].join(" ").toLowerCase();
}
