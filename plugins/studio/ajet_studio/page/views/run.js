/** One run: curves, steps, episodes, counters, settings, logs, checkpoints. */

import { figure, order, text } from "../columns.js";
import { MOST_SERIES } from "../chart.js";
import { curves } from "../curves.js";
import { data, definitions, fill, h, setText } from "../dom.js";
import { bytes, duration, moment, number, score } from "../format.js";
import { episodeList } from "../episodes.js";
import { episodeAddress, named, runAddress, runName, stepAddress, tabs } from "../places.js";
import { reload } from "../router.js";
import { rejudgedTab } from "../rejudged.js";
import { Rows } from "../rows.js";
import { say } from "../shell.js";
import { Table } from "../table.js";
import { asText, oneLine } from "../text.js";
import { last, state, validation } from "./runs.js";

const TABS = { store: storeTab, curves: curvesTab, steps: stepsTab, episodes: episodesTab, counters: countersTab, settings: settingsTab, log: logTab, checkpoints: checkpointsTab, rejudged: rejudgedTab };
const STEPS = 500;
const FEW = 20;
const BRIEF = 30;
/** Of a source, which is no run folder. */
const OF_SOURCE = ["store", "curves", "steps", "episodes", "settings"];

/** @param {Page} page */
export async function runView(page) {
	const id = page.query.get("run") ?? ".";
	page.named(runName(id));
	const run = await page.get("run", { run: id });
	named([run]);
	page.named(run.name);
	const names = run.source ? OF_SOURCE : Object.keys(TABS).filter((name) => name !== "store" && (name !== "rejudged" || run.rejudged));
	const chosen = names.includes(page.query.get("tab")) ? page.query.get("tab") : names[0];
	const head = header(run);
	const tab = await TABS[chosen](page, run);
	page.follow([run], async () => {
		const now = await page.get("run", { run: id });
		head.show(now);
		await tab.refresh?.(now);
		if (now.state !== run.state) reload();
	});
	const label = (name) => (name === "steps" && run.source ? "Versions" : name[0].toUpperCase() + name.slice(1));
	const list = names.map((name) => [name, label(name), runAddress(id, { tab: name === names[0] ? "" : name })]);
	return h("div", head.element, tabs("Parts of the run", list, chosen), tab.element);
}

function header(run) {
	const facts = h("div");
	const verdict = h("div");
	const problems = h("div");
	const show = (now) => {
		facts.replaceChildren(
			definitions([
				["State", state(now)],
				[now.source ? "First reply" : "Started", now.started && moment(now.started)],
				[now.source ? "Until the last one" : "Time", now.seconds !== null && duration(now.seconds)],
				[now.source ? "Newest rated version" : "Steps", now.steps_wanted ? `${number(now.steps)} of ${number(now.steps_wanted)}` : number(now.steps)],
				[now.source ? "Conversations" : "Episodes", number(now.episodes)],
				["Reward", score(now.reward)],
				["Validation", !now.source && validation(now)],
				["Learning rate", now.learning_rate !== null && number(now.learning_rate)],
				["Workflow", now.workflow && last(now.workflow)],
				["Model", now.model && last(now.model)],
				["Algorithm", now.algorithm && data(now.algorithm)],
				["Backbone", data(now.backbone)],
				["Tags", now.tags.length > 0 && now.tags.map((tag) => h("span.tag", oneLine(tag)))],
			]),
		);
		fill(verdict, now.verdict && verdictOf(now));
		const notes = [!now.problems.length && !now.verdict?.alarms.length && now.problem, now.indexed < 1 && `The journal is being read: ${Math.floor(now.indexed * 100)} % done. What is listed is not complete yet.`, now.note?.tokenizer && `Tokens have no text: ${now.note.tokenizer}`];
		problems.replaceChildren(
			...(now.problems.length ? [h("div.problem", h("p", h("b", "Problems of this run folder")), now.problems.slice(0, 20).map((one) => h("p", data(one))))] : []),
			...notes.filter(Boolean).map((one) => h("p.problem.notice", one)),
		);
	};
	show(run);
	return { element: h("div", h("div.title", h("h1", data(run.name)), !run.name.endsWith(run.folder) && data(run.folder, "quiet mono")), verdict, facts, problems), show };
}

/** A text with its commands, which stand in backticks, as code. */
const withCommands = (text) => text.split("`").map((part, place) => (place % 2 ? h("code", data(part)) : data(part)));

