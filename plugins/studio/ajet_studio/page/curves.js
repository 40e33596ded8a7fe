/** A grid of curves and the choice of metrics, for one run or several. */

import { Chart } from "./chart.js";
import { data, fill, h } from "./dom.js";
import { recall, remember } from "./kept.js";

const FIRST = ["reward", "accuracy", "loss", "grad_norm", "episodes_failed", "tokens_trained"];
const MOST_CHARTS = 12;
const MOST_CHOICES = 60;

/**
 * @param {Record<string, {explanation: string, phases: string[]}>} metrics of all runs
 * @param {(metric: string) => {name: string, run: string, phase: string}[]} seriesOf which curves a metric has
 */
export function curves(page, metrics, seriesOf) {
	const names = Object.keys(metrics);
	const asked = page.query.getAll("metric").filter((name) => name in metrics);
	const chosen = new Set(asked.length ? asked : FIRST.filter((name) => name in metrics).slice(0, 6));
	if (!chosen.size) for (const name of names.slice(0, 4)) chosen.add(name);
	const charts = new Map();
	const grid = h("div.charts");
	let smoothing = recall("smoothing", 0);

	const load = async (name) => {
		const wanted = seriesOf(name);
		const answers = await Promise.all(wanted.map(({ run, phase }) => page.get("series", { run, phase, name })));
		charts.get(name)?.show(wanted.map((one, place) => ({ name: one.name, points: answers[place].points })));
	};
	const arrange = () => {
		for (const name of charts.keys()) if (!chosen.has(name)) charts.delete(name);
		fill(grid, [...chosen].map((name) => h("section", heading(name, metrics[name]), chartOf(name).element)));
		return refresh();
	};
	const chartOf = (name) => {
		if (!charts.has(name)) charts.set(name, new Chart(`${name} over the steps`, smoothing, page.signal));
		return charts.get(name);
	};
	const refresh = () => Promise.all([...chosen].map(load));

	const list = h("div.choices");
	const choices = () => {
		const words = filter.value.toLowerCase();
		const found = names.filter((name) => name.toLowerCase().includes(words));
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
	const range = h("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: smoothing });
	range.addEventListener("input", () => {
		smoothing = Number(range.value);
		remember("smoothing", smoothing);
		for (const chart of charts.values()) chart.smooth(smoothing);
	});
	const menu = h("details", { ontoggle: (event) => event.target.open && choices() }, h("summary", `Metrics (${names.length})`), h("div", filter, list));
	return {
		element: h("div", h("div.bar", menu, h("label", "Smoothing", range)), grid),
		start: arrange,
		refresh,
	};
}

function heading(name, { explanation }) {
	return h("h3", { title: explanation || null }, data(name), explanation && h("small", explanation));
}
