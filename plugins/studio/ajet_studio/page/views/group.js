/** A group: the episodes of one task in one step side by side, with what each answered. */

import { address, data, h, moveAmong } from "../dom.js";
import { count, number, score, signed } from "../format.js";
import { longText, moreOf } from "../longtext.js";
import { groupTree } from "../grouptree.js";
import { above, episodeAddress, groupAddress, isMade, neighbours, tabs, taskTitle } from "../places.js";
import { reward, tone } from "../episodes.js";
import { sparkbars } from "../spark.js";
import { asText, shortened } from "../text.js";

const MOST_CARDS = 24;

/** @param {Page} page */
export async function groupView(page) {
	const run = page.query.get("run") ?? ".";
	const of = { phase: page.query.get("phase") ?? "train", step: Number(page.query.get("step") ?? 0), task: page.query.get("task") ?? "" };
	page.named(of.task, above(run, { phase: of.phase, step: of.step }));
	const group = await page.get("group", { run, ...of });
	const title = taskTitle({ task: of.task, query: group.rows[0].query });
	page.named(title, above(run, { phase: of.phase, step: of.step }));
	const tones = group.rows.map(tone);
	const judged = group.rows.filter((row) => !row.failure && row.reward !== null).map((row) => row.reward);
	const [low, high] = [Math.min(0, ...judged), Math.max(...judged)];
	const bars = sparkbars(group.rows.map((row) => (row.failure ? null : row.reward)), tones, low, high);
	const failedFirst = (rows) => rows.sort((a, b) => Boolean(b.failure) - Boolean(a.failure));
	failedFirst(group.rows);
	const from = Math.max(0, Math.min(Number(page.query.get("from") ?? 0), group.rows.length - 1));
	const tab = page.query.get("tab") ?? "episodes";
	const most = tab === "tree" ? 0 : MOST_CARDS;
	const shown = group.rows.slice(from, from + most);
	const cards = h("div.cards", { "data-list": true }, shown.map((row) => card(page, run, row)));
	cards.list = { move: (by) => moveAmong(cards.querySelectorAll("h3 a"), by) };
	const known = new Set(group.rows.map(({ id }) => id));
	page.follow([{ run, seen: group.seen }], async () => {
		const now = await page.get("group", { run, ...of });
		const fresh = now.rows.filter(({ id }) => !known.has(id));
		for (const { id } of fresh) known.add(id);
		cards.append(...fresh.slice(0, Math.max(0, from + most - known.size + fresh.length)).map((row) => card(page, run, row)));
	});
	const near = (key) => key && groupAddress(run, key);
	const list = [["episodes", "Episodes", groupAddress(run, of)], ["tree", "Tree", address("/group", { run, ...of, tab: "tree" })]];
	return h(
		"div",
		h(
			"div.title",
			h("h1", "Group of ", data(title)),
			bars,
			h("span.quiet", [count(group.rows.length, "episode"), judged.length > 0 && told(judged), judged.length < group.rows.length && `${number(group.rows.length - judged.length)} failed`].filter(Boolean).join(", ")),
			h("span.push", neighbours(page, "group", near(group.previous), near(group.next))),
		),
		await facts(page, run, group),
		tabs("Group", list, tab),
		tab === "tree" ? await groupTree(page, run, of) : [group.rows.length > MOST_CARDS && pages(run, of, from, group.rows.length), h("h2", "Siblings"), cards],
	);
}

/** The rewards of a group in words. */
function told(judged) {
	const [least, most] = [Math.min(...judged), Math.max(...judged)];
	if (least < most) return `rewards ${score(least)} to ${score(most)}`;
	return judged.length > 1 ? `all rewards ${score(most)}, so that they teach nothing` : `reward ${score(most)}`;
}

/** What the task asks, and its reference answer. Where the tasks are not here, the first message of a sibling says it. */
async function facts(page, run, { task, rows }) {
	const metadata = Object.entries(task.metadata ?? {}).filter(([name]) => name !== "answer");
	let query = asText(task.query);
	if (!query) {
		const { messages } = await page.get("episode", { run, id: rows[0].id });
		query = messages.flat().find((message) => message.role === "user")?.content.text ?? "";
	}
	return h(
		"div.beside",
		h("section", h("h2", "Task ", isMade(task.id) && data(shortened(task.id, 60), "quiet mono")), query ? longText(query, { first: 1200 }) : h("p.quiet", "The text of the task is not in the run folder, and its file is not where the job says.")),
		h(
			"section",
			h("h2", "Reference answer"),
			task.answer === null || task.answer === undefined ? h("p.quiet", "None.") : longText(task.answer, { first: 1200 }),
			metadata.length > 0 && h("details", h("summary", "Metadata"), longText(Object.fromEntries(metadata), { className: "code" })),
		),
	);
}

function pages(run, of, from, total) {
	const links = [];
	for (let start = 0; start < total && links.length < 60; start += MOST_CARDS) {
		const label = `${start + 1}–${Math.min(total, start + MOST_CARDS)}`;
		links.push(h("li", h("a", { href: address("/group", { run, ...of, from: start || "" }), "aria-current": start === from ? "page" : null }, label)));
	}
	return h("nav.tabs", { "aria-label": "Members" }, h("ul", links));
}

function card(page, run, row) {
	const href = episodeAddress(run, row.id);
	const response = h("div.quiet", "…");
	load(page, run, row, response);
	return h(
		"article.card",
		{ "aria-label": `Member ${row.member}` },
		h(
			"header",
			h("h3", h("a", { href }, `Member ${number(row.member)}`)),
			reward(row),
			row.advantage !== null && h("span.advantage.quiet", `advantage ${signed(row.advantage)}`),
		),
		h("p.quiet", `${count(row.calls, "call")} · ${count(row.tokens, "token")} · ${number(row.trained_tokens)} trained${row.breaks ? ` · ${count(row.breaks, "break")}` : ""}`),
		response,
	);
}

async function load(page, run, row, place) {
	try {
		const episode = await page.get("episode", { run, id: row.id });
		const name = episode.response.text ? "response" : "error";
		place.className = "";
		place.replaceChildren(episode[name].text ? longText(episode[name], { first: 700, load: moreOf(page, run, row, name) }) : h("p.quiet", "No response."));
	} catch (error) {
		if (!page.signal.aborted) place.replaceChildren(h("p.bad", error.message));
	}
}
