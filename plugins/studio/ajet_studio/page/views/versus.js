/** Two episodes side by side, usually of one task before and after training. */

import { data, h } from "../dom.js";
import { reward } from "../episodes.js";
import { duration, number } from "../format.js";
import { longText, moreOf } from "../longtext.js";
import { messageElement } from "../message.js";
import { above, episodeAddress, runName, stepName, taskTitle } from "../places.js";
import { toolNames, transcript } from "../transcript.js";
import { Windowed } from "../windowed.js";

const SHOWS = { reasoning: true, tools: true, metadata: false };
const ESTIMATE = 120;

/** @param {Page} page */
export async function versusView(page) {
	const runs = page.query.getAll("run");
	const ids = page.query.getAll("id");
	page.named("Two episodes", above(runs[0] ?? "."));
	if (ids.length < 2) throw new Error("This comparison needs two episodes. Choose “compare” on the page of an episode.");
	const pair = await Promise.all([0, 1].map((side) => page.get("episode", { run: runs[side] ?? runs[0], id: ids[side] })));
	const sides = pair.map((episode, side) => ({ run: runs[side] ?? runs[0], episode, items: transcript(episode), about: { page, run: runs[side] ?? runs[0], episode, shows: SHOWS, tools: toolNames(episode) } }));
	page.named(pair.map(named).join(" and "), above(runs[0]));
	const titles = pair.map(({ task, query }) => taskTitle({ task: task.id, query }));
	const many = Math.max(...sides.map(({ items }) => items.length));
	const parted = firstDifference(sides);
	const list = new Windowed(page, {
		label: "Transcripts",
		count: many,
		estimate: () => ESTIMATE,
		render: (index) => row(sides, index, parted),
	});
	const jump = h("button", { onclick: () => list.jump(parted) }, "Show the first difference");
	return h(
		"div",
		h("h1", "Two episodes of ", data(titles[0])),
		pair[0].task.id !== pair[1].task.id && h("p.problem.notice", "The second one is of another task: ", data(titles[1])),
		h("div.beside", sides.map((side) => head(page, side))),
		pair[0].reference.text && h("section", h("h2", "Reference answer"), longText(pair[0].reference, { first: 600, load: moreOf(page, sides[0].run, pair[0], "reference") })),
		h("h2", "Transcripts"),
		h("p.bar", parted < many ? [`They are the same up to message ${parted}.`, jump] : "They are the same."),
		list.element,
	);
}

function named({ phase, step, member }) {
	return `${stepName(phase, step)}, member ${number(member)}`;
}

function head(page, { run, episode }) {
	const answered = episode.response.text ? "response" : "error";
	const part = (name) => longText(episode[name], { first: 600, load: moreOf(page, run, episode, name) });
	return h(
		"section.card",
		h("header", h("h2", h("a", { href: episodeAddress(run, episode.id) }, named(episode))), reward(episode)),
		h("p.quiet", data(runName(run)), ` · ${number(episode.calls.length)} calls · ${number(episode.tokens)} tokens · ${duration(episode.seconds)}`),
		episode.feedback.text && h("details", h("summary", "The judge's reason"), part("feedback")),
		episode[answered].text ? part(answered) : h("p.quiet", "No response."),
	);
}

function row(sides, index, parted) {
	const cell = ({ items, about }) => h("div", items[index] ? messageElement(items[index], about) : h("p.quiet", "–"));
	return h("article", { class: index < parted ? "beside same" : "beside", "aria-label": `Message ${index + 1}` }, sides.map(cell));
}

/** The place of the first message that differs; the length of both if there is none. */
function firstDifference([left, right]) {
	const said = ({ message, lane }) => JSON.stringify([lane, message?.role, message?.content, message?.reasoning, message?.tool_calls]);
	let index = 0;
	while (index < left.items.length && index < right.items.length && said(left.items[index]) === said(right.items[index])) index += 1;
	return index;
}
