/** Words in all episodes of a run: each with the place where they are. */

import { address, data, h, moveAmong } from "../dom.js";
import { taskName } from "../episodes.js";
import { count, number, score } from "../format.js";
import { above, episodeAddress, stepName } from "../places.js";

const PAGE = 25;

/** @param {Page} page */
export async function searchView(page) {
	const run = page.query.get("run") ?? ".";
	const q = page.query.get("q") ?? "";
	const offset = Number(page.query.get("offset") ?? 0);
	page.named("Search", above(run));
	const hint = h("p.quiet", "All words must occur; a word also finds longer ones that begin with it. Words in \"quotes\" are found in this order only.");
	if (!q.trim()) return h("div", h("h1", "Search"), h("p", "Write words into the field above."), hint);
	const answer = await page.get("search", { run, q, offset, limit: PAGE });
	const link = (start, text) => h("a", { href: address("/search", { run, q, offset: start || "" }), "data-focus": text }, text);
	page.near.previous = offset > 0 ? address("/search", { run, q, offset: Math.max(0, offset - PAGE) || "" }) : null;
	page.near.next = offset + PAGE < answer.total ? address("/search", { run, q, offset: offset + PAGE }) : null;
	const list = h("ol.hits", { "data-list": true }, answer.rows.map((row) => hit(run, row)));
	list.list = { move: (by) => moveAmong(list.querySelectorAll("li > a"), by) };
	return h(
		"div",
		h("h1", "Search for ", data(q)),
		h("p", { role: "status" }, found(answer, offset)),
		answer.indexed < 1 && h("p.problem.notice", `${Math.floor(answer.indexed * 100)} % of the journal has been read. Press r to search again.`),
		answer.total === 0 && hint,
		list,
		h("p.bar", page.near.previous && link(Math.max(0, offset - PAGE), "← previous hits"), page.near.next && link(offset + PAGE, "next hits →")),
	);
}

function found(answer, offset) {
	if (!answer.total) return "No episode contains these words.";
	const last = Math.min(answer.total, offset + answer.rows.length);
	return `${count(answer.total, "episode")}, the latest first; ${number(offset + 1)} to ${number(last)} shown.`;
}

function hit(run, row) {
	const [start, length] = row.at;
	return h(
		"li",
		h("a", { href: episodeAddress(run, row.id) }, taskName(row)),
		h("span.quiet", ` ${stepName(row.phase, row.step)} · reward ${score(row.reward)} · in ${row.where}`),
		h("p", h("bdi", row.excerpt.slice(0, start), length > 0 && h("mark", row.excerpt.slice(start, start + length)), row.excerpt.slice(start + length))),
	);
}
