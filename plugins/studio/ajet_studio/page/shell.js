/** What every view has around it: breadcrumbs, the search field, whether the page is live, and messages. */

import { data, fill, h, link, setText } from "./dom.js";

/** Show the places above a page, and its title. */
export function showCrumbs(page) {
	const crumbs = page.crumbs.map(([label, href]) => h("li", h("a", { href }, data(typeof label === "function" ? label() : label))));
	fill(
		document.getElementById("crumbs"),
		h("ol", h("li", h("span.brand", "AgentJet")), page.path !== "/" && !page.alone() && h("li", h("a", { href: "/" }, "Runs")), crumbs, h("li", { "aria-current": "page" }, data(page.title))),
	);
	const runs = page.query.getAll("run");
	const form = document.getElementById("find");
	form.hidden = page.path === "/" || page.path === "/compare" || !runs.length;
	form.dataset.run = runs[0] ?? "";
	document.getElementById("find-text").value = page.path === "/search" ? (page.query.get("q") ?? "") : "";
}

/** Make the search field open the search. `open` gets its address. */
export function startSearch(open) {
	const form = document.getElementById("find");
	form.addEventListener("submit", (event) => {
		event.preventDefault();
		const field = document.getElementById("find-text");
		const q = field.value.trim();
		field.blur();
		if (q) open(link("/search", { run: form.dataset.run, q }).getAttribute("href"));
	});
}

/** Whether the page follows a run that runs: true, false if the connection is lost, null if there is nothing to follow. */
export function showLive(connected) {
	const place = document.getElementById("live");
	place.className = connected ? "on" : "";
	setText(place, connected === null ? "" : connected ? "● live" : "○ connection lost");
}

let silence = 0;

/** Say something in the line for messages; it goes away after a while. */
export function say(text) {
	const place = document.getElementById("status");
	setText(place, text);
	clearTimeout(silence);
	if (text && !text.endsWith("…")) silence = setTimeout(() => setText(place, ""), 6000);
}