const OUTCOMES = { learned: "good", worse: "bad" };

/** What training has changed, the alarms, and what to try next. */
function verdictOf({ run, state: now, verdict, rejudged }) {
	return h(
		"section.outcome",
		{ "aria-label": "Verdict" },
		h("p", h("strong", { class: OUTCOMES[verdict.outcome] }, verdict.outcome, now === "live" && " so far"), " ", data(verdict.told)),
		verdict.alarms.map((one) => h("p.quiet", h("strong.bad", "alarm "), data(one))),
		verdict.advice.map((one) => h("p.quiet", h("strong", "next "), withCommands(one))),
		rejudged && h("p.quiet", h("strong", "judged again "), "by a later judge: ", h("a", { href: runAddress(run, { tab: "rejudged" }) }, "its rewards, and what they would have taught")),
	);
}

/** What the source of the episodes says of itself. */
async function storeTab(page, run) {
	const place = h("div");
	const whole = new Set();
	let shown = "";
	const load = async () => {
		const { tables } = await page.get("tables", { run: run.run });
		if (shown === (shown = JSON.stringify(tables))) return;
		fill(place, tables.filter(({ rows }) => rows.length).map(({ title, rows }) => [h("h2", title), plainTable(title, rows, whole)]));
	};
	await load();
	return { element: place, refresh: load };
}

/** A table whose cells may have several lines; with few rows, unless its title is in `whole`, where a button puts it. */
function plainTable(title, rows, whole) {
	const names = Object.keys(rows[0]);
	const cell = (name, value) => {
		if (typeof value === "number") return h("td.figure", /reward|validation/.test(name) ? score(value) : number(value));
		if (/^(\/|[A-Z]:\\)/.test(value ?? "")) return h("td.brief", last(value));
		const text = /^\d{4}-\d\d-\d\dT/.test(value ?? "") ? moment(value) : value;
		return h("td", { class: text?.length < BRIEF ? "brief" : null }, text && data(text));
	};
	const row = (one) => h("tr", names.map((name) => cell(name, one[name])));
	const few = rows.length > FEW && !whole.has(title);
	const body = h("tbody", (few ? rows.slice(0, FEW) : rows).map(row));
	const rest = h("button", { onclick: () => {
		whole.add(title);
		fill(body, rows.map(row));
		rest.remove();
	} }, `Show all ${number(rows.length)}`);
	const heads = names.map((name) => h("th", { scope: "col", class: typeof rows[0][name] === "number" ? "figure" : null }, name[0].toUpperCase() + name.slice(1)));
	return h("div.table", { role: "region", "aria-label": title, tabindex: 0 }, h("table.plain", h("thead", h("tr", heads)), body), few && rest);
}

async function curvesTab(page, run) {
	const { metrics } = run;
	if (!Object.keys(metrics).length) {
		const text = run.state === "live" ? "There are no metrics yet. They appear with the first step." : "This run ended before its first step, so there are no metrics.";
		return { element: h("p.quiet", text) };
	}
	const phases = trainFirst(new Set(Object.values(metrics).flatMap((metric) => Object.keys(metric.last)))).slice(0, MOST_SERIES);
	const drawn = curves(page, metrics, phases, (name) => phases.map((phase) => (phase in metrics[name].last ? { run: run.run, phase } : null)), run.source ? "version" : "step");
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
			const answer = await page.get("steps", { run: run.run, phase, after: found.at(-1)?.step, limit: STEPS });
			found.push(...answer.rows);
			total = answer.rows.length ? answer.total : 0;
		}
		return found;
	};
	const sort = { name: page.query.get("sort") ?? "step", descending: page.query.get("order") === "descending" };
	const rows = new Rows();
	const arrange = (all) => rows.set(all.sort(order(sort.name, sort.descending)));
	const all = await load();
	const more = ["accuracy", "loss", "grad_norm", "staleness", "tokens_trained"].filter((name) => all.some((row) => row[name] !== undefined));
	const table = new Table(page, {
		label: `Steps of ${phase}`,
		rows,
		columns: [
			text("step", run.source ? "Version" : "Step"),
			figure("episodes", "Episodes"),
			figure("reward", "Reward", score),
			figure("failures", "Failures"),
			figure("seconds", "Time", duration),
			...more.map((name) => figure(name, name, number, { title: run.metrics[name]?.explanation })),
		],
		href: (row) => stepAddress(run.run, { phase, step: row.step }),
		sort,
		onsort: (name, descending) => {
			Object.assign(sort, { name, descending });
			table.sortedBy(name, descending);
			page.set({ sort: name, order: descending ? "descending" : "" });
			arrange([...rows.rows]);
		},
		empty: "No step has ended yet.",
	});
	arrange(all);
	return { element: h("div", phaseLinks(page, run, phases, phase), table.element), refresh: async () => arrange(await load()) };
}

