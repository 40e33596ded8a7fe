/**
 * Curves over steps or over time, as SVG. Up to six series, told apart by colour, by dashes and by a letter at their end. The
 * pointer and the arrow keys choose a place, whose values are written below the curves; a drag chooses a range to zoom into.
 */

import { box, fill, h, s, setText, watch } from "./dom.js";
import { duration, number } from "./format.js";

const HEIGHT = 206;
const LEFT = 54;
const RIGHT = 20;
const TOP = 8;
const BOTTOM = 36;
const FLOOR = HEIGHT - BOTTOM;
const FEW = 40;
const DRAG = 6;
const CLOCK = [1, 2, 5, 10, 15, 30].flatMap((one) => [one, one * 60]).concat([1, 2, 3, 6, 12, 24, 48, 168].map((hours) => hours * 3600)).sort((a, b) => a - b);
export const MOST_SERIES = 6;

export class Chart {
	/**
	 * `name` is that of the metric. `shared` is of all charts of a page: what a `step` is; `smoothing`, 0 (none) to below 1; whether the values
	 * have a `log` scale; the `range` of places that is shown, or null for all; `marks`, places with a line of their own, if there are any; and what to call with another place or
	 * range: `choose(place)`, `zoom(range)`.
	 */
	constructor(name, shared, signal) {
		Object.assign(this, { name, shared, series: [], clock: false, width: 480, chosen: null, from: null, inView: true });
		this.plot = s("svg", { "aria-hidden": true, focusable: "false" });
		this.values = h("p.values", { "aria-hidden": true });
		this.slider = h(
			"div.plot",
			{
				role: "slider",
				tabindex: 0,
				"aria-label": name,
				onkeydown: (event) => this.key(event),
				onblur: () => shared.choose(null),
				onpointerdown: (event) => this.grab(event),
				onpointermove: (event) => this.point(event),
				onpointerup: (event) => this.drop(event),
				onpointerleave: () => shared.choose(null),
				ondblclick: () => shared.zoom(null),
			},
			this.plot,
		);
		this.element = h("div.chart", this.slider, this.values);
		watch(this.slider, () => this.fit(), signal);
		const observer = new IntersectionObserver(([entry]) => this.see(entry.isIntersecting), { rootMargin: "150px" });
		observer.observe(this.element);
		signal.addEventListener("abort", () => observer.disconnect());
	}

	/** Show other series: points, [place, value] by ascending places, or null for one that this chart lacks. With `clock`, places are seconds. */
	show(series, clock) {
		if (clock !== this.clock) this.chosen = null;
		this.all = series;
		this.clock = clock;
		this.series = series.map((points, place) => points?.length && { place, points, smooth: smoothed(points, this.shared.smoothing) }).filter(Boolean);
		this.many = series.length > 1;
		this.draw();
	}

	/** Draw again after what is shared has changed. */
	again() {
		if (this.all) this.show(this.all, this.clock);
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
		const { clock } = this;
		const { shared } = this;
		const { log, range } = shared;
		const right = this.width - RIGHT;
		this.plot.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
		const all = this.series.flatMap(({ points }) => points);
		const seen = all.filter(([place, value]) => Number.isFinite(value) && (!log || value > 0) && (!range || (place >= range[0] && place <= range[1])));
		this.places = [...new Set(seen.map(([place]) => place))].sort((a, b) => a - b);
		this.cursor = null;
		this.slider.ariaLabel = `${this.name} over ${clock ? "time" : `the ${this.shared.step}s`}`;
		if (!seen.length) {
			fill(this.plot, s("text", { x: this.width / 2, y: HEIGHT / 2, class: "middle" }, all.length ? `no values ${log ? "above 0 " : ""}here` : "no values yet"));
			this.choose(null);
			return;
		}
		this.ends = range ?? [this.places[0], this.places.at(-1)];
		const [low, high] = this.ends;
		const ticks = (log ? powersOf : ticksOf)(...bounds(seen.map(([, value]) => value)));
		const of = log ? Math.log10 : (value) => value;
		const [least, most] = [of(ticks[0]), of(ticks.at(-1))];
		this.x = (place) => LEFT + ((right - LEFT) * (place - low)) / (high - low || 1);
		this.y = (value) => FLOOR - ((FLOOR - TOP) * (of(value) - least)) / (most - least || 1);
		const lines = ticks.map((tick) => [
			s("line", { x1: LEFT, x2: right, y1: this.y(tick), y2: this.y(tick), class: "grid" }),
			s("text", { x: LEFT - 6, y: this.y(tick) + 4, class: "end" }, short(tick)),
		]);
		const below = placesOf(low, high, Math.max(2, Math.floor(this.width / 90)), clock).map((place) =>
			s("text", { x: this.x(place), y: FLOOR + 15, class: "middle" }, clock ? duration(place) : number(place)),
		);
		const title = s("text", { x: (LEFT + right) / 2, y: HEIGHT - 5, class: "middle title" }, clock ? "time since the first episode" : this.shared.step);
		const inner = { x: LEFT - 4, y: 0, width: right - LEFT + 8, height: HEIGHT };
		const curves = s("svg", { ...inner, viewBox: Object.values(inner).join(" ") }, this.series.map((one) => this.curve(one)));
		const marked = (shared.marks ?? []).filter((place) => place >= low && place <= high).map((place) => `M${this.x(place).toFixed(1)} ${TOP}v${FLOOR - TOP}`);
		this.cursor = s("g", { class: "cursor" });
		fill(this.plot, lines, s("path", { d: marked.join(""), class: "marked" }), below, title, curves, this.letters(), this.cursor);
		this.choose(this.chosen);
	}

