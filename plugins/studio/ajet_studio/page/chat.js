/** The transcript of an episode, with what the reader wants to see of it. */

import { h } from "./dom.js";
import { recall, remember } from "./kept.js";
import { messageElement } from "./message.js";
import { toolCall, toolNames, transcript } from "./transcript.js";
import { Windowed } from "./windowed.js";

const LINE = 21;
const WIDTH = 85;
const LONGEST = 4000;
const SHOWS = { reasoning: true, tools: true, metadata: false };
const NAMES = { reasoning: "Reasoning", tools: "Tool calls", metadata: "Metadata" };
const KEYS = { reasoning: "h", metadata: "m" };

/**
 * @param {Page} page
 * @returns {{element: HTMLElement, jump: (call: number) => void}}
 */
export function chat(page, run, episode) {
	const shows = { ...SHOWS, ...recall("shows", {}) };
	const about = { page, run, episode, shows, tools: toolNames(episode) };
	const all = transcript(episode);
	let items = all;
	let list;
	const place = h("div");
	const build = () => {
		list = new Windowed(page, {
			label: "Transcript",
			count: items.length,
			estimate: (index) => estimate(items[index], shows),
			render: (index) => messageElement(items[index], about),
		});
		place.replaceChildren(items.length ? list.element : h("p.quiet", "This episode made no LLM call."));
	};
	build();

	const toggles = Object.keys(SHOWS).map((name) => {
		const button = h("button", { "aria-pressed": String(shows[name]) }, NAMES[name]);
		const turn = () => {
			shows[name] = !shows[name];
			remember("shows", shows);
			button.setAttribute("aria-pressed", String(shows[name]));
			list.redraw();
		};
		button.addEventListener("click", turn);
		if (KEYS[name]) page.keys[KEYS[name]] = turn;
		return button;
	});
	const choose = h(
		"select",
		{ onchange: (event) => {
			items = event.target.value === "" ? all : all.filter((item) => item.lane === Number(event.target.value));
			build();
		} },
		h("option", { value: "" }, "all lanes"),
		episode.lanes.map((lane, index) => h("option", { value: index }, `${index + 1}: ${lane.agent}`)),
	);
	const controls = h("div.bar", { role: "group", "aria-label": "Show" }, toggles, episode.lanes.length > 1 && h("label", "Lane", choose));
	const jump = (call) => {
		const find = () => items.findIndex((item) => item.call.number === call);
		if (find() < 0) {
			items = all;
			choose.value = "";
			build();
		}
		list.jump(Math.max(0, find()));
	};
	return { element: h("div", controls, place), jump };
}

/** Pixels that a message will take, roughly. */
function estimate({ message, first }, shows) {
	let height = 34 + (first ? 30 : 0);
	if (!message) return height + LINE;
	height += lines(message.content.text);
	if (shows.reasoning) height += lines(message.reasoning.text);
	if (shows.tools) for (const call of message.tool_calls) height += 40 + lines(toolCall(call).text);
	return height;
}

function lines(text) {
	if (!text) return 0;
	const shown = text.slice(0, LONGEST);
	return LINE * shown.split("\n").reduce((sum, line) => sum + Math.max(1, Math.ceil(line.length / WIDTH)), 0);
}
