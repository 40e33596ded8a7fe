/** One run: curves, steps, episodes, counters, settings, logs, checkpoints. */

import { get } from "../api.js";
import { curves } from "../curves.js";
import { data, definitions, h, setText } from "../dom.js";
import { bytes, duration, moment, number, score } from "../format.js";
import { episodeList } from "../episodes.js";
import { runAddress, runName, stepAddress, tabs } from "../places.js";
import { reload } from "../router.js";
import { Rows } from "../rows.js";
import { say } from "../shell.js";
import { Table } from "../table.js";
import { asText } from "../text.js";
import { state, validation } from "./runs.js";

const TABS = { curves: curvesTab, steps: stepsTab, episodes: episodesTab, counters: countersTab, settings: settingsTab, log: logTab, checkpoints: checkpointsTab };
const STEPS = 500;

/** @param {import("../router.js").Page} page */
export async function runView(page) {
  const id = page.query.get("run") ?? ".";
  page.named(runName(id), [["Runs", "/"]]);
  const run = await get("run", { run: id }, page.signal);
  page.named(run.name || runName(id), [["Runs", "/"]]);
  const chosen = page.query.get("tab") in TABS ? page.query.get("tab") : "curves";
  const head = header(run);
  const tab = await TABS[chosen](page, run);
  page.follow(run, async () => {
    const now = await get("run", { run: id }, page.signal);
    head.show(now);
    await tab.refresh?.(now);
    if (now.state !== run.state) reload();
  });
  const list = Object.keys(TABS).map((name) => [name, name[0].toUpperCase() + name.slice(1), runAddress(id, { tab: name === "curves" ? "" : name })]);
  return h("div", null, head.element, tabs("Parts of the run", list, chosen), tab.element);
}

function header(run) {
  const facts = h("div");
  const problems = h("div");
  const show = (now) => {
    facts.replaceChildren(
      definitions([
        ["State", state(now)],
        ["Started", now.started && moment(now.started)],
        ["Time", duration(now.seconds)],
        ["Steps", now.steps_wanted ? `${number(now.steps)} of ${number(now.steps_wanted)}` : number(now.steps)],
        ["Episodes", number(now.episodes)],
        ["Reward", score(now.reward)],
        ["Validation", validation(now)],
        ["Workflow", data(now.workflow)],
        ["Model", data(now.model)],
        ["Backbone", data(now.backbone)],
        ["Algorithm", data(now.algorithm)],
      ]),
    );
    const notes = [now.indexed < 1 && `The journal is being read: ${Math.floor(now.indexed * 100)} % done. What is listed is not complete yet.`, now.note?.tokenizer && `Tokens have no text: ${now.note.tokenizer}`];
    problems.replaceChildren(
      ...(now.problems.length ? [h("div", { class: "problem" }, h("p", null, h("b", null, "Problems of this run folder")), now.problems.slice(0, 20).map((text) => h("p", null, data(text))))] : []),
      ...notes.filter(Boolean).map((text) => h("p", { class: "problem notice" }, text)),
    );
  };
  show(run);
  return { element: h("div", null, h("div", { class: "title" }, h("h1", { tabindex: -1 }, data(run.name))), facts, problems), show };
}

async function curvesTab(page, run) {
  const { metrics } = run;
  if (!Object.keys(metrics).length) {
    return { element: h("p", { class: "quiet" }, "There are no metrics yet. They appear with the first step.") };
  }
  const drawn = curves(page, metrics, (name) => trainFirst(metrics[name].phases).map((phase) => ({ name: phase, run: run.run, phase })));
  await drawn.start();
  return { element: drawn.element, refresh: () => drawn.refresh() };
}

function trainFirst(phases) {
  return [...phases].sort((a, b) => (b === "train") - (a === "train"));
}

async function stepsTab(page, run) {
  const phases = trainFirst(Object.keys(run.phases));
  const phase = page.query.get("phase") ?? phases[0] ?? "train";
  const load = async () => {
    const found = [];
    let total = 1;
    while (found.length < total) {
      const answer = await get("steps", { run: run.run, phase, after: found.at(-1)?.step, limit: STEPS }, page.signal);
      found.push(...answer.rows);
      total = answer.rows.length ? answer.total : 0;
    }
    return found;
  };
  const descending = page.query.get("order") === "descending";
  const arranged = (list, turned) => (turned ? [...list].reverse() : list);
  let all = await load();
  const rows = new Rows(arranged(all, descending));
  const more = ["accuracy", "loss", "grad_norm", "staleness", "tokens_trained"].filter((name) => all.some((row) => row[name] !== undefined));
  const table = new Table({
    label: `Steps of ${phase}`,
    rows,
    signal: page.signal,
    columns: [
      { name: "step", label: "Step", cell: (row) => number(row.step), sortable: true },
      { name: "episodes", label: "Episodes", cell: (row) => number(row.episodes), figure: true },
      { name: "reward", label: "Reward", cell: (row) => score(row.reward), figure: true },
      { name: "failures", label: "Failures", cell: (row) => number(row.failures), figure: true },
      { name: "seconds", label: "Time", cell: (row) => duration(row.seconds), figure: true },
      ...more.map((name) => ({ name: "figure", label: name, cell: (row) => number(row[name]), figure: true, title: run.metrics[name]?.explanation })),
    ],
    href: (row) => stepAddress(run.run, { phase, step: row.step }),
    sort: { name: "step", descending },
    onsort: (name, turned) => {
      table.sortedBy(name, turned);
      page.set({ order: turned ? "descending" : "" });
      rows.set(arranged(all, turned));
    },
    empty: "No step has ended yet.",
  });
  return {
    element: h("div", null, phaseLinks(page, run, phases, phase), table.element),
    refresh: async () => {
      all = await load();
      rows.set(arranged(all, table.sort.descending));
    },
  };
}