	curve({ points, smooth, place }) {
		const at = ([x, value]) => `${this.x(x).toFixed(1)} ${this.y(value).toFixed(1)}`;
		const drawn = (of) => of.filter(([, value]) => Number.isFinite(this.y(value)));
		const path = (of) => drawn(of).map((one, i) => `${i ? "L" : "M"}${at(one)}`).join("");
		const few = drawn(points).filter(([x]) => x >= this.ends[0] && x <= this.ends[1]);
		return s(
			"g",
			{ class: `s${place}` },
			this.shared.smoothing > 0 && s("path", { d: path(points), class: "raw" }),
			s("path", { d: path(smooth), class: "curve" }),
			few.length <= FEW && s("path", { d: few.map((one) => `M${at(one)}h0`).join(""), class: "dots" }),
		);
	}

	/** The letter of each series at its end, one below the other where they would overlap. */
	letters() {
		if (!this.many) return [];
		const ends = this.series
			.map(({ smooth, place }) => ({ place, end: smooth.filter(([x, value]) => x <= this.ends[1] && Number.isFinite(this.y(value))).at(-1) }))
			.filter(({ end }) => end)
			.map(({ place, end }) => ({ place, x: Math.min(this.width - 14, this.x(end[0]) + 6), y: this.y(end[1]) + 4 }))
			.sort((a, b) => a.y - b.y);
		for (let i = 1; i < ends.length; i += 1) ends[i].y = Math.max(ends[i].y, ends[i - 1].y + 11);
		for (let i = ends.length - 1, most = FLOOR + 3; i >= 0; i -= 1, most -= 11) ends[i].y = Math.min(ends[i].y, most);
		return ends.map(({ place, x, y }) => s("g", { class: `s${place}` }, s("text", { x, y }, letter(place))));
	}

	/** The place below the pointer, of those that have values. */
	under(event) {
		const { left, width } = box(this.slider);
		const share = (((event.clientX - left) / width) * this.width - LEFT) / (this.width - LEFT - RIGHT);
		return nearest(this.places, this.ends[0] + share * (this.ends[1] - this.ends[0]));
	}

	grab(event) {
		this.from = this.places?.length && !event.button ? [event.clientX, this.under(event)] : null;
	}

	point(event) {
		if (!this.places?.length) return;
		const to = this.under(event);
		this.shared.choose(to);
		if (!this.from || !event.buttons || !this.cursor) return;
		const [a, b] = [this.x(this.from[1]), this.x(to)].sort((one, other) => one - other);
		this.cursor.append(s("rect", { x: a, y: TOP, width: b - a, height: FLOOR - TOP }));
	}

	drop(event) {
		const { from } = this;
		this.from = null;
		if (!from || Math.abs(event.clientX - from[0]) < DRAG) return;
		const range = [from[1], this.under(event)].sort((a, b) => a - b);
		if (range[0] < range[1]) this.shared.zoom(range);
	}

