/** One episode: what is known of it, and its transcript, tokens or token tree. */

import { download, get } from "../api.js";
import { chat } from "../chat.js";
import { address, data, definitions, h, setText } from "../dom.js";
import { reward } from "../episodes.js";
import { count, duration, number, score, signed } from "../format.js";
import { lanes } from "../lanes.js";
import { longText } from "../longtext.js";
import { above, episodeAddress, groupAddress, neighbours, runName, stepName, tabs } from "../places.js";
import { rating } from "../rating.js";
import { asText } from "../text.js";
import { tokenTab } from "../tokens.js";
import { treeTab } from "../tree.js";

const FEW = 8;

/** @param {import("../router.js").Page} page */
export async function episodeView(page) {
  const run = page.query.get("run") ?? ".";
  const id = page.query.get("id") ?? "";
  page.named("Episode", [["Runs", "/"], ...above(run)]);
  const episode = await get("episode", { run, id }, page.signal);
  page.named(`member ${episode.member}`, [["Runs", "/"], ...above(run, place(episode))]);
  const chosen = ["tokens", "tree"].includes(page.query.get("tab")) ? page.query.get("tab") : "chat";
  const near = (other) => other && episodeAddress(run, other, { tab: chosen === "chat" ? "" : chosen });
  const head = h(
    "div",
    null,
    h("div", { class: "title" }, h("h1", { tabindex: -1 }, "Episode ", data(id)), h("span", { class: "push" }, neighbours(page, "sibling", near(episode.previous), near(episode.next)))),
    facts(run, episode),
    tabs("Parts of the episode", ["chat", "tokens", "tree"].map((name) => [name, { chat: "Chat", tokens: "Tokens", tree: "Token tree" }[name], episodeAddress(run, id, { tab: name === "chat" ? "" : name })]), chosen),
  );
  if (chosen === "tokens") return h("div", null, head, await tokenTab(page, run, episode));
  if (chosen === "tree") return h("div", null, head, await treeTab(page, run, episode));
  return h("div", null, head, chatTab(page, run, episode));
}

/** The group of an episode. */
function place({ phase, step, task }) {
  return { phase, step, task: task.id };
}

function facts(run, episode) {
  const advantages = Object.entries(episode.advantages ?? {}).filter(([name]) => name);
  const whole = episode.advantages?.[""];
  return definitions([
    ["Task", h("a", { href: groupAddress(run, place(episode)) }, data(episode.task.id))],
    ["Step", stepName(episode.phase, episode.step)],
    ["Member", number(episode.member)],
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
  const none = h("p", { class: "quiet" }, "None.");
  const answered = asText(episode.response);
  return h(
    "div",
    { class: "episode" },
    h(
      "div",
      null,
      episode.failure && h("div", { class: "problem" }, h("p", null, h("b", null, "Failed: "), data(episode.failure)), episode.error && longText(episode.error, { className: "code", first: 1500 })),
      h(
        "div",
        { class: "beside" },
        h("section", null, h("h2", null, "Response"), answered ? longText(answered, { first: 800 }) : none),
        h("section", null, h("h2", null, "Reference answer"), asText(episode.reference) ? longText(asText(episode.reference), { first: 800 }) : none.cloneNode(true)),
      ),
      breaks(episode, transcript.jump),
      h("h2", null, "Lanes"),
      lanes(run, episode, transcript.jump),
      h("h2", null, "Transcript"),
      transcript.element,
    ),
    aside(page, run, episode),
  );
}

function breaks({ breaks }, jump) {
  if (!breaks.length) return null;
  const one = (found) =>
    h(
      "li",
      { class: "problem notice" },
      h("p", null, h("b", null, `${found.what}`), " at ", h("button", { type: "button", onclick: () => jump(found.call) }, `call ${found.call}`)),
      h("p", null, found.remedy),
      h("div", { class: "beside" }, h("div", null, h("small", null, "recorded"), longText(found.recorded, { className: "code", first: 400 })), h("div", null, h("small", null, "sent now"), longText(found.sent, { className: "code", first: 400 }))),
    );
  return h("section", null, h("h2", null, count(breaks.length, "break")), h("ul", null, breaks.slice(0, 10).map(one)), breaks.length > 10 && h("p", { class: "quiet" }, `and ${breaks.length - 10} more`));
}

function aside(page, run, episode) {
  const counters = Object.entries(episode.counters).map(([name, { value, explanation }]) => [data(name), number(value), explanation]);
  const others = (values) => Object.entries(values ?? {}).map(([name, value]) => [data(name), score(value)]);
  return h(
    "aside",
    { "aria-label": "About the episode" },
    h("h2", null, "Verdict"),
    h("p", { class: "verdict" }, h("b", null, reward(episode)), episode.is_success !== null && (episode.is_success ? "succeeded" : "did not succeed")),
    definitions([...others(episode.rewards), ...others(episode.metrics)].slice(0, 40)),
    episode.feedback ? [h("h2", null, "The judge's reason"), longText(asText(episode.feedback), { first: 1200 })] : null,
    h("h2", null, "Your rating"),
    rating(page, run, episode),
    counters.length > 0 && [h("h2", null, "Counters"), definitions(counters.slice(0, 40))],
    Object.keys(episode.prompts ?? {}).length > 0 && [h("h2", null, "Prompts"), Object.entries(episode.prompts).slice(0, 10).map(([name, text]) => h("details", null, h("summary", null, data(name)), longText(text)))],
    episode.same_task.length > 0 && [h("h2", null, "The same task elsewhere"), sameTask(run, episode)],
    h("h2", null, "Recording"),
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
  return h("p", null, h("button", { type: "button", onclick: load }, "Download"), " the calls, for a test that replays them. ", state);
}

function sameTask(run, episode) {
  const one = (other) =>
    h(
      "li",
      null,
      h("a", { href: episodeAddress(other.run, other.id) }, stepName(other.phase, other.step)),
      other.run !== run && [" of ", data(runName(other.run))],
      ` reward ${score(other.reward)} · `,
      h("a", { href: address("/versus", [["run", run], ["id", episode.id], ["run", other.run], ["id", other.id]]), "aria-label": `Compare with ${stepName(other.phase, other.step)}` }, "compare"),
    );
  const all = episode.same_task;
  const few = all.length <= FEW ? all : Array.from({ length: FEW }, (_, i) => all[Math.round((i * (all.length - 1)) / (FEW - 1))]);
  const list = (rows) => h("ul", null, rows.map(one));
  return [list(few), few.length < all.length && h("details", null, h("summary", null, `All ${all.length}`), list(all))];
}
