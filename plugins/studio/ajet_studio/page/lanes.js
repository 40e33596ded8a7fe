/** Agents as lanes, with their calls in the timelines that they became. */

import { data, h } from "./dom.js";
import { count, number, signed } from "./format.js";
import { episodeAddress } from "./places.js";

const MOST_CALLS = 40;
const MOST_LINES = 12;
const MOST_LANES = 12;

/**
 * @param {string} run
 * @param {any} episode
 * @param {(call: number) => void} jump shows a call in the transcript
 */
export function lanes(run, episode, jump) {
	if (!episode.lanes.length) return h("p.quiet", "No agent made a call.");
	const rows = episode.lanes.slice(0, MOST_LANES).map((lane, index) => row(run, episode, lane, index, jump));
	return h("div.lanes", rows, episode.lanes.length > MOST_LANES && h("p.quiet", `and ${episode.lanes.length - MOST_LANES} more lanes`));
}

function row(run, episode, lane, index, jump) {
	const own = episode.calls.filter((call) => call.lane === index);
	const left = own.filter((call) => call.timeline === null).map((call) => call.number);
	const lines = lane.timelines.slice(0, MOST_LINES).map((line) => timeline(run, episode, line, jump));
	const what = lane.trained ? "" : ` (${lane.target}, frozen)`;
	return h(
		"div",
		{ class: `lane s${index % 6}` },
		h("span.who", { title: `${lane.agent} → ${lane.target}` }, data(lane.agent), h("span.quiet", data(what))),
		h(
			"ol",
			{ "aria-label": `Timelines of ${lane.agent}` },
			lines,
			lane.timelines.length > MOST_LINES && h("li.quiet", `and ${lane.timelines.length - MOST_LINES} more timelines`),
			left.length > 0 && h("li.frozen", calls(left, jump)),
		),
	);
}

function timeline(run, episode, line, jump) {
	const about = [count(line.tokens, "token"), `${number(line.trained_tokens)} trained`, line.advantage === null ? null : `advantage ${signed(line.advantage)}`].filter(Boolean).join(", ");
	return h(
		"li.timeline",
		h("a", { href: episodeAddress(run, episode.id, { tab: "tokens", timeline: line.index }), title: about, "aria-label": `T${line.index + 1}: ${about}` }, `T${line.index + 1}`),
		calls(line.calls, jump),
		h("small", about),
	);
}

function calls(numbers, jump) {
	const button = (call) => h("button", { onclick: () => jump(call), "aria-label": `Call ${call}`, title: `Show call ${call}` }, call);
	return [numbers.slice(0, MOST_CALLS).map(button), numbers.length > MOST_CALLS && h("small", `+${numbers.length - MOST_CALLS}`)];
}
