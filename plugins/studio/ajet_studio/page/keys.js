/** Everything by keyboard. The dialog behind `?` lists what the keys do, from the same table. */

import { fill, h } from "./dom.js";
import { recall, remember } from "./kept.js";
import { open, reload, shown } from "./router.js";
import { nextTheme } from "./theme.js";

/** @type {[string[], string, (event: KeyboardEvent) => void][]} */
const KEYS = [
	[["j", "ArrowDown"], "next row or message", () => move(1)],
	[["k", "ArrowUp"], "row or message before", () => move(-1)],
	[["Enter"], "open the row", null],
	[["u", "Backspace"], "up: from an episode to its group, from a run to all runs", () => open(shown()?.near.up)],
	[["n"], "next sibling, group or step", () => open(shown()?.near.next)],
	[["p"], "sibling, group or step before", () => open(shown()?.near.previous)],
	[["1", "2", "3", "4", "5", "6", "7", "8"], "the tab with this number", (event) => tab(Number(event.key))],
	[["/"], "search", find],
	[["r"], "load again", () => reload()],
	[["t"], "light, dark or automatic theme", () => nextTheme()],
	[["?"], "these keys", () => help()],
];
/** Keys that single views have; they are in the dialog, too. */
const OF_VIEWS = [
	["x", "runs: select the run for a comparison"],
	["c", "runs: compare the selected runs"],
	["+", "episode: rate it good"],
	["-", "episode: rate it bad"],
	["e", "episode: write a comment"],
	["h", "chat: hide or show reasoning"],
	["m", "chat: hide or show metadata"],
	["← → ↑ ↓", "tokens and curves: move to another token or step"],
	["+ -", "curves: zoom in around the step, and out again"],
];
const NAMES = { ArrowDown: "↓", ArrowUp: "↑" };

/** Listen to keys. */
export function startKeys() {
	document.addEventListener("keydown", pressed);
	document.getElementById("help").addEventListener("click", help);
	const dialog = document.getElementById("keys");
	dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
}

function pressed(event) {
	if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
	const target = event.target;
	if (target.closest?.("dialog[open]")) return;
	const writing = target.matches?.("input:not([type=checkbox]):not([type=radio]), textarea, select");
	if (writing) {
		if (event.key === "Escape") target.blur();
		return;
	}
	if (!recall("keys", true) && event.key.length === 1 && event.key !== "?") return;
	const own = shown()?.keys[event.key];
	const common = KEYS.find(([keys]) => keys.includes(event.key))?.[2];
	if (event.key.startsWith("Arrow") && !target.closest?.("[data-list]")) return;
	if (!own && !common) return;
	event.preventDefault();
	(own ?? common)(event);
}

function move(by) {
	const list = document.activeElement?.closest("[data-list]") ?? document.querySelector("main [data-list]");
	list?.list.move(by);
}

function tab(number) {
	const links = document.querySelectorAll("main nav.tabs a");
	if (links[number - 1]) open(links[number - 1].getAttribute("href"));
}

function find() {
	const field = document.querySelector("main input[type=search]") ?? document.getElementById("find-text");
	const form = document.getElementById("find");
	(form.hidden ? field : document.getElementById("find-text")).focus();
}

function help() {
	const dialog = document.getElementById("keys");
	const row = (keys, text) => h("tr", h("th", { scope: "row" }, keys.map((key) => [h("kbd", NAMES[key] ?? key), " "])), h("td", text));
	const tabs = ["1", "…", "8"];
	fill(
		dialog,
		h("h2", { id: "keys-title" }, "Keys"),
		h("table", h("tbody", KEYS.map(([keys, text]) => row(keys.length > 3 ? tabs : keys, text)), OF_VIEWS.map(([key, text]) => row([key], text)))),
		h(
			"p",
			h("label", h("input", { type: "checkbox", checked: recall("keys", true), onchange: (event) => remember("keys", event.target.checked) }), " Keys of one letter are on"),
		),
		h("form", { method: "dialog" }, h("button", { onclick: () => dialog.close() }, "Close")),
	);
	dialog.showModal();
}
