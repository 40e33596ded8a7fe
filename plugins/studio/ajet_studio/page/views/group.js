/** A group: the episodes of one task in one step side by side, with what each answered. */

import { get } from "../api.js";
import { address, data, h } from "../dom.js";
import { count, number, signed } from "../format.js";
import { longText } from "../longtext.js";
import { above, episodeAddress, groupAddress, neighbours } from "../places.js";
import { reward } from "../episodes.js";
import { asText } from "../text.js";

const MOST_CARDS = 24;

/** @param {import("../router.js").Page} page */
export async function groupView(page) {
  const run = page.query.get("run") ?? ".";
  const of = { phase: page.query.get("phase") ?? "train", step: Number(page.query.get("step") ?? 0), task: page.query.get("task") ?? "" };
  page.named(of.task, [["Runs", "/"], ...above(run, { phase: of.phase, step: of.step })]);
  const group = await get("group", { run, ...of }, page.signal);
  const from = Math.max(0, Math.min(Number(page.query.get("from") ?? 0), group.rows.length - 1));
  const shown = group.rows.slice(from, from + MOST_CARDS);
  const cards = h("div", { class: "cards", "data-list": true }, shown.map((row) => card(page, run, row)));
  cards.list = { move: (by) => moveIn(cards, by) };
  let known = group.rows.length;
  page.follow({ run }, async () => {
    const now = await get("group", { run, ...of }, page.signal);
    const fresh = now.rows.slice(known, from + MOST_CARDS);
    known = now.rows.length;
    cards.append(...fresh.map((row) => card(page, run, row)));
  });
  const near = (key) => key && groupAddress(run, key);
  return h(
    "div",
    null,
    h(
      "div",
      { class: "title" },
      h("h1", { tabindex: -1 }, "Group of ", data(of.task)),
      h("span", { class: "quiet" }, count(group.rows.length, "episode")),
      h("span", { class: "push" }, neighbours(page, "group", near(group.previous), near(group.next))),
    ),
    await facts(page, run, group),
    group.rows.length > MOST_CARDS && pages(run, of, from, group.rows.length),
    h("h2", null, "Siblings"),
    cards,
  );
}

/** What the task asks, and its reference answer. Where the tasks are not here, the first message of a sibling says it. */
async function facts(page, run, { task, rows }) {
  const metadata = Object.entries(task.metadata ?? {}).filter(([name]) => name !== "answer");
  let query = asText(task.query);
  if (!query) {
    const { messages } = await get("episode", { run, id: rows[0].id }, page.signal);
    query = messages.flat().find((message) => message.role === "user")?.content ?? "";
  }
  return h(
    "div",
    { class: "beside" },
    h("section", null, h("h2", null, "Task"), query ? longText(query, { first: 1200 }) : h("p", { class: "quiet" }, "The text of the task is not in the run folder, and its file is not where the job says.")),
    h(
      "section",
      null,
      h("h2", null, "Reference answer"),
      task.answer === null || task.answer === undefined ? h("p", { class: "quiet" }, "None.") : longText(asText(task.answer), { first: 1200 }),
      metadata.length > 0 && h("details", null, h("summary", null, "Metadata"), longText(asText(Object.fromEntries(metadata)), { className: "code" })),
    ),
  );
}

function pages(run, of, from, total) {
  const links = [];
  for (let start = 0; start < total && links.length < 60; start += MOST_CARDS) {
    const label = `${start + 1}–${Math.min(total, start + MOST_CARDS)}`;
    links.push(h("li", null, h("a", { href: address("/group", { run, ...of, from: start || "" }), "aria-current": start === from ? "page" : null }, label)));
  }
  return h("nav", { class: "tabs", "aria-label": "Members" }, h("ul", null, links));
}

function card(page, run, row) {
  const href = episodeAddress(run, row.id);
  const response = h("div", { class: "quiet" }, "…");
  load(page, run, row, response);
  return h(
    "article",
    { class: "card", "aria-label": `Member ${row.member}` },
    h(
      "header",
      null,
      h("h3", null, h("a", { href }, `Member ${number(row.member)}`)),
      reward(row),
      h("span", { class: "advantage mono", title: "advantage" }, row.advantage === null ? "" : signed(row.advantage)),
    ),
    h("p", { class: "quiet" }, `${count(row.calls, "call")} · ${count(row.tokens, "token")} · ${number(row.trained_tokens)} trained${row.breaks ? ` · ${count(row.breaks, "break")}` : ""}`),
    response,
  );
}

async function load(page, run, row, place) {
  try {
    const episode = await get("episode", { run, id: row.id }, page.signal);
    const text = asText(episode.response) || episode.error;
    place.className = "";
    place.replaceChildren(text ? longText(text, { first: 700 }) : h("p", { class: "quiet" }, "No response."));
  } catch (error) {
    if (!page.signal.aborted) place.replaceChildren(h("p", { class: "bad" }, error.message));
  }
}

function moveIn(cards, by) {
  const links = [...cards.querySelectorAll("h3 a")];
  const at = links.findIndex((link) => link.closest(".card").contains(document.activeElement));
  links[Math.max(0, Math.min(links.length - 1, at < 0 ? 0 : at + by))]?.focus();
}
