/** Columns of tables, and the order of rows by one of them. */

import { number } from "./format.js";

/** A column of texts. `more` is what else `Table` takes of a column. */
export const text = (name, label, more) => ({ name, label, cell: (row) => row[name] ?? "", ...more });

/** A column of figures, aligned to the right. */
export const figure = (name, label, format = number, more = {}) => ({ name, label, cell: (row) => format(row[name]), figure: true, ...more });

/** Compares rows by a column; rows without a value come last either way. */
export function order(name, descending) {
	const none = (value) => value === null || value === undefined || value === "";
	return (a, b) => {
		const [x, y] = [a[name], b[name]];
		if (none(x) || none(y)) return none(x) - none(y);
		const found = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
		return descending ? -found : found;
	};
}
