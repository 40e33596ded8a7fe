/** Two episodes side by side, usually of one task before and after training. */

import { get } from "../api.js";
import { data, h } from "../dom.js";
import { reward } from "../episodes.js";
import { duration, number } from "../format.js";
import { longText } from "../longtext.js";
import { messageElement } from "../message.js";
import { above, episodeAddress, runName, stepName } from "../places.js";
import { toolCall, transcript } from "../transcript.js";
import { asText } from "../text.js";
import { Windowed } from "../windowed.js";

const SHOWS = { reasoning: true, tools: true, metadata: false };
const ESTIMATE = 120;

/** @param {import("../router.js").Page} page */
export async function versusView(page) {
  const runs = page.query.getAll("run");
  const ids = page.query.getAll("id");
  page.named("Two episodes", [["Runs", "/"], ...above(runs[0] ?? ".")]);
  if (ids.length < 2) throw new Error("This comparison needs two episodes. Choose “compare” on the page of an episode.");
  const pair = await Promise.all([0, 1].map((side) => get("episode", { run: runs[side] ?? runs[0], id: ids[side] }, page.signal)));
  const sides = pair.map((episode, side) => ({ run: runs[side] ?? runs[0], episode, items: transcript(episode), about: about(runs[side] ?? runs[0], episode) }));
  page.named(sides.map(({ episode }) => stepName(episode.phase, episode.step)).join(" and "), [["Runs", "/"], ...above(runs[0])]);
  const many = Math.max(...sides.map(({ items }) => items.length));
  const parted = firstDifference(sides);
  const list = new Windowed({
    label: "Transcripts",
    count: many,
    estimate: () => ESTIMATE,
    render: (index) => row(sides, index, parted),
    signal: page.signal,
  });
  const jump = h("button", { type: "button", onclick: () => list.jump(parted) }, "Show the first difference");
  return h(
    "div",
    null,
    h("h1", { tabindex: -1 }, "Two episodes of ", data(pair[0].task.id)),
    pair[0].task.id !== pair[1].task.id && h("p", { class: "problem notice" }, "The second one is of another task: ", data(pair[1].task.id)),
    h("div", { class: "beside" }, sides.map(head)),
    asText(pair[0].reference) && h("section", null, h("h2", null, "Reference answer"), longText(asText(pair[0].reference), { first: 600 })),
    h("h2", null, "Transcripts"),
    h("p", { class: "bar" }, parted < many ? [`They are the same up to message ${parted}.`, jump] : "They are the same."),
    list.element,
  );
}

function about(run, episode) {
  const tools = new Map(episode.messages.flat().flatMap((message) => message.tool_calls.map(toolCall).map(({ id, name }) => [id, name])));
  return { run, episode, shows: SHOWS, tools };
}

function head({ run, episode }) {
  const answered = asText(episode.response) || episode.error;
  return h(
    "section",
    { class: "card" },
    h("header", null, h("h2", null, h("a", { href: episodeAddress(run, episode.id) }, stepName(episode.phase, episode.step))), reward(episode)),
    h("p", { class: "quiet" }, data(runName(run)), ` · ${number(episode.calls.length)} calls · ${number(episode.tokens)} tokens · ${duration(episode.seconds)}`),
    episode.feedback && h("details", null, h("summary", null, "The judge's reason"), longText(asText(episode.feedback))),
    answered ? longText(answered, { first: 600 }) : h("p", { class: "quiet" }, "No response."),
  );
}

function row(sides, index, parted) {
  const cell = ({ items, about }) => h("div", null, items[index] ? messageElement(items[index], about) : h("p", { class: "quiet" }, "–"));
  return h("article", { class: index < parted ? "beside same" : "beside", "aria-label": `Message ${index + 1}` }, sides.map(cell));
}

/** The place of the first message that differs; the length of both if there is none. */
function firstDifference([left, right]) {
  const said = ({ message, lane }) => JSON.stringify([lane, message?.role, message?.content, message?.reasoning, message?.tool_calls]);
  let index = 0;
  while (index < left.items.length && index < right.items.length && said(left.items[index]) === said(right.items[index])) index += 1;
  return index;
}
