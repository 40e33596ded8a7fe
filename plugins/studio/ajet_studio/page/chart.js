/**
 * Curves over steps, as SVG. Up to six series, told apart by colour, by dashes and by a letter at their end. The pointer and
 * the arrow keys choose a step, whose values are written below the curves.
 */

import { box, data, fill, h, s, setText, watch } from "./dom.js";
import { number } from "./format.js";

const HEIGHT = 190;
const LEFT = 52;
const RIGHT = 20;
const TOP = 8;
const BOTTOM = 22;
export const MOST_SERIES = 6;

export class Chart {
	/** `label` says what the curves show; `smoothing` is 0 (none) to below 1. */
	constructor(label, smoothing, signal) {
		this.label = label;
		this.smoothing = smoothing;
		this.series = [];
		this.width = 480;
		this.chosen = null;
		this.plot = s("svg", { "aria-hidden": true, focusable: "false" });
		this.values = h("p.values", { "aria-hidden": true });
		this.legend = h("ul.legend");
		this.slider = h(
			"div.plot",
			{ role: "slider", tabindex: 0, "aria-label": label, onkeydown: (e) => this.key(e), onblur: () => this.choose(null) },
			this.plot,
		);
		this.slider.addEventListener("pointermove", (event) => this.point(event));
		this.slider.addEventListener("pointerleave", () => this.choose(null));
		this.element = h("div.chart", this.legend, this.slider, this.values);
		watch(this.slider, () => this.fit(), signal);
		this.inView = true;
		const observer = new IntersectionObserver(([entry]) => this.see(entry.isIntersecting), { rootMargin: "150px" });
		observer.observe(this.element);
		signal.addEventListener("abort", () => observer.disconnect());
	}

	/** Show other series; each has a name and points, [step, value] by ascending steps. */
	show(series) {
		this.series = series.slice(0, MOST_SERIES).map((one) => ({ ...one, smooth: smoothed(one.points, this.smoothing) }));
		this.steps = [...new Set(this.series.flatMap((one) => one.points.map(([step]) => step)))].sort((a, b) => a - b);
		this.many = this.series.length > 1;
		const entries = this.series.map((one, place) => h("li", { class: `s${place}` }, mark(place), this.many && h("b", letter(place)), data(one.name)));
		fill(this.legend, this.many ? entries : []);
		this.draw();
	}

	/** Show more or less smoothing. */
	smooth(smoothing) {
		this.smoothing = smoothing;
		this.show(this.series);
	}

	/** Curves that are out of view are not in the document. */
	see(inView) {
		this.inView = inView;
		if (inView) this.draw();
		else fill(this.plot);
	}

	fit() {
		const width = Math.round(this.slider.clientWidth);
		if (width && width !== this.width) {
			this.width = width;
			this.draw();
		}
	}