function phaseLinks(page, run, phases, phase) {
  if (phases.length < 2) return null;
  const one = (name) => h("a", { href: runAddress(run.run, { tab: "steps", phase: name }), "aria-current": name === phase ? "true" : null, "data-focus": `phase-${name}` }, `${name} (${number(run.phases[name].steps)})`);
  return h("nav", { class: "tabs", "aria-label": "Phases" }, h("ul", null, phases.map((name) => h("li", null, one(name)))));
}

async function episodesTab(page, run) {
  return episodeList(page, run);
}

async function countersTab(page, run) {
  const rowsOf = (now) => Object.entries(now.counters).map(([name, { value, explanation }]) => ({ name, value, explanation }));
  const rows = new Rows(rowsOf(run));
  const table = new Table({
    label: "Counters",
    rows,
    signal: page.signal,
    columns: [
      { name: "name", label: "Counter", cell: (row) => row.name },
      { name: "figure", label: "Count", cell: (row) => number(row.value), figure: true },
      { name: "explanation", label: "What it means", cell: (row) => row.explanation },
    ],
    empty: "No episode has counted anything out of the ordinary.",
  });
  return { element: table.element, refresh: (now) => rows.set(rowsOf(now)) };
}

async function settingsTab(page, run) {
  const all = Object.entries(run.settings).map(([name, value]) => ({ name, value: asText(value) }));
  const rows = new Rows(all);
  const filter = h("input", { type: "search", "aria-label": "Filter settings", placeholder: "Filter settings" });
  filter.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase();
    rows.set(all.filter((row) => `${row.name} ${row.value}`.toLowerCase().includes(wanted)));
  });
  const table = new Table({
    label: "Settings",
    rows,
    signal: page.signal,
    columns: [
      { name: "name", label: "Setting", cell: (row) => row.name },
      { name: "value", label: "Value", cell: (row) => h("bdi", { class: "mono", title: row.value }, row.value.slice(0, 300)) },
    ],
    empty: "No setting matches.",
  });
  return { element: h("div", null, h("div", { class: "bar" }, filter), table.element) };
}

async function checkpointsTab(page, run) {
  const rows = new Rows(run.checkpoints);
  const table = new Table({
    label: "Checkpoints",
    rows,
    signal: page.signal,
    columns: [
      { name: "step", label: "Step", cell: (row) => number(row.step), figure: true },
      { name: "figure", label: "Validation", cell: (row) => score(row.validation_reward), figure: true },
      { name: "figure", label: "Complete", cell: (row) => (row.exists ? "yes" : "no"), figure: true },
      { name: "path", label: "Folder", cell: (row) => h("bdi", { class: "mono" }, row.path) },
    ],
    empty: "There is no checkpoint yet.",
  });
  return { element: table.element, refresh: (now) => rows.set(now.checkpoints) };
}

async function logTab(page, run) {
  const { files } = await get("log", { run: run.run }, page.signal);
  if (!files.length) return { element: h("p", { class: "quiet" }, "This run folder has no log files. `ajet run … 2> run.log` in it writes one.") };
  const name = files.some((file) => file.name === page.query.get("log")) ? page.query.get("log") : files[0].name;
  const links = files.map((file) =>
    h("li", null, h("a", { href: runAddress(run.run, { tab: "log", log: file.name }), "aria-current": file.name === name ? "true" : null, "data-focus": `log-${file.name}` }, data(file.name), ` ${bytes(file.bytes)}`)),
  );
  const lines = h("pre", { class: "log" });
  let start = null;
  const load = async (before) => {
    const answer = await get("log", { run: run.run, name, before }, page.signal);
    start = answer.start;
    earlier.hidden = start === 0;
    return h("span", null, `${answer.lines.join("\n")}\n`);
  };
  let untouched = true;
  const earlier = h("button", { type: "button", onclick: async () => {
    untouched = false;
    const below = document.documentElement.scrollHeight - scrollY;
    try {
      lines.prepend(await load(start));
      scrollTo(0, document.documentElement.scrollHeight - below);
    } catch (error) {
      say(error.message);
    }
  } }, "Earlier lines");
  const grown = h("p", { class: "quiet", role: "status" });
  lines.append(await load(null));
  return {
    element: h("div", null, h("nav", { class: "tabs", "aria-label": "Log files" }, h("ul", null, links)), earlier, lines, grown),
    refresh: async () => {
      if (untouched) lines.replaceChildren(await load(null));
      else setText(grown, "The log has grown. Press r to load it again.");
    },
  };
}
