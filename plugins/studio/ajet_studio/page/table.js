/** A table of any length: only the rows in view are in the document. */

import { box, covered, h, watch } from "./dom.js";
import { oneLine, shortened } from "./text.js";

const OVERSCAN = 6;
const MOST_NODES = 1930;
const LEAST_ROWS = 20;
const LONGEST = 300;

/**
 * A column has `name`, `label` and `cell(row)`, which gives a text or a node. `figure` aligns it to the right, `title` says
 * what it means, `tone(row)` the class of a cell, and `fixed` that it cannot be sorted by.
 */
export class Table {
	/**
	 * @param {object} options `label` for screen readers; `columns`; `rows` (Rows or Pages). If rows lead
	 *   somewhere: `href(row)`, and `main`, the index of the column with the link. If it can be sorted: `sort` with a name
	 *   and `descending`, and `onsort(name, descending)`. `empty` is said when there are no rows.
	 */
	constructor(page, options) {
		Object.assign(this, { main: 0, empty: "Nothing here.", ...options });
		this.height = 30;
		this.shown = new Map();
		this.current = -1;
		this.above = spacer(this.columns.length);
		this.below = spacer(this.columns.length);
		this.body = h("tbody", this.above, this.below);
		this.heads = this.columns.map((column) => this.head(column));
		this.table = h("table.rows", { "aria-label": this.label }, h("thead", h("tr", { "aria-rowindex": 1 }, this.heads)), this.body);
		this.nothing = h("p.quiet", this.empty);
		this.element = h("div.table", { role: "region", "aria-label": this.label, tabindex: 0, "data-list": true }, this.table, this.nothing);
		this.element.list = this;
		this.rows.onchange = () => this.update();
		watch(this.element, () => this.update(), page.signal, true);
		this.body.addEventListener("focusin", (event) => {
			this.current = Number(event.target.closest("tr").dataset.index);
		});
		this.update();
	}

	/** Show the rows that are in view now. */
	update() {
		const total = this.rows.total;
		this.table.setAttribute("aria-rowcount", total + 1);
		this.table.hidden = total === 0;
		this.nothing.hidden = total > 0;
		let top = 0;
		let height = innerHeight;
		if (this.element.isConnected) {
			const body = box(this.body);
			top = Math.max(0, -body.top);
			height = Math.max(0, innerHeight - Math.max(0, body.top));
		}
		const others = document.getElementsByTagName("*").length - this.body.getElementsByTagName("*").length;
		const most = Math.max(LEAST_ROWS, Math.floor((MOST_NODES - 1.6 * others) / (this.nodes ?? 2 * this.columns.length + 4)));
		const seen = Math.ceil(height / this.height) + 1;
		const more = Math.max(0, Math.min(OVERSCAN, (most - seen) >> 1));
		const first = Math.max(0, Math.min(total - 1, Math.floor(top / this.height) - more));
		const last = Math.min(total, first + Math.min(most, seen + 2 * more));
		if (total) this.rows.want(first, last);
		this.place(first, last);
		this.above.firstChild.style.height = `${first * this.height}px`;
		this.below.firstChild.style.height = `${Math.max(0, total - last) * this.height}px`;
		this.above.hidden = first === 0;
		this.below.hidden = last >= total;
		this.nodes ??= this.shown.size ? 1.7 * this.shown.get(first).element.getElementsByTagName("*").length + 4 : null;
		const measured = this.shown.get(first) && box(this.shown.get(first).element).height;
		if (measured > 1 && Math.abs(measured - this.height) > 0.4) {
			this.height = measured;
			this.update();
		}
	}

	place(first, last) {
		for (const [index, { element }] of this.shown) {
			if (index < first || index >= last) {
				element.remove();
				this.shown.delete(index);
			}
		}
		let before = this.above;
		for (let index = first; index < last; index += 1) {
			const row = this.rows.at(index);
			const known = this.shown.get(index);
			let element = known?.element;
			if (!known || known.row !== row) {
				const content = JSON.stringify(row);
				if (known?.content === content && content !== undefined) known.row = row;
				else {
					const focused = element?.contains(document.activeElement) ? focusables(element).indexOf(document.activeElement) : -1;
					element?.remove();
					element = this.row(row, index);
					this.shown.set(index, { row, element, content });
					if (focused >= 0) {
						before.after(element);
						focusables(element)[focused]?.focus({ preventScroll: true });
					}
				}
			}
			if (before.nextSibling !== element) before.after(element);
			before = element;
		}
	}

	row(row, index) {
		const loading = row === undefined;
		const cells = this.columns.map((column, place) => {
			let content = loading ? (place === this.main ? "…" : "") : column.cell(row, index);
			if (typeof content === "string") content = shortened(oneLine(content), LONGEST);
			const href = !loading && place === this.main && this.href?.(row);
			if (href) content = h("a", { href }, content);
			const properties = { class: `${column.figure ? "figure " : ""}c-${column.name} ${loading ? "" : (column.tone?.(row) ?? "")}` };
			return place === this.main ? h("th", { scope: "row", ...properties }, content) : h("td", properties, content);
		});
		return h("tr", { "data-index": index, "aria-rowindex": index + 2, class: loading ? "loading" : null }, cells);
	}

	head(column) {
		const sorted = this.sort?.name === column.name;
		const properties = {
			scope: "col",
			class: `${column.figure ? "figure " : ""}c-${column.name}`,
			title: column.title,
			"aria-sort": sorted ? (this.sort.descending ? "descending" : "ascending") : null,
		};
		if (!this.onsort || column.fixed) return h("th", properties, column.label);
		const turn = () => this.onsort(column.name, sorted ? !this.sort.descending : Boolean(column.figure));
		const arrow = sorted ? h("span", { "aria-hidden": true }, this.sort.descending ? " ↓" : " ↑") : null;
		return h("th", properties, h("button", { onclick: turn, "data-focus": `sort-${column.name}` }, column.label, arrow));
	}

	/** Show another order in the heads. */
	sortedBy(name, descending) {
		this.sort = { name, descending };
		const heads = this.columns.map((column) => this.head(column));
		this.heads.forEach((head, place) => {
			const focused = head.contains(document.activeElement);
			head.replaceWith(heads[place]);
			if (focused) heads[place].querySelector("button")?.focus();
		});
		this.heads = heads;
	}

	/** Focus the row so many places further down. */
	move(by) {
		const total = this.rows.total;
		if (!total) return;
		const body = box(this.body);
		const cover = covered() + box(this.table.tHead).height;
		const from = this.current >= 0 ? this.current + by : Math.ceil(Math.max(0, cover - body.top) / this.height);
		const index = Math.max(0, Math.min(total - 1, from));
		const top = body.top + index * this.height;
		if (top < cover) scrollBy(0, top - cover);
		else if (top + 2 * this.height > innerHeight) scrollBy(0, top + 2 * this.height - innerHeight);
		this.update();
		this.current = index;
		const element = this.shown.get(index)?.element;
		(element?.querySelector("th a") ?? focusables(element)[0])?.focus({ preventScroll: true });
	}
}

function focusables(element) {
	return [...(element?.querySelectorAll("a, input, button") ?? [])];
}

function spacer(columns) {
	return h("tr.spacer", { "aria-hidden": true, hidden: true }, h("td", { colspan: columns }));
}