	draw() {
		if (!this.inView) return;
		this.plot.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
		const values = this.series.flatMap((one) => one.points.map(([, value]) => value)).filter(Number.isFinite);
		if (!values.length) {
			fill(this.plot, s("text", { x: this.width / 2, y: HEIGHT / 2, class: "middle" }, "no values yet"));
			this.state();
			return;
		}
		const [low, high] = [this.steps[0], this.steps.at(-1)];
		const ticks = ticksOf(...bounds(values), 4);
		this.x = (step) => LEFT + ((this.width - LEFT - RIGHT) * (step - low)) / (high - low || 1);
		this.y = (value) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * (value - ticks[0])) / (ticks.at(-1) - ticks[0] || 1);
		const lines = ticks.map((tick) => [
			s("line", { x1: LEFT, x2: this.width - RIGHT, y1: this.y(tick), y2: this.y(tick), class: "grid" }),
			s("text", { x: LEFT - 6, y: this.y(tick) + 4, class: "end" }, number(Number(tick.toPrecision(12)))),
		]);
		const below = stepsOf(low, high, Math.max(2, Math.floor(this.width / 90))).map((step) =>
			s("text", { x: this.x(step), y: HEIGHT - 6, class: "middle" }, number(step)),
		);
		this.cursor = s("g", { class: "cursor" });
		fill(this.plot, lines, below, this.series.map((one, place) => this.curve(one, place)), this.letters(), this.cursor);
		this.choose(this.chosen);
	}

	curve({ points, smooth }, place) {
		const path = (of) => of.map(([step, value], i) => `${i ? "L" : "M"}${this.x(step).toFixed(1)} ${this.y(value).toFixed(1)}`).join("");
		return s(
			"g",
			{ class: `s${place}` },
			this.smoothing > 0 && s("path", { d: path(points), class: "raw" }),
			s("path", { d: path(smooth), class: "curve" }),
			points.length === 1 && s("circle", { cx: this.x(points[0][0]), cy: this.y(points[0][1]), r: 3 }),
		);
	}

	/** The letter of each series at its end, where letters of other series leave room. */
	letters() {
		if (!this.many) return [];
		const ends = this.series
			.map(({ smooth }, place) => ({ place, end: smooth.at(-1) }))
			.filter(({ end }) => end)
			.map(({ place, end }) => ({ place, x: Math.min(this.width - 14, this.x(end[0]) + 5), y: this.y(end[1]) + 4 }))
			.sort((a, b) => a.y - b.y);
		let least = TOP + 4;
		return ends.map(({ place, x, y }) => {
			least = Math.max(y, least) + 11;
			return s("g", { class: `s${place}` }, s("text", { x, y: least - 11 }, letter(place)));
		});
	}

	point(event) {
		if (!this.steps?.length) return;
		const { left, width } = box(this.slider);
		const at = ((event.clientX - left) / width) * this.width;
		const share = (at - LEFT) / (this.width - LEFT - RIGHT);
		this.choose(nearest(this.steps, this.steps[0] + share * (this.steps.at(-1) - this.steps[0])));
	}

	key(event) {
		const moves = { ArrowLeft: -1, ArrowRight: 1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
		const by = moves[event.key];
		if (!by || !this.steps?.length) return;
		event.preventDefault();
		const from = this.chosen === null ? (by > 0 ? -1 : this.steps.length) : this.steps.indexOf(this.chosen);
		this.choose(this.steps[Math.max(0, Math.min(this.steps.length - 1, from + by))]);
	}

	choose(step) {
		this.chosen = step;
		if (!this.cursor) return;
		if (step === null) {
			fill(this.cursor);
			fill(this.values, this.last());
			this.state();
			return;
		}
		const found = this.series.map((one) => one.smooth.find(([at]) => at === step)?.[1]);
		fill(
			this.cursor,
			s("line", { x1: this.x(step), x2: this.x(step), y1: TOP, y2: HEIGHT - BOTTOM }),
			found.map((value, place) => value !== undefined && s("circle", { class: `s${place}`, cx: this.x(step), cy: this.y(value), r: 3.5 })),
		);
		const shown = found.map((value, place) => (value === undefined ? "" : `${this.many ? `${letter(place)} ` : ""}${number(value)}`));
		setText(this.values, `step ${number(step)}: ${shown.filter(Boolean).join(" · ")}`);
		this.state();
	}

	last() {
		if (!this.steps?.length) return "";
		return `last: ${this.series.map((one, place) => `${this.many ? `${letter(place)} ` : ""}${number(one.smooth.at(-1)?.[1])}`).join(" · ")}`;
	}

	state() {
		const steps = this.steps ?? [];
		const place = this.chosen === null ? steps.length - 1 : steps.indexOf(this.chosen);
		for (const [name, value] of [["valuemin", 0], ["valuemax", Math.max(0, steps.length - 1)], ["valuenow", Math.max(0, place)]]) {
			this.slider.setAttribute(`aria-${name}`, value);
		}
		this.slider.setAttribute("aria-valuetext", this.values.textContent || "no values yet");
	}
}

/** The sign of a series in a legend: a piece of its line. */
function mark(place) {
	return s("svg", { viewBox: "0 0 24 8", class: `mark s${place}`, "aria-hidden": true }, s("path", { d: "M0 4H24", class: "curve" }));
}

function letter(place) {
	return "ABCDEF"[place];
}

/** An exponential moving average; its start counts no more than the other values. */
function smoothed(points, weight) {
	if (!weight) return points;
	let mean = 0;
	let whole = 0;
	return points.map(([step, value]) => {
		mean = weight * mean + (1 - weight) * value;
		whole = weight * whole + (1 - weight);
		return [step, mean / whole];
	});
}

function bounds(values) {
	let [low, high] = [Infinity, -Infinity];
	for (const value of values) {
		low = Math.min(low, value);
		high = Math.max(high, value);
	}
	if (low === 0 && high === 0) return [0, 1];
	if (low === high) return [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
	return [low, high];
}

/** Round numbers around a range. */
function ticksOf(low, high, many) {
	const raw = (high - low) / many;
	const power = 10 ** Math.floor(Math.log10(raw));
	const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= raw * 0.999);
	const first = Math.floor(low / step + 1e-9) * step;
	const ticks = [first];
	while (ticks.at(-1) < high - step * 1e-9 && ticks.length < 12) ticks.push(first + ticks.length * step);
	return ticks;
}

/** Whole round steps inside a range. */
function stepsOf(low, high, many) {
	if (low === 0 && high === 0) return [0, 1];
	if (low === high) return [low];
	const by = Math.max(1, Math.round(ticksOf(low, high, many)[1] - ticksOf(low, high, many)[0]));
	const found = [];
	for (let step = Math.ceil(low / by) * by; step <= high && found.length < 30; step += by) found.push(step);
	return found;
}

function nearest(sorted, value) {
	return sorted.reduce((best, one) => (Math.abs(one - value) < Math.abs(best - value) ? one : best), sorted[0]);
}
