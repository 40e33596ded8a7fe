/** Addresses of runs, steps, groups and episodes, and the breadcrumbs that lead to them. */

import { address, h } from "./dom.js";
import { oneLine, shortened } from "./text.js";

export const runAddress = (run, more = {}) => address("/run", { run, ...more });
export const stepAddress = (run, { phase, step }) => address("/step", { run, phase, step });
export const groupAddress = (run, { phase, step, task }) => address("/group", { run, phase, step, task });
export const episodeAddress = (run, id, more = {}) => address("/episode", { run, id, ...more });

const names = new Map();

/** Note the names of runs that the server has told. */
export function named(runs) {
	for (const { run, name } of runs) names.set(run, name);
}

/** The name of a run for people; before it is known, the last folder of its id. */
export function runName(run) {
	return names.get(run) ?? (run === "." ? "this run" : run.split("/").at(-1));
}

/** The places above something in a run: runs, run, and for what is inside a step, step and group. The run is named once its name is known. */
export function above(run, { phase, step, task, query } = {}) {
	const crumbs = [[() => runName(run), runAddress(run)]];
	if (step !== undefined) crumbs.push([stepName(phase, step), stepAddress(run, { phase, step })]);
	if (task !== undefined) crumbs.push([shortened(taskTitle({ task, query }), 40), groupAddress(run, { phase, step, task })]);
	return crumbs;
}

/** Whether a program has made the id of a task: a hash, or longer than people write. */
export function isMade(task) {
	return task.length > 30 || /(^|[^0-9a-z])(?=[a-f]*\d)[0-9a-f]{8,}$/.test(task);
}

/** What people call a task: its id if they gave it, else its first words. */
export function taskTitle({ task, query }) {
	return query && isMade(task) ? `“${shortened(oneLine(query), 48)}”` : shortened(oneLine(task), 60);
}

/** "step 12", "version 3" of online training, or "validation at step 12". */
export function stepName(phase, step) {
	if (phase === "online") return `version ${step}`;
	return phase === "train" ? `step ${step}` : `${phase} at step ${step}`;
}

/** Links as tabs of a view: name, label and address of each, and the name of the chosen one. */
export function tabs(label, list, chosen) {
	return h(
		"nav.tabs",
		{ "aria-label": label },
		h("ul", list.map(([name, text, href]) => h("li", h("a", { href, "aria-current": name === chosen && "page" }, text)))),
	);
}

/** Links to the neighbours of a page, which `p` and `n` open, too. */
export function neighbours(page, noun, previous, next) {
	page.near.previous = previous;
	page.near.next = next;
	const one = (href, text) => (href ? h("a", { href, "data-focus": text }, text) : h("span.quiet", text));
	return h("span.neighbours", one(previous, `← previous ${noun}`), " · ", one(next, `next ${noun} →`));
}
