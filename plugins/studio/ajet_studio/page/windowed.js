/** A list of items of any heights, of which only those in view are in the document. */

import { box, covered, h, watch } from "./dom.js";

const MARGIN = 400;
const MOST = 60;

export class Windowed {
	/**
	 * @param {object} options `label`; `count` of items; `estimate(index)`, the pixels of an item that was not shown yet;
	 *   `render(index)`, its element
	 */
	constructor({ signal }, { label, count, estimate, render }) {
		Object.assign(this, { count, estimate, render });
		this.heights = Float64Array.from({ length: count }, (_, index) => estimate(index));
		this.offsets = new Float64Array(count + 1);
		this.stale = true;
		this.shown = new Map();
		this.current = -1;
		this.above = h("div", { "aria-hidden": true });
		this.below = h("div", { "aria-hidden": true });
		this.element = h("div.windowed", { role: "group", "aria-label": label, "data-list": true }, this.above, this.below);
		this.element.list = this;
		this.sizes = new ResizeObserver((entries) => this.measured(entries));
		watch(this.element, () => this.update(), signal, true);
		signal.addEventListener("abort", () => this.sizes.disconnect());
		this.element.addEventListener("focusin", (event) => {
			const item = event.target.closest("[data-index]");
			if (item) this.current = Number(item.dataset.index);
		});
		this.update();
	}

	/** Show the items that are in view now. */
	update() {
		const placed = this.element.isConnected;
		if (this.placed && !placed) return; // another list has taken its place
		this.placed = placed;
		const top = placed ? -box(this.element).top : 0;
		const first = Math.max(0, this.at(top - MARGIN));
		const last = Math.min(this.count, this.at(top + innerHeight + MARGIN) + 1, first + MOST);
		for (const [index, element] of this.shown) {
			if (index < first || index >= last) {
				this.sizes.unobserve(element);
				element.remove();
				this.shown.delete(index);
			}
		}
		let before = this.above;
		for (let index = first; index < last; index += 1) {
			let element = this.shown.get(index);
			if (!element) {
				element = this.render(index);
				element.dataset.index = index;
				element.tabIndex = -1;
				element.setAttribute("aria-posinset", index + 1);
				element.setAttribute("aria-setsize", this.count);
				this.shown.set(index, element);
				this.sizes.observe(element);
			}
			if (before.nextSibling !== element) before.after(element);
			before = element;
		}
		this.above.style.height = `${this.offset(first)}px`;
		this.below.style.height = `${this.offset(this.count) - this.offset(last)}px`;
	}

	/** Build all items in view anew, after what they show has changed. */
	redraw() {
		for (const element of this.shown.values()) {
			this.sizes.unobserve(element);
			element.remove();
		}
		this.shown.clear();
		this.update();
	}

	/** Bring an item to the top of the window and focus it. */
	jump(index) {
		const cover = covered() + 8;
		for (let times = 0; times < 4; times += 1) {
			scrollBy(0, box(this.element).top + this.offset(index) - cover);
			this.update();
			this.remeasure();
		}
		this.current = index;
		this.shown.get(index)?.focus({ preventScroll: true });
	}

	/** Focus the item so many places further down. */
	move(by) {
		if (!this.count) return;
		const cover = covered() + 8;
		const inView = this.at(cover - box(this.element).top);
		const from = this.current >= 0 ? this.current + by : inView;
		this.jump(Math.max(0, Math.min(this.count - 1, from)));
	}

	remeasure() {
		for (const [index, element] of this.shown) this.keep(index, box(element).height);
		if (this.stale) this.update();
	}

	/** What is read must not move when items above it turn out to be higher or lower than estimated. */
	measured(entries) {
		const top = -box(this.element).top;
		const reading = this.at(top);
		const before = this.offset(reading);
		for (const { target } of entries) {
			if (target.isConnected) this.keep(Number(target.dataset.index), box(target).height);
		}
		if (!this.stale) return;
		const moved = this.offset(reading) - before;
		this.update();
		if (moved && top > 0) scrollBy(0, moved);
	}

	keep(index, height) {
		if (height > 0 && Math.abs(height - this.heights[index]) > 0.5) {
			this.heights[index] = height;
			this.stale = true;
		}
	}

	offset(index) {
		if (this.stale) {
			for (let place = 0; place < this.count; place += 1) this.offsets[place + 1] = this.offsets[place] + this.heights[place];
			this.stale = false;
		}
		return this.offsets[index];
	}

	/** The item at so many pixels from the top of the list. */
	at(pixels) {
		this.offset(0);
		let low = 0;
		let high = Math.max(0, this.count - 1);
		while (low < high) {
			const middle = (low + high + 1) >> 1;
			if (this.offsets[middle] <= pixels) low = middle;
			else high = middle - 1;
		}
		return low;
	}
}