function phaseLinks(page, run, phases, phase) {
	if (phases.length < 2) return null;
	const list = phases.map((name) => [name, `${name} (${number(run.phases[name].steps)})`, runAddress(run.run, { tab: "steps", phase: name })]);
	return tabs("Phases", list, phase);
}

async function episodesTab(page, run) {
	return episodeList(page, run);
}

function plain(page, label, columns, rowsOf, run, empty, more = {}) {
	const rows = new Rows(rowsOf(run));
	return { rows, element: new Table(page, { label, rows, columns, empty, ...more }).element, refresh: (now) => rows.set(rowsOf(now)) };
}

async function countersTab(page, run) {
	const rowsOf = (now) => Object.entries(now.counters).map(([name, counter]) => ({ name, ...counter }));
	const columns = [text("name", "Counter"), figure("value", "Count"), text("explanation", "What it means"), text("episode", "Last in")];
	const href = (row) => episodeAddress(run.run, row.episode);
	return plain(page, "Counters", columns, rowsOf, run, "No episode has counted anything out of the ordinary.", { href, main: 3 });
}

async function settingsTab(page, run) {
	const all = Object.entries(run.settings).map(([name, value]) => ({ name, value: asText(value) || "–" }));
	const columns = [text("name", "Setting"), { name: "value", label: "Value", cell: (row) => h("bdi.mono", { title: row.value }, oneLine(row.value.slice(0, 300))) }];
	const { rows, element } = plain(page, "Settings", columns, () => all, run, "No setting matches.");
	const filter = h("input", { type: "search", "aria-label": "Filter settings", placeholder: "Filter settings" });
	filter.addEventListener("input", () => {
		const wanted = filter.value.toLowerCase();
		rows.set(all.filter((row) => `${row.name} ${row.value}`.toLowerCase().includes(wanted)));
	});
	return { element: h("div", h("div.bar", filter), element) };
}

async function checkpointsTab(page, run) {
	const complete = figure("exists", "Complete", (is) => (is ? "yes" : "no"));
	const columns = [figure("step", "Step"), figure("validation_reward", "Validation", score), complete, { name: "path", label: "Folder", cell: (row) => h("bdi.mono", row.path) }];
	return plain(page, "Checkpoints", columns, (now) => now.checkpoints, run, run.state === "live" ? "There is no checkpoint yet." : "There is no checkpoint.");
}

async function logTab(page, run) {
	const { files } = await page.get("log", { run: run.run });
	if (!files.length) return { element: h("p.quiet", "This run folder has no log files.") };
	const name = files.some((file) => file.name === page.query.get("log")) ? page.query.get("log") : files[0].name;
	const links = files.map((file) => [file.name, `${file.name} ${bytes(file.bytes)}`, runAddress(run.run, { tab: "log", log: file.name })]);
	const lines = h("pre.log");
	let start = null;
	const load = async (before) => {
		const answer = await page.get("log", { run: run.run, name, before });
		start = answer.start;
		earlier.hidden = start === 0;
		return h("span", `${answer.lines.join("\n")}\n`);
	};
	let untouched = true;
	const earlier = h("button", { onclick: async () => {
		untouched = false;
		const below = document.documentElement.scrollHeight - scrollY;
		try {
			lines.prepend(await load(start));
			scrollTo(0, document.documentElement.scrollHeight - below);
		} catch (error) {
			say(error.message);
		}
	} }, "Earlier lines");
	const grown = h("p.quiet", { role: "status" });
	lines.append(await load(null));
	return {
		element: h("div", tabs("Log files", links, name), earlier, lines, grown),
		refresh: async () => {
			if (untouched) lines.replaceChildren(await load(null));
			else setText(grown, "The log has grown. Press r to load it again.");
		},
	};
}
