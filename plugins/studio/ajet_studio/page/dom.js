/** Elements of the page. Every text goes through `visible` and into text nodes: nothing is ever parsed as HTML. */

import { shortened, visible } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const TOLD = new Set(["title", "aria-label"]);
const LONGEST = 500;

/**
 * An HTML element.
 * @param {string} tag with classes: "p.quiet"
 * @param {...any} rest attributes first, if there are any, then children. An attribute that is a function, named `onclick`
 *   and so on, is a listener. Children are nodes, texts, numbers, or lists of those. Null, undefined and false are left out.
 * @returns {HTMLElement}
 */
export function h(tag, ...rest) {
	const [name, ...classes] = tag.split(".");
	return filled(document.createElement(name), classes, rest);
}

/**
 * An SVG element; as `h`.
 * @returns {SVGElement}
 */
export function s(tag, ...rest) {
	const [name, ...classes] = tag.split(".");
	return filled(document.createElementNS(SVG, name), classes, rest);
}

/** A text of the run, isolated from the direction of the text around it. */
export function data(text, className = null) {
	return h("bdi", { class: className }, text);
}

/** Replace all children of an element. */
export function fill(element, ...children) {
	const part = document.createDocumentFragment();
	append(part, children);
	element.replaceChildren(part);
	return element;
}

/** Set the text of an element if it is another one, so that selections and focus stay. */
export function setText(element, text) {
	const shown = visible(String(text));
	if (element.textContent !== shown) element.textContent = shown;
}

/** A link inside the studio. `parameters` is what `address` takes. */
export function link(path, parameters, label, properties = {}) {
	return h("a", { href: address(path, parameters), ...properties }, label);
}

/** The address of a view: a path and its parameters without those that are empty; lists become repeated parameters. */
export function address(path, parameters = {}) {
	const query = new URLSearchParams();
	for (const [name, value] of Array.isArray(parameters) ? parameters : Object.entries(parameters)) {
		for (const one of Array.isArray(value) ? value : [value]) {
			if (one !== null && one !== undefined && one !== "") query.append(name, String(one));
		}
	}
	const text = query.toString();
	return text ? `${path}?${text}` : path;
}

/** A list of names with their values. Rows are `[name, value, explanation]`; rows without a value are left out. */
export function definitions(rows) {
	return h(
		"dl.facts",
		rows
			.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
			.map(([name, value, explanation]) =>
				h("div", h("dt", name, explanation && h("small", explanation)), h("dd", value)),
			),
	);
}

/** Call `changed` when an element gets another size, and, with `scrolls`, when the window is scrolled, until the signal. */
export function watch(element, changed, signal, scrolls = false) {
	const observer = new ResizeObserver(changed);
	observer.observe(element);
	signal.addEventListener("abort", () => observer.disconnect());
	for (const event of scrolls ? ["scroll", "resize"] : []) addEventListener(event, changed, { signal, passive: true });
}

/** Where an element is in the window. */
export const box = (element) => element.getBoundingClientRect();

/** Pixels at the top of the window that the header covers. */
export const covered = () => Math.max(0, box(document.getElementById("top")).bottom);

/** At most so many of a list, evenly, the first and the last always. */
export function thinned(list, most) {
	if (list.length <= most) return list;
	return Array.from({ length: most }, (_, i) => list[Math.round((i * (list.length - 1)) / (most - 1))]);
}

/** Focus the link so many places after the one that is focused; the first one if none is. */
export function moveAmong(links, by) {
	const at = [...links].indexOf(document.activeElement);
	links[Math.max(0, Math.min(links.length - 1, at < 0 ? 0 : at + by))]?.focus();
}

function filled(element, classes, rest) {
	const [first] = rest;
	const attributes = first && typeof first === "object" && !(first instanceof Node) && !Array.isArray(first);
	if (classes.length) element.classList.add(...classes);
	for (const [name, value] of Object.entries(attributes ? first : {})) {
		if (value === null || value === undefined || value === false) continue;
		if (typeof value === "function") element.addEventListener(name.slice(2), value);
		else element.setAttribute(name, value === true ? "" : TOLD.has(name) ? visible(shortened(String(value), LONGEST)) : value);
	}
	if (element instanceof HTMLButtonElement && !element.hasAttribute("type")) element.type = "button";
	append(element, attributes ? rest.slice(1) : rest);
	return element;
}

function append(parent, children) {
	for (const child of children) {
		if (child === null || child === undefined || child === false) continue;
		if (Array.isArray(child)) append(parent, child);
		else parent.append(child instanceof Node ? child : document.createTextNode(visible(String(child))));
	}
}
