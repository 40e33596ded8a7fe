/**
 * A grid of tokens of any length. A line ends with a token that contains a line feed, or after so many tokens. Every line has the
 * same height, so the place of each of a million tokens is known, and only the lines in view are in the document.
 */

import { h, watch } from "./dom.js";
import { number } from "./format.js";
import { oneLine, shortened } from "./text.js";

const WIDEST = 24;
const NARROWEST = 4;
const TOKEN = 44;
const PLACE = 88;
const MOST_TOKENS = 700;
const LONGEST = 60;

export class TokenGrid {
	/**
	 * @param {object} options `label`; `total`; `ends`, places behind line feeds; `at(index)`, a token if it is here; `want(from, to)` asks for tokens;
	 *   `className(token)`; `onpoint(index)` when a token has the pointer or the cursor; `onmove(index)` when the cursor
	 *   has moved
	 */
	constructor(page, options) {
		Object.assign(this, options);
		this.columns = 16;
		this.starts = [0];
		this.height = 26;
		this.cursor = 0;
		this.shown = new Map();
		this.space = h("div", { role: "presentation" });
		this.element = h("div.tokens", { role: "grid", tabindex: 0, "aria-label": this.label, onkeydown: (event) => this.key(event) }, this.space);
		this.element.addEventListener("scroll", () => this.update(), { passive: true });
		this.element.addEventListener("pointerover", (event) => this.point(event, this.onpoint));
		this.element.addEventListener("pointerleave", () => this.onpoint(this.cursor));
		this.element.addEventListener("click", (event) => this.point(event, (index) => this.move(index)));
		watch(this.element, () => this.fit(), page.signal);
		this.fit();
	}

	fit() {
		const width = this.element.clientWidth || 900;
		const many = Math.max(NARROWEST, Math.min(WIDEST, Math.floor((width - PLACE) / TOKEN / 4) * 4));
		const height = 1.625 * parseFloat(getComputedStyle(document.documentElement).fontSize);
		const changed = many !== this.columns || height !== this.height;
		if (changed) {
			this.columns = many;
			this.height = height;
		}
		this.starts = [];
		let from = 0;
		for (const end of [...this.ends, this.total]) {
			for (; from < end; from += this.columns) this.starts.push(from);
			from = end;
		}
		this.space.style.height = `${this.starts.length * this.height}px`;
		this.element.setAttribute("aria-rowcount", this.starts.length);
		this.element.setAttribute("aria-colcount", this.columns + 1);
		this.update(changed);
	}

	/** Show the lines in view; `anew` builds those that are there again. */
	update(anew = false) {
		if (anew) {
			for (const line of this.shown.values()) line.remove();
			this.shown.clear();
		}
		const view = this.element.clientHeight || 600;
		const lines = this.starts.length;
		const first = Math.max(0, Math.floor(this.element.scrollTop / this.height) - 1);
		const most = Math.min(lines, first + Math.ceil(view / this.height) + 3);
		let last = Math.min(lines, first + 1);
		while (last < most && (this.starts[last + 1] ?? this.total) - this.starts[first] <= MOST_TOKENS) last += 1;
		for (const [index, line] of this.shown) {
			if (index < first || index >= last) {
				line.remove();
				this.shown.delete(index);
			}
		}
		for (let index = first; index < last; index += 1) {
			if (this.shown.has(index)) continue;
			const line = this.line(index);
			this.shown.set(index, line);
			this.space.append(line);
		}
		this.mark();
		this.want(this.starts[first] ?? 0, this.starts[last] ?? this.total);
	}

	/** The line of a token. */
	lineOf(index) {
		let [low, high] = [0, this.starts.length - 1];
		while (low < high) {
			const middle = Math.ceil((low + high) / 2);
			if (this.starts[middle] <= index) low = middle;
			else high = middle - 1;
		}
		return low;
	}

	/** Go to a token; `focus` gives the grid the focus. */
	go(index, focus = true) {
		this.move(index);
		if (!focus) return;
		this.element.focus({ preventScroll: true });
		this.element.scrollIntoView({ block: "nearest" });
	}

	line(index) {
		const from = this.starts[index];
		const to = this.starts[index + 1] ?? this.total;
		const cells = [];
		for (let place = from; place < to; place += 1) cells.push(this.cell(place));
		const line = h("div.line", { role: "row", "aria-rowindex": index + 1 }, h("span.place", { role: "rowheader" }, number(from)), cells);
		line.style.top = `${index * this.height}px`;
		return line;
	}

	cell(index) {
		const token = this.at(index);
		if (!token) return h("span.token", { role: "gridcell", id: `token-${index}` }, "·");
		const classes = ["token", this.className(token), token.call !== null && "answer", token.trained && "trained"];
		return h("span", { class: classes.filter(Boolean).join(" "), role: "gridcell", id: `token-${index}` }, shortened(oneLine(token.text), LONGEST).replaceAll(" ", "·") || "∅");
	}

	key(event) {
		const page = Math.max(1, Math.floor(this.element.clientHeight / this.height) - 1);
		const line = this.lineOf(this.cursor);
		const end = (at) => (this.starts[at + 1] ?? this.total) - 1;
		const down = (by) => {
			const at = Math.max(0, Math.min(this.starts.length - 1, line + by));
			return Math.min(end(at), this.starts[at] + this.cursor - this.starts[line]);
		};
		const moves = {
			ArrowLeft: () => this.cursor - 1,
			ArrowRight: () => this.cursor + 1,
			ArrowUp: () => down(-1),
			ArrowDown: () => down(1),
			PageUp: () => down(-page),
			PageDown: () => down(page),
			Home: () => (event.ctrlKey ? 0 : this.starts[line]),
			End: () => (event.ctrlKey ? this.total - 1 : end(line)),
		};
		const to = moves[event.key]?.();
		if (to === undefined) return;
		event.preventDefault();
		this.move(to);
	}

	move(index) {
		this.cursor = Math.max(0, Math.min(this.total - 1, index));
		const top = this.lineOf(this.cursor) * this.height;
		const { scrollTop, clientHeight } = this.element;
		if (top < scrollTop) this.element.scrollTop = top;
		else if (top + this.height > scrollTop + clientHeight) this.element.scrollTop = top - Math.max(0, clientHeight / 2);
		this.update();
		this.onpoint(this.cursor);
		this.onmove(this.cursor);
	}

	mark() {
		this.element.querySelector(".current")?.classList.remove("current");
		const cell = this.element.querySelector(`#token-${this.cursor}`);
		cell?.classList.add("current");
		if (cell) this.element.setAttribute("aria-activedescendant", cell.id);
		else this.element.removeAttribute("aria-activedescendant");
	}

	point(event, then) {
		const cell = event.target.closest(".token");
		if (cell) then(Number(cell.id.slice("token-".length)));
	}
}
