/**
 * Addresses to views. A view is a function that returns the content of the page, or the address to show in its place; when another address is opened, its
 * signal is aborted, which ends its requests, listeners and streams.
 */

import { fill, h } from "./dom.js";
import { follow, get } from "./api.js";
import { named } from "./places.js";
import { showCrumbs, showLive, say } from "./shell.js";

/** @type {Map<string, (page: Page) => Promise<Node>>} */
const views = new Map();
let current = null;

/** What a view gets. */
export class Page {
	constructor(url) {
		/** The path of the view. */
		this.path = url.pathname;
		/** The parameters of the address. */
		this.query = url.searchParams;
		this.ending = new AbortController();
		/** Aborted when the view is left. */
		this.signal = this.ending.signal;
		/** Addresses that keys open: `up`, `next`, `previous`. */
		this.near = {};
		/** What keys do in this view, by key, in addition to those of every view. */
		this.keys = {};
		this.afterwards = [];
		this.crumbs = [];
	}

	/** Whether the run of the address is all that was opened. */
	alone() {
		return this.query.get("run") === ".";
	}

	/** Ask `/api/NAME`, until the view is left. */
	async get(name, parameters) {
		const answer = await get(name, parameters, this.signal);
		if (answer.run_name) named([{ run: parameters.run, name: answer.run_name }]);
		return answer;
	}

	/** The title, and the labels and addresses of the places above it, below all runs. */
	named(title, above = []) {
		this.title = title;
		this.crumbs = above;
		this.near.up = above.at(-1)?.[1] ?? (this.path === "/" || this.alone() ? null : "/");
	}

	/** Say why something failed, unless the view was left. */
	fail(error) {
		if (!this.signal.aborted) say(error.message);
	}

	/** Call a function once the content is on the page. */
	after(action) {
		this.afterwards.push(action);
	}

	/** Put parameters into the address without opening it anew. Empty values remove them. */
	set(parameters) {
		for (const [name, value] of Object.entries(parameters)) {
			this.query.delete(name);
			for (const one of Array.isArray(value) ? value : [value]) {
				if (one !== null && one !== undefined && one !== "") this.query.append(name, one);
			}
		}
		const text = this.query.toString();
		history.replaceState(history.state, "", text ? `${this.path}?${text}` : this.path);
	}

	/** Call a function, at most one at a time, whenever one of some runs has grown after the answers `runs`. */
	follow(runs, action) {
		let busy = false;
		let again = false;
		const act = async () => {
			if (busy) {
				again = true;
				return;
			}
			busy = true;
			do {
				again = false;
				try {
					await action();
				} catch (error) {
					this.fail(error);
				}
			} while (again && !this.signal.aborted);
			busy = false;
		};
		const connected = (is) => showLive(is && runs.every(({ state }) => state !== "live") ? null : is);
		follow(runs, { changed: act, connected }, this.signal);
	}
}

/** Register the view of a path. */
export function route(path, view) {
	views.set(path, view);
}

/** The page that is shown. */
export function shown() {
	return current;
}

/** Open an address of the studio. */
export function open(href) {
	if (!href) return;
	history.replaceState({ ...history.state, scroll: scrollY }, "");
	history.pushState({}, "", href);
	return render(0);
}

/** Show the view again, with what the server says now. */
export function reload() {
	return render(scrollY);
}

/** Show the view of the address, and follow links and the browser's buttons. */
export function startRouter() {
	history.scrollRestoration = "manual";
	addEventListener("popstate", (event) => render(event.state?.scroll ?? 0));
	addEventListener("beforeunload", () => history.replaceState({ ...history.state, scroll: scrollY }, ""));
	document.addEventListener("click", (event) => {
		const anchor = event.target instanceof Element && event.target.closest("a[href]");
		if (!anchor || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
		const url = new URL(anchor.href);
		if (url.origin !== location.origin || !views.has(url.pathname) || anchor.target || anchor.hasAttribute("download")) return;
		if (url.hash) return;
		event.preventDefault();
		open(url.pathname + url.search);
	});
	render(history.state?.scroll ?? 0);
}

async function render(scroll) {
	const main = document.getElementById("main");
	const focused = document.activeElement?.dataset.focus ?? document.activeElement?.getAttribute("href");
	const inMain = main.contains(document.activeElement) || document.activeElement === document.body;
	current?.ending.abort();
	const page = new Page(new URL(location.href));
	const first = current === null;
	current = page;
	main.ariaBusy = true;
	showLive(null);
	const slow = setTimeout(() => say("Loading …"), 300);
	let content;
	try {
		const view = views.get(page.path);
		if (!view) throw new Error("There is no such page.");
		content = await view(page);
	} catch (error) {
		if (page.signal.aborted) return;
		if (!page.title) page.named("Not shown");
		content = problem(error);
	}
	clearTimeout(slow);
	if (page.signal.aborted) return;
	say("");
	if (typeof content === "string") {
		history.replaceState(history.state, "", content);
		return render(scroll);
	}
	document.title = `${page.title} · AgentJet studio`;
	showCrumbs(page);
	fill(main, content);
	const heading = main.querySelector("h1");
	if (heading) heading.tabIndex = -1;
	scrollTo(0, scroll);
	for (const action of page.afterwards) action();
	main.ariaBusy = false;
	if (first || !inMain || main.contains(document.activeElement)) return;
	const again = focused && main.querySelector(`[data-focus="${CSS.escape(focused)}"], [href="${CSS.escape(focused)}"]`);
	(again || heading || main).focus({ preventScroll: true });
}

function problem(error) {
	return h(
		"section.problem",
		{ role: "alert" },
		h("h1", "This cannot be shown"),
		h("p", error.message),
		h("p", h("button", { onclick: reload }, "Try again"), " or go to ", h("a", { href: "/" }, "all runs"), "."),
	);
}
