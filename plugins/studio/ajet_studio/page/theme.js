/** Light, dark, or as the system is. */

import { setText } from "./dom.js";
import { recall, remember } from "./kept.js";

const THEMES = ["automatic", "light", "dark"];
const SIGNS = { automatic: "◐", light: "☀", dark: "☾" };

/** Apply the remembered theme and make the button change it. */
export function startTheme() {
	document.getElementById("theme").addEventListener("click", nextTheme);
	apply(recall("theme", THEMES[0]));
}

/** Change to the next theme. */
export function nextTheme() {
	const next = THEMES[(THEMES.indexOf(recall("theme", THEMES[0])) + 1) % THEMES.length];
	remember("theme", next);
	apply(next);
}

function apply(theme) {
	document.documentElement.dataset.theme = THEMES.includes(theme) ? theme : THEMES[0];
	const shown = document.documentElement.dataset.theme;
	const button = document.getElementById("theme");
	setText(button, SIGNS[shown]);
	button.ariaLabel = button.title = `Theme: ${shown}`;
}
