/** A text of any length: its beginning, and a button for more of it. */

import { h } from "./dom.js";
import { number } from "./format.js";
import { say } from "./shell.js";
import { asText } from "./text.js";

const FIRST = 4000;
const MORE = 100_000;

/**
 * @param {any} value a text or anything of JSON; with `load`, a part of an episode as the server sends it
 * @param {object} [options] `load(from, count)` for more, if the server shortened it; `className`; `first`: characters that show first
 */
export function longText(value, { load = null, className = null, first = FIRST } = {}) {
	const text = load ? value.text : asText(value);
	let total = (load && value.cut) || text.length;
	const body = h("pre", { class: className }, text.slice(0, whole(text, first)));
	if (text.length <= first && total <= text.length) return body;
	let shown = whole(text, first);
	const button = h("button");
	const label = () => {
		const left = total - shown;
		button.textContent = left > MORE ? `Show ${number(MORE)} of ${number(left)} more characters` : `Show ${number(left)} more characters`;
		button.hidden = left <= 0;
	};
	button.addEventListener("click", async () => {
		button.disabled = true;
		try {
			let more = text.slice(shown, shown + MORE);
			if (!more && load) more = await load(shown, MORE);
			more = more.slice(0, whole(more, more.length));
			if (!more) total = shown;
			body.append(h("span", more));
			shown += more.length;
		} catch (error) {
			say(error.message);
		}
		button.disabled = false;
		label();
	});
	label();
	return h("div", body, button);
}

/** Loads more of a part of an episode, for `longText`. */
export function moreOf(page, run, { id }, part) {
	return async (from, count) => (await page.get("text", { run, id, part, from, count })).text;
}

/** A length near `most` that does not cut a surrogate pair. */
function whole(text, most) {
	const last = text.charCodeAt(most - 1);
	return most < text.length && last >= 0xd800 && last < 0xdc00 ? most - 1 : most;
}
