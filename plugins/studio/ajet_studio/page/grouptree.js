/** The tree of a group: which calls its episodes share, what they are worth below each fork, and what each call was trained with. */

import { figure } from "./columns.js";
import { h, s } from "./dom.js";
import { count, number, score, signed } from "./format.js";
import { episodeAddress } from "./places.js";
import { Rows } from "./rows.js";
import { Table } from "./table.js";
import { DEEPEST, HEIGHT, MOST_SHAPES, arranged, drawing } from "./tree.js";

/**
 * @param {Page} page
 * @returns {Promise<HTMLElement>}
 */
export async function groupTree(page, run, of) {
	const tree = await page.get("grouptree", { run, ...of });
	const nodes = arranged(tree.nodes.map((node) => ({ ...node, tokens: node.stretches.reduce((sum, one) => sum + one.count, 0) })));
	const table = new Table(page, {
		label: "Calls of the group",
		rows: new Rows(nodes.flatMap(rowsOf)),
		columns: [
			{ name: "piece", label: "Calls", cell: (row) => "\u00a0\u00a0".repeat(Math.min(DEEPEST, row.depth)) + (row.begins && row.forked ? "├ " : "") + row.calls },
			{ name: "agent", label: "Agent", cell: (row) => row.agent },
			figure("advantage", "Advantage", (value) => (value === null ? "" : signed(value)), { tone: (row) => toneOf(row.advantage) }),
			{ name: "worth", label: "Worth", title: "the reward of the episode that ends here, or the mean reward of those below", cell: (row) => row.worth },
			{ name: "answer", label: "Answer", cell: (row) => row.words },
		],
		href: (row) => (row.id === null ? null : episodeAddress(run, row.id)),
		empty: "No call was recorded.",
	});
	return h(
		"div",
		h("p", `${count(tree.episodes, "episode")}${tree.value === null ? ", none of them judged" : `, with a mean reward of ${score(tree.value)}`}. ${tree.forks ? "A line that begins below another one is a fork: the calls before it are shared. " : "The episodes share no calls. "}`, h("strong", "Worth"), ` says what came of a line: ${tree.forks ? "the reward of the episode that ends there, or where forks leave it the value, which is the mean reward of the episodes below." : "the reward of its episode."}`),
		!tree.recorded && h("p.notice", "No advantages: the folder has no record that these episodes were trained. A check or an evaluation trains nothing."),
		tree.left_out > 0 && h("p.problem.notice", `${count(tree.left_out, "further line")} not shown.`),
		drawing(nodes, "figure.tree.group", calls(nodes)),
		h("h2", "Calls"),
		table.element,
	);
}

function rowsOf(node) {
	const stretches = node.stretches.length ? node.stretches : [{ first: null, agent: "", words: "", advantage: null }];
	return stretches.map((one, place) => {
		const ends = place === stretches.length - 1;
		return { ...one, calls: named(one), depth: node.depth, forked: node.forked, begins: place === 0, worth: ends ? worth(node) : "", id: ends ? node.id : null };
	});
}

function named({ first, last, count: calls }) {
	if (first === null) return "no call";
	return calls === 1 ? `call ${number(first)}` : `calls ${number(first)}–${number(last)}`;
}

function worth(node) {
	if (node.failure) return `failed: ${node.failure}`;
	if (node.value === null) return "not judged";
	return node.id === null ? `value ${score(node.value)}` : `reward ${score(node.value)}`;
}

const toneOf = (advantage) => (advantage > 0 ? "good" : advantage < 0 ? "bad" : "none");

/** Calls from left to right: green has a positive advantage, red a negative one, and is the fuller the larger it is. */
function calls(nodes) {
	const largest = Math.max(...nodes.flatMap((node) => node.stretches.map((one) => Math.abs(one.advantage ?? 0))), Number.MIN_VALUE);
	let left = MOST_SHAPES;
	return {
		shapes: (node, x, top) => {
			let at = node.start;
			const rects = node.stretches.slice(0, Math.max(0, left)).map((one, place) => {
				const from = at;
				at += one.count;
				const about = [named(one), one.agent, one.advantage !== null && `advantage ${signed(one.advantage)}`, place === node.stretches.length - 1 && worth(node)];
				return s(
					`rect.context.${toneOf(one.advantage)}`,
					{ x: x(from), y: top, width: Math.max(1, x(at) - x(from)), height: HEIGHT, "fill-opacity": one.advantage ? 0.2 + (0.8 * Math.abs(one.advantage)) / largest : 1 },
					s("title", null, about.filter(Boolean).join(", ")),
				);
			});
			left -= rects.length;
			return rects;
		},
		label: (lines, length) => `${count(lines, "path")} of at most ${count(length, "call")}; the table below lists the calls`,
		caption: () => "Calls from left to right. Green was made likelier, red less likely, fuller colours more so; grey has no advantage. A line below another one is a fork, or another episode.",
	};
}
