/** The token tree of a lane: what calls share is stored once, and each sampled token is trained once. */

import { figure } from "./columns.js";
import { address, h, s } from "./dom.js";
import { count, number } from "./format.js";
import { episodeAddress, tabs } from "./places.js";
import { Rows } from "./rows.js";
import { Table } from "./table.js";

const MOST_LINES = 40;
export const MOST_SHAPES = 300;
const LINE = 22;
export const HEIGHT = LINE - 8;
const WIDTH = 1000;
export const DEEPEST = 24;

/**
 * @param {Page} page
 * @returns {Promise<HTMLElement>}
 */
export async function treeTab(page, run, episode) {
	const withTrees = episode.lanes.map((lane, index) => ({ lane, index })).filter(({ lane }) => lane.timelines.length);
	if (!withTrees.length) return h("p.quiet", "This episode has no recorded tokens: its calls were answered by a frozen model or a script.");
	const asked = Number(page.query.get("lane") ?? withTrees[0].index);
	const { index } = withTrees.find((one) => one.index === asked) ?? withTrees[0];
	const answer = await page.get("tree", { run, id: episode.id, lane: index });
	const nodes = arranged(answer.nodes);
	const list = withTrees.map((one) => [String(one.index), one.lane.agent, address("/episode", { run, id: episode.id, tab: "tree", lane: one.index })]);
	const tokens = answer.nodes.reduce((sum, node) => sum + node.tokens, 0);
	const trained = answer.nodes.reduce((sum, node) => sum + node.trained_tokens, 0);
	const table = new Table(page, {
		label: "Pieces of the token tree",
		rows: new Rows(nodes),
		columns: [
			{ name: "piece", label: "Piece", cell: (node) => "  ".repeat(Math.min(DEEPEST, node.depth)) + (node.forked ? "├ " : "") + node.text },
			figure("start", "From token"),
			figure("tokens", "Tokens"),
			{ name: "state", label: "Trained", cell: share },
			{ name: "state", label: "Timelines", cell: (node) => node.timelines.map((line) => `T${line + 1}`).join(" ") || "none" },
			{ name: "state", label: "Answers of", cell: (node) => (node.calls.length ? `call ${node.calls.join(", ")}` : "–") },
		],
		href: (node) => (node.timelines.length ? episodeAddress(run, episode.id, { tab: "tokens", timeline: node.timelines[0], at: node.start }) : null),
		empty: "This lane has no tokens.",
	});
	return h(
		"div",
		withTrees.length > 1 && tabs("Lanes", list, String(index)),
		h("p", `${count(nodes.length, "piece")} with ${count(tokens, "token")}, ${number(trained)} of them trained. A piece that stands in several timelines is shared: it is computed once.`),
		answer.left_out > 0 && h("p.problem.notice", `${count(answer.left_out, "further piece")} not shown.`),
		drawing(nodes, "figure.tree", TOKENS),
		h("h2", "Pieces"),
		table.element,
	);
}

function share({ tokens, trained_tokens: trained }) {
	const bar = h("i");
	bar.style.width = `${(100 * trained) / Math.max(1, tokens)}%`;
	return h("span", h("span.share", { "aria-hidden": true }, bar), number(trained));
}

/** The nodes depth first, each with its depth in forks, its first token, and the line on which it is drawn. */
export function arranged(nodes) {
	const children = nodes.map(() => []);
	const roots = [];
	nodes.forEach((node, index) => (node.parent < 0 ? roots : children[node.parent]).push(index));
	const found = [];
	const open = roots.reverse().map((index) => ({ index, depth: 0, start: 0, forked: false, above: null, first: true }));
	let line = -1;
	while (open.length) {
		const { index, depth, start, forked, above, first } = open.pop();
		if (!first || above === null) line += 1;
		const node = { ...nodes[index], depth, start, forked, above, line };
		found.push(node);
		const below = children[index];
		const forks = below.length > 1;
		for (let place = below.length - 1; place >= 0; place -= 1) {
			open.push({ index: below[place], depth: depth + (forks ? 1 : 0), start: start + node.tokens, forked: forks, above: node, first: place === 0 });
		}
	}
	return found;
}

/** Nodes as they are `arranged`, from left to right, each fork on a line of its own. `shapes(node, x, top)` draws one; `label` and `caption` tell all. */
export function drawing(nodes, tag, { shapes, label, caption }) {
	const shown = nodes.filter((node) => node.line < MOST_LINES).slice(0, MOST_SHAPES);
	const length = shown.reduce((most, node) => Math.max(most, node.start + node.tokens), 1);
	const lines = shown.reduce((most, node) => Math.max(most, node.line), 0) + 1;
	const x = (place) => (WIDTH * place) / length;
	const drawn = shown.map((node) => {
		const top = node.line * LINE + 4;
		const forked = node.above && node.above.line !== node.line;
		return [forked && s("path", { d: `M${x(node.start)} ${node.above.line * LINE + LINE - 4}V${top + 7}` }), shapes(node, x, top)];
	});
	return h(
		tag,
		s("svg", { viewBox: `0 0 ${WIDTH} ${lines * LINE}`, role: "img", "aria-label": label(lines, length), preserveAspectRatio: "none" }, drawn),
		h("figcaption.quiet", caption(length, nodes.length - shown.length)),
	);
}

/** The tree over token positions: blue is trained, grey is context, curves are forks. */
const TOKENS = {
	shapes: (node, x, top) => {
		const [from, to] = [x(node.start), x(node.start + node.tokens)];
		const learned = (to - from) * (node.trained_tokens / Math.max(1, node.tokens));
		return [
			s("rect.context", { x: from, y: top, width: Math.max(1, to - from), height: HEIGHT }, s("title", null, `${count(node.tokens, "token")}, ${number(node.trained_tokens)} trained`)),
			learned > 0 && s("rect.learned", { x: to - learned, y: top, width: Math.max(1, learned), height: HEIGHT }),
		];
	},
	label: (lines, length) => `${count(lines, "path")} over ${count(length, "token position")}; the table below lists the pieces`,
	caption: (length, left) => [`From left to right: ${count(length, "token position")}. Blue is trained, grey is context; a line below another one begins where they part.`, left > 0 && ` ${count(left, "piece")} not drawn.`],
};
