/** Rows of tables: all of them, or pages of them that are asked for when they come into view. */

/** Milliseconds until rows that did not arrive are asked for again. */
const AGAIN = 3000;

/** Rows that are all here. */
export class Rows {
	constructor(rows = []) {
		this.rows = rows;
		this.onchange = () => {};
	}

	get total() {
		return this.rows.length;
	}

	at(index) {
		return this.rows[index];
	}

	want() {}

	/** Replace the rows. */
	set(rows) {
		this.rows = rows;
		this.onchange();
	}
}

/** Rows of which the server sends pages. */
export class Pages {
	/**
	 * @param {(offset: number, limit: number) => Promise<{total: number, rows: any[]}>} load
	 * @param {(error: Error) => void} failed
	 * @param {number} size rows of a page
	 */
	constructor(load, failed, size = 100) {
		this.load = load;
		this.failed = failed;
		this.size = size;
		this.total = 0;
		this.onchange = () => {};
		this.onanswer = () => {};
		this.pages = new Map();
		this.asked = new Set();
		this.age = 0;
	}

	at(index) {
		return this.pages.get(Math.floor(index / this.size))?.[index % this.size];
	}

	/** Ask for the rows from `first` up to `last` that are not here; some seconds later again if that fails. */
	want(first, last) {
		for (let page = Math.floor(first / this.size); page <= Math.floor(Math.max(first, last - 1) / this.size); page += 1) {
			if (this.pages.has(page) || this.asked.has(page)) continue;
			this.ask(page).catch((error) => {
				this.failed(error);
				if (error.name !== "AbortError") setTimeout(() => this.onchange(), AGAIN);
			});
		}
	}

	/** Load the first page. Throws what `load` throws. */
	async start() {
		await this.ask(0);
		return this;
	}

	/** Ask again for all pages that are here; the old rows stay until the new ones have come. */
	async refresh() {
		this.age += 1;
		this.asked.clear();
		await Promise.all([...(this.pages.size ? this.pages.keys() : [0])].map((page) => this.ask(page)));
	}

	/** Forget all rows and load the first page, for another order or filter. */
	async restart() {
		this.age += 1;
		this.asked.clear();
		await this.ask(0, () => this.pages.clear());
	}

	async ask(page, before = () => {}) {
		const age = this.age;
		this.asked.add(page);
		try {
			const answer = await this.load(page * this.size, this.size);
			if (age !== this.age) return;
			before();
			if (page && this.pages.size > 40) this.pages.delete(this.pages.keys().next().value);
			this.pages.set(page, answer.rows);
			this.total = answer.total;
			this.onanswer(answer);
			this.onchange();
		} finally {
			if (age === this.age) this.asked.delete(page);
		}
	}
}
