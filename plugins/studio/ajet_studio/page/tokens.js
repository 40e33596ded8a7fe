/** The tokens of a timeline, coloured by one of their figures. */

import { fill, h, thinned } from "./dom.js";
import { count, number, signed } from "./format.js";
import { recall, remember } from "./kept.js";
import { episodeAddress, tabs } from "./places.js";
import { Pages } from "./rows.js";
import { TokenGrid } from "./tokengrid.js";

const PAGE = 1000;
const PAUSE = 300;
const MOST_PARTS = 100;
const MOST_TABS = 40;

/** Ways to colour: label, class of a token, and what the classes mean. */
const COLOURS = {
	logprob: { label: "Logprob", className: (token) => surprise(token.logprob), key: [["t0", "p > 90 %"], ["t1", "> 50 %"], ["t2", "> 20 %"], ["t3", "> 5 %"], ["t4", "> 1 %"], ["t5", "less likely"]] },
	mask: { label: "Loss mask", className: (token) => (token.trained ? "up" : token.call !== null ? "flat" : ""), key: [["up", "trained"], ["flat", "sampled, not trained"], ["", "context"]] },
	advantage: { label: "Advantage", className: (token) => (token.advantage === null ? "" : token.advantage > 0 ? "up" : token.advantage < 0 ? "down" : "flat"), key: [["up", "+ more likely"], ["down", "− less likely"], ["flat", "zero"]] },
	version: { label: "Weight version", className: (token) => (token.version === null ? "" : `v${token.version % 6}`), key: [] },
};

/**
 * @param {Page} page
 * @returns {Promise<HTMLElement>}
 */
export async function tokenTab(page, run, episode) {
	const lines = episode.lanes.flatMap((lane, index) => lane.timelines.map((line) => ({ ...line, lane, place: index })));
	if (!lines.length) return h("p.quiet", "This episode has no recorded tokens: its calls were answered by a frozen model or a script.");
	const asked = Number(page.query.get("timeline") ?? lines[0].index);
	const line = lines.find((one) => one.index === asked) ?? lines[0];
	const asking = { run, id: episode.id, lane: line.place, timeline: line.index };
	const source = new Pages((from, count) => page.get("tokens", { ...asking, from, count }), (error) => page.fail(error), PAGE);
	let marks = [];
	source.onanswer = (answer) => {
		marks = answer.marks;
	};
	const [{ ends }] = await Promise.all([page.get("lines", { run, id: episode.id, timeline: line.index }), source.start()]);
	const { total } = source;
	const start = startOf(page, marks, total);

	const details = h("p.details", { role: "status" });
	const key = h("span.keycolours", { "aria-hidden": true });
	let colour = recall("colour", "logprob") in COLOURS ? recall("colour", "logprob") : "logprob";
	let timer = 0;
	page.signal.addEventListener("abort", () => clearTimeout(timer));
	const grid = new TokenGrid(page, {
		label: `Tokens of timeline ${line.index + 1}`,
		total,
		ends,
		at: (index) => source.at(index),
		want: (from, to) => source.want(from, to),
		className: (token) => COLOURS[colour].className(token),
		onpoint: (index) => tell(index),
		onmove: (index) => {
			clearTimeout(timer);
			timer = setTimeout(() => page.set({ at: index }), PAUSE);
		},
	});
	source.onchange = () => grid.update(true);
	const tell = (index) => {
		const token = source.at(index);
		parts.value = marks.findLast(([from]) => from <= index)?.[0];
		const called = token && token.call !== null;
		fill(details, described(token, index), called && [" · ", h("a", { href: episodeAddress(run, episode.id, { call: token.call }) }, `call ${token.call} of ${line.lane.agent}`)]);
	};
	const choose = h(
		"select",
		{ onchange: (event) => {
			colour = event.target.value;
			remember("colour", colour);
			show();
		} },
		Object.entries(COLOURS).map(([name, { label }]) => h("option", { value: name, selected: name === colour }, label)),
	);
	const show = () => {
		const versions = [...new Set([...source.pages.values()].flat().map((token) => token.version).filter((version) => version !== null))].slice(0, 8);
		const entries = colour === "version" ? versions.map((version) => [`v${version % 6}`, `version ${version}`]) : COLOURS[colour].key;
		key.replaceChildren(...entries.map(([name, text]) => h("span", { class: name }, text)));
		grid.update(true);
	};
	show();
	const parts = h("select", { onchange: (event) => grid.go(Number(event.target.value)) }, thinned(marks, MOST_PARTS).map(([index, what]) => h("option", { value: index }, `${number(index)}: ${what === "prompt" ? "context" : `answer of call ${what}`}`)));
	const go = h("input", { type: "number", min: 0, max: total - 1, "aria-label": "Go to token", placeholder: "token", onchange: (event) => grid.go(Number(event.target.value)) });
	page.after(() => {
		grid.go(start, document.activeElement === document.body && start > 0);
		tell(start);
	});

	const list = lines.slice(0, MOST_TABS).map((one) => [String(one.index), `T${one.index + 1} ${one.lane.agent}`, episodeAddress(run, episode.id, { tab: "tokens", timeline: one.index })]);
	return h(
		"div",
		lines.length > 1 && tabs("Timelines", list, String(line.index)),
		h("div.bar", h("label", "Colour", choose), h("label", "Part", parts), h("label", "Go to", go), key),
		h("p.quiet", `${count(total, "token")}; ${number(line.trained_tokens)} trained. A line below a token: it is trained; a dotted line: it was sampled and is not.`),
		details,
		grid.element,
	);
}

/** Where to begin: at a token that the address names, or at the answer of a call. */
function startOf(page, marks, total) {
	const call = page.query.get("call");
	const at = page.query.has("at") ? Number(page.query.get("at")) : marks.find(([, what]) => String(what) === call)?.[0];
	return Math.max(0, Math.min(total - 1, at || 0));
}

function surprise(logprob) {
	if (logprob === null) return "";
	const level = [0.9, 0.5, 0.2, 0.05, 0.01].findIndex((border) => Math.exp(logprob) > border);
	return `t${level < 0 ? 5 : level}`;
}

function described(token, index) {
	if (!token) return `Token ${number(index)} is being loaded …`;
	const parts = [`Token ${number(index)}`, JSON.stringify(token.text), `id ${token.id}`];
	parts.push(token.call === null ? "context" : token.trained ? "sampled, trained" : "sampled, not trained");
	if (token.logprob !== null) parts.push(`logprob ${token.logprob.toFixed(3)} (${(100 * Math.exp(token.logprob)).toPrecision(3)} %)`);
	if (token.advantage !== null) parts.push(`advantage ${signed(token.advantage)}`);
	if (token.version !== null) parts.push(`weight version ${token.version}`);
	return parts.join(" · ");
}
