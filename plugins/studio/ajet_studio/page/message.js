/** One message of a transcript. */

import { data, h } from "./dom.js";
import { number } from "./format.js";
import { longText, moreOf } from "./longtext.js";
import { episodeAddress } from "./places.js";
import { toolCall } from "./transcript.js";

const ROLES = { assistant: "Assistant", user: "User", system: "System", tool: "Tool", developer: "Developer" };

/**
 * @param {import("./transcript.js").Item} item
 * @param {object} about `page`, `run`, `episode`; `shows`, whether reasoning, tools and metadata are shown; `tools`, the names
 *   of tools by the ids of their calls
 */
export function messageElement(item, about) {
	const { message, lane } = item;
	if (!message) {
		return h("article", { class: `message s${lane % 6}`, "aria-label": `Call ${item.call.number}` }, callHead(item, about), h("p.quiet.body", "The same answer to the same messages as before."));
	}
	const answer = item.index === item.call.answer;
	const role = answer ? "Answer" : (ROLES[message.role] ?? message.role);
	const more = (what) => moreOf(about.page, about.run, about.episode, `${lane}.${item.index}${what}`);
	const name = message.tool_call_id && about.tools.get(message.tool_call_id);
	return h(
		"article",
		{ class: `message ${answer ? "answer" : "other"} s${lane % 6}`, "aria-label": `${role}, message ${item.index + 1}` },
		item.first && callHead(item, about),
		h("header", h("b", data(role)), message.role === "assistant" && !answer && h("span", "in the prompt, not sampled by this call"), name && data(name, "mono"), message.parent !== item.index - 1 && h("span", branch(message.parent))),
		h(
			"div.body",
			message.reasoning.text && about.shows.reasoning && h("div.reasoning", h("small", "Reasoning"), longText(message.reasoning, { load: more(".reasoning") })),
			message.content.text && longText(message.content, { load: more(""), className: message.role === "tool" ? "code" : null }),
			(message.images ?? []).map((ref) => h("img.picture", { src: `/api/image?${new URLSearchParams({ run: about.run, ref })}`, alt: `image ${ref.slice(7, 15)}`, loading: "lazy" })),
			about.shows.tools && message.tool_calls.slice(0, 50).map((call) => tool(toolCall(call))),
			!about.shows.tools && message.tool_calls.length > 0 && h("p.quiet", `asks for ${message.tool_calls.map((call) => toolCall(call).name).join(", ")}`),
			about.shows.metadata && metadata(item),
		),
	);
}

function callHead({ call, lane }, { run, episode }) {
	const known = episode.lanes[lane];
	const tokens = call.prompt_tokens === null ? null : `${number(call.prompt_tokens)} → ${number(call.answer_tokens)} tokens`;
	const facts = [tokens, call.weight_version === null ? null : `version ${call.weight_version}`, call.finish_reason];
	return h(
		"header.call",
		h("b", `Call ${call.number}`),
		data(call.agent),
		known.trained ? null : h("span", "frozen: ", data(call.target)),
		facts.filter(Boolean).map((text) => h("span", data(text))),
		call.timeline !== null && h("a", { href: episodeAddress(run, episode.id, { tab: "tokens", timeline: call.timeline, call: call.number }) }, "tokens"),
		call.cause && h("span.bad", data(call.cause)),
	);
}

function branch(parent) {
	return parent < 0 ? "begins a conversation anew" : `continues message ${parent + 1}`;
}

function tool({ name, text }) {
	return h("div.tool", h("small", "Tool call"), " ", data(name, "mono"), longText(text, { className: "code", first: 2000 }));
}

function metadata({ message, call, index }) {
	const { agent, target, temperature } = call;
	return h("pre.metadata.code", JSON.stringify({ message: index + 1, agent, target, temperature, tool_call_id: message.tool_call_id ?? undefined, ...message.extra }, null, 1));
}
