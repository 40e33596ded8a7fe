/** One episode: what is known of it, and its transcript, tokens or token tree. */

import { download } from "../api.js";
import { chat } from "../chat.js";
import { address, data, definitions, h, setText, thinned } from "../dom.js";
import { reward } from "../episodes.js";
import { count, duration, number, score, signed } from "../format.js";
import { lanes } from "../lanes.js";
import { longText, moreOf } from "../longtext.js";
import { above, episodeAddress, groupAddress, neighbours, runName, stepName, tabs, taskTitle } from "../places.js";
import { rating } from "../rating.js";
import { tokenTab } from "../tokens.js";
import { treeTab } from "../tree.js";

const FEW = 8;

/** @param {Page} page */
export async function episodeView(page) {
	const run = page.query.get("run") ?? ".";
	const id = page.query.get("id") ?? "";
	page.named("Episode", above(run));
	const episode = await page.get("episode", { run, id });
	page.named(`member ${episode.member}`, above(run, place(episode)));
	const chosen = ["tokens", "tree"].includes(page.query.get("tab")) ? page.query.get("tab") : "chat";
	const near = (other) => other && episodeAddress(run, other, { tab: chosen === "chat" ? "" : chosen });
	const head = h(
		"div",
		h("div.title", h("h1", data(taskTitle(place(episode))), `, member ${number(episode.member)}`), h("span.push", neighbours(page, "sibling", near(episode.previous), near(episode.next)))),
		facts(run, episode),
		tabs("Parts of the episode", ["chat", "tokens", "tree"].map((name) => [name, { chat: "Chat", tokens: "Tokens", tree: "Token tree" }[name], episodeAddress(run, id, { tab: name === "chat" ? "" : name })]), chosen),
	);
	if (chosen === "tokens") return h("div", head, await tokenTab(page, run, episode));
	if (chosen === "tree") return h("div", head, await treeTab(page, run, episode));
	return h("div", head, chatTab(page, run, episode));
}

/** The group of an episode. */
function place({ phase, step, task, query }) {
	return { phase, step, task: task.id, query };
}

function facts(run, episode) {
	const advantages = Object.entries(episode.advantages ?? {}).filter(([name]) => name);
	const whole = episode.advantages?.[""];
	return definitions([
		["Task", h("a", { href: groupAddress(run, place(episode)) }, data(episode.task.id))],
		["Step", stepName(episode.phase, episode.step)],
		["Id", data(episode.id, "mono")],
		["Attempt", episode.attempt > 0 && number(episode.attempt + 1)],
		["Reward", reward(episode)],
		["Advantage", typeof whole === "number" ? signed(whole) : advantages.map(([name, value]) => `${name} ${signed(value)}`).join(", ")],
		["Tokens", `${number(episode.tokens)}, ${number(episode.trained_tokens)} trained`],
		["Calls", number(episode.calls.length)],
		["Breaks", episode.breaks.length > 0 && number(episode.breaks.length)],
		["Time", duration(episode.seconds)],
	]);
}

function chatTab(page, run, episode) {
	const transcript = chat(page, run, episode);
	if (page.query.has("call")) page.after(() => transcript.jump(Number(page.query.get("call"))));
	const part = (name, options) => longText(episode[name], { load: moreOf(page, run, episode, name), ...options });
	const beside = (title, name) => h("section", h("h2", title), episode[name].text ? part(name, { first: 800 }) : h("p.quiet", "None."));
	return h(
		"div.episode",
		h(
			"div",
			episode.failure && h("div.problem", h("p", h("b", "Failed: "), data(episode.failure)), episode.error.text && part("error", { className: "code", first: 1500 })),
			h(
				"div.beside",
				beside("Response", "response"),
				beside("Reference answer", "reference"),
			),
			breaks(episode, transcript.jump),
			h("h2", "Lanes"),
			lanes(run, episode, transcript.jump),
			h("h2", "Transcript"),
			transcript.element,
		),
		aside(page, run, episode, part),
	);
}

function breaks({ breaks }, jump) {
	if (!breaks.length) return null;
	const one = (found) =>
		h(
			"li.problem.notice",
			h("p", h("b", `${found.what}`), " at ", h("button", { onclick: () => jump(found.call) }, `call ${found.call}`)),
			h("p", found.remedy),
			h("div.beside", h("div", h("small", "recorded"), longText(found.recorded, { className: "code", first: 400 })), h("div", h("small", "sent now"), longText(found.sent, { className: "code", first: 400 }))),
		);
	return h("section", h("h2", count(breaks.length, "break")), h("ul", breaks.slice(0, 10).map(one)), breaks.length > 10 && h("p.quiet", `and ${breaks.length - 10} more`));
}

function aside(page, run, episode, part) {
	const counters = Object.entries(episode.counters).map(([name, { value, explanation }]) => [data(name), number(value), explanation]);
	const told = (title, name) => episode[name].text !== "" && [h("h2", title), part(name)];
	const others = (values) => Object.entries(values ?? {}).map(([name, value]) => [data(name), score(value)]);
	return h(
		"aside",
		{ "aria-label": "About the episode" },
		h("h2", "Verdict"),
		h("p.verdict", h("b", reward(episode)), episode.is_success !== null && (episode.is_success ? "succeeded" : "did not succeed")),
		definitions([...others(episode.rewards), ...others(episode.metrics)].slice(0, 40)),
		told("The judge's reason", "feedback"),
		told("Printed", "printed"),
		h("h2", "Your rating"),
		rating(page, run, episode),
		counters.length > 0 && [h("h2", "Counters"), definitions(counters.slice(0, 40))],
		Object.keys(episode.prompts ?? {}).length > 0 && [h("h2", "Prompts"), Object.entries(episode.prompts).slice(0, 10).map(([name, text]) => h("details", h("summary", data(name)), longText(text)))],
		episode.same_task.length > 0 && [h("h2", "The same task elsewhere"), sameTask(run, episode)],
		h("h2", "Recording"),
		recording(run, episode.id),
	);
}

/** A button that downloads the episode's calls, which `ajet run --replay` answers without a model. */
function recording(run, id) {
	const state = h("span", { role: "status" });
	const load = async () => {
		try {
			await download("recording", { run, id }, "recording.jsonl");
			setText(state, "");
		} catch (error) {
			setText(state, error.message);
		}
	};
	return h("p", h("button", { onclick: load }, "Download"), " the calls, for a test that replays them. ", state);
}

function sameTask(run, episode) {
	const named = (other) => `${stepName(other.phase, other.step)}, member ${number(other.member)}`;
	const one = (other) =>
		h(
			"li",
			h("a", { href: episodeAddress(other.run, other.id) }, named(other)),
			other.run !== run && [" of ", data(runName(other.run))],
			` reward ${score(other.reward)} · `,
			h("a", { href: address("/versus", [["run", run], ["id", episode.id], ["run", other.run], ["id", other.id]]), "aria-label": `Compare with ${named(other)}` }, "compare"),
		);
	const all = episode.same_task;
	const few = thinned(all, FEW);
	const list = (rows) => h("ul", rows.map(one));
	return [list(few), few.length < all.length && h("details", h("summary", `All ${all.length}`), list(all))];
}
