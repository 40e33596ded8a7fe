/** A grid of curves and the choice of metrics, for one run or several. */

import { Chart, legend } from "./chart.js";
import { data, fill, h, setText } from "./dom.js";
import { recall, remember } from "./kept.js";

const FIRST = ["reward", "accuracy", "grad_norm", "entropy", "reference_kl", "tokens_per_second", "calls_per_episode", "learning_rate", "loss", "episodes_failed"];
const MOST_CHARTS = 12;
const MOST_CHOICES = 60;

/**
 * @param {Record<string, {explanation: string, varies: boolean}>} metrics of all runs
 * @param {string[]} names what the series of all charts are called
 * @param {(metric: string) => (null | {run: string, phase: string})[]} seriesOf the curve of each series, null where it has none
 * @param {string} step what a step is
 */
export function curves(page, metrics, names, seriesOf, step = "step") {
	const all = Object.keys(metrics);
	const asked = page.query.getAll("metric").filter((name) => name in metrics);
	const usual = [...FIRST, ...all].filter((name) => metrics[name]?.varies);
	const chosen = new Set(asked.length ? asked : [...new Set([...usual, ...all])].slice(0, 6));
	const charts = new Map();
	const grid = h("div.charts");
	const numbers = page.query.getAll("range").map(Number);
	const shared = {
		step,
		smoothing: recall("smoothing", 0),
		log: page.query.get("scale") === "log",
		clock: page.query.get("over") === "time",
		range: numbers.length === 2 && numbers.every(Number.isFinite) ? numbers : null,
		choose: (place) => {
			for (const chart of charts.values()) chart.choose(place);
		},
		zoom: (range) => {
			shared.range = range;
			whole.hidden = !range;
			page.set({ range });
			again();
		},
	};
	const again = () => {
		for (const chart of charts.values()) chart.again();
	};

	const load = async (name) => {
		const { clock } = shared;
		const wanted = seriesOf(name);
		const answers = await Promise.all(wanted.map((one) => one && page.get("series", { ...one, name, clock: clock ? 1 : "" })));
		if (clock === shared.clock) charts.get(name)?.show(answers.map((answer) => answer && answer.points), clock);
	};
	const arrange = () => {
		for (const name of charts.keys()) if (!chosen.has(name)) charts.delete(name);
		fill(grid, [...chosen].map((name) => h("section", heading(name, metrics[name]), chartOf(name).element)));
		return refresh();
	};
	const chartOf = (name) => {
		if (!charts.has(name)) charts.set(name, new Chart(name, shared, page.signal));
		return charts.get(name);
	};
	const refresh = () => Promise.all([...chosen].map(load));

	const list = h("div.choices");
	const choices = () => {
		const words = filter.value.toLowerCase();
		const found = all.filter((name) => name.toLowerCase().includes(words));
		fill(list, found.slice(0, MOST_CHOICES).map(choice), found.length > MOST_CHOICES && h("p.quiet", `${found.length - MOST_CHOICES} more: type to find them`));
	};
	const choice = (name) => {
		const turn = (event) => {
			if (event.target.checked && chosen.size >= MOST_CHARTS) event.target.checked = false;
			else if (event.target.checked) chosen.add(name);
			else chosen.delete(name);
			page.set({ metric: [...chosen] });
			arrange().catch(() => {});
		};
		return h("label", h("input", { type: "checkbox", checked: chosen.has(name), onchange: turn }), data(name));
	};
	const filter = h("input", { type: "search", "aria-label": "Filter metrics", placeholder: "Filter metrics", oninput: choices });
	const strength = h("output", shared.smoothing.toFixed(2));
	const smooth = (event) => {
		shared.smoothing = Number(event.target.value);
		remember("smoothing", shared.smoothing);
		setText(strength, shared.smoothing.toFixed(2));
		again();
	};
	const scale = (event) => {
		shared.log = event.target.checked;
		page.set({ scale: shared.log ? "log" : "" });
		again();
	};
	const over = (event) => {
		shared.clock = event.target.value === "time";
		page.set({ over: shared.clock ? "time" : "" });
		shared.zoom(null);
		refresh().catch((error) => page.fail(error));
	};
	const whole = h("button", { hidden: !shared.range, onclick: () => shared.zoom(null) }, "Show all");
	const menu = h("details", { ontoggle: (event) => event.target.open && choices() }, h("summary", `Metrics (${all.length})`), h("div", filter, list));
	return {
		element: h(
			"div",
			h(
				"div.bar",
				menu,
				h("label", "Smoothing", h("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: shared.smoothing, oninput: smooth }), strength),
				h("label", h("input", { type: "checkbox", checked: shared.log, onchange: scale }), "Log scale"),
				h("label", "Over", h("select", { onchange: over }, [`${step}s`, "time"].map((one) => h("option", { value: one, selected: (one === "time") === shared.clock }, one)))),
				h("span.quiet", "Drag to zoom"),
				whole,
			),
			legend(names),
			grid,
		),
		start: arrange,
		refresh,
	};
}

function heading(name, { explanation }) {
	return h("h3", { title: explanation || null }, data(name), explanation && h("small", explanation));
}