	key(event) {
		const moves = { ArrowLeft: -1, ArrowRight: 1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
		const many = this.places?.length;
		if (!many || !(event.key in moves || event.key === "+" || event.key === "-")) return;
		event.preventDefault();
		const now = this.chosen === null ? -1 : this.places.indexOf(this.chosen);
		if (event.key === "-") this.shared.zoom(null);
		else if (event.key === "+") {
			const most = (this.ends[1] - this.ends[0]) / 4;
			const middle = this.chosen ?? this.ends[1] - most;
			if (many > 2) this.shared.zoom([Math.max(this.ends[0], middle - most), Math.min(this.ends[1], middle + most)]);
		} else {
			const by = moves[event.key];
			const from = now < 0 ? (by > 0 ? -1 : many) : now;
			this.shared.choose(this.places[Math.max(0, Math.min(many - 1, from + by))]);
		}
	}

	/** Mark a place and write its values, or the last ones: as they were measured, also where the curve is smoothed. */
	choose(place) {
		this.chosen = place;
		if (place === null || !this.cursor) {
			if (this.cursor) fill(this.cursor);
			setText(this.values, this.places?.length ? `last: ${this.told(({ points }) => points.at(-1)[1])}` : "");
		} else {
			const value = ({ points }) => points.find(([at]) => at === place)?.[1];
			const mark = (one) => Number.isFinite(this.y(value(one) ?? NaN)) && s("circle", { class: `s${one.place}`, cx: this.x(place), cy: this.y(value(one)), r: 3.5 });
			const inside = place >= this.ends[0] && place <= this.ends[1];
			fill(this.cursor, inside && [s("line", { x1: this.x(place), x2: this.x(place), y1: TOP, y2: FLOOR }), this.series.map(mark)]);
			setText(this.values, `${this.clock ? duration(place) : `${this.shared.step} ${number(place)}`}: ${this.told(value)}`);
		}
		const places = this.places ?? [];
		const now = place === null ? places.length - 1 : places.indexOf(place);
		for (const [name, figure] of [["valuemin", 0], ["valuemax", Math.max(0, places.length - 1)], ["valuenow", Math.max(0, now)]]) {
			this.slider.setAttribute(`aria-${name}`, figure);
		}
		this.slider.setAttribute("aria-valuetext", this.values.textContent || "no values yet");
	}

	/** The values of the series that have one. */
	told(value) {
		const shown = this.series.map((one) => [one.place, value(one)]).filter(([, figure]) => figure !== undefined);
		return shown.map(([place, figure]) => `${this.many ? `${letter(place)} ` : ""}${number(figure)}`).join(" · ");
	}
}

/** What the colours and letters of series mean; nothing for one alone. */
export function legend(names) {
	const mark = (place) => s("svg", { viewBox: "0 0 24 8", class: `mark s${place}`, "aria-hidden": true }, s("path", { d: "M0 4H24", class: "curve" }));
	return names.length > 1 && h("ul.legend", names.map((name, place) => h("li", { class: `s${place}` }, mark(place), h("b", letter(place)), h("bdi", name))));
}

/** What series are called in short. */
export function letter(place) {
	return "ABCDEF"[place];
}

/** An exponential moving average; its start counts no more than the other values. */
function smoothed(points, weight) {
	if (!weight) return points;
	let mean = 0;
	let whole = 0;
	return points.map(([place, value]) => {
		mean = weight * mean + (1 - weight) * value;
		whole = weight * whole + (1 - weight);
		return [place, mean / whole];
	});
}

function bounds(values) {
	let [low, high] = [Infinity, -Infinity];
	for (const value of values) {
		low = Math.min(low, value);
		high = Math.max(high, value);
	}
	if (low === 0 && high === 0) return [0, 1];
	if (low === high) return low > 0 ? [low / 2, high * 1.5] : [low * 1.5, high / 2];
	return [low, high];
}

/** Round numbers around a range, about `many` of them. */
function ticksOf(low, high, many = 4) {
	const raw = (high - low) / many;
	const power = 10 ** Math.floor(Math.log10(raw));
	const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= raw * 0.999);
	const first = Math.floor(low / step + 1e-9) * step;
	const ticks = [first];
	while (ticks.at(-1) < high - step * 1e-9 && ticks.length < 12) ticks.push(first + ticks.length * step);
	return ticks;
}

/** Powers of ten around a range; with their 2 and 5 where it is narrow. */
function powersOf(low, high) {
	const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high) + 1e-9)];
	const by = Math.ceil((last - first) / 6);
	const factors = last - first > 2 ? [1] : [1, 2, 5];
	const ticks = [];
	for (let power = first; power <= last + by; power += by) ticks.push(...factors.map((factor) => factor * 10 ** power));
	const from = ticks.findLastIndex((tick) => tick <= low * 1.0001);
	return ticks.slice(Math.max(0, from), ticks.findIndex((tick) => tick >= high * 0.9999) + 1);
}

/** Whole round steps inside a range, or round times. */
function placesOf(low, high, many, clock) {
	if (low === high) return [low];
	const raw = (high - low) / many;
	const [first, second] = ticksOf(low, high, many);
	const by = clock ? (CLOCK.find((one) => one >= raw) ?? second - first) : Math.max(1, Math.round(second - first));
	const found = [];
	for (let place = Math.ceil(low / by) * by; place <= high && found.length < 30; place += by) found.push(place);
	return found;
}

/** A figure at an axis: at most three digits, exponents without zeros. */
function short(value) {
	const size = Math.abs(value);
	const rounded = Number(value.toPrecision(3));
	return size && (size < 1e-3 || size >= 1e5) ? rounded.toExponential().replace("e+", "e") : String(rounded);
}

function nearest(sorted, value) {
	return sorted.reduce((best, one) => (Math.abs(one - value) < Math.abs(best - value) ? one : best), sorted[0]);
}
