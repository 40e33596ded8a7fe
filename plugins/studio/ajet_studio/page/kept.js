/** What this browser remembers between visits: the theme and what the reader has hidden. */

/** The remembered value of a name, or `otherwise`. */
export function recall(name, otherwise) {
	try {
		return JSON.parse(localStorage.getItem(`ajet.${name}`)) ?? otherwise;
	} catch {
		return otherwise; // no storage, or something else's text
	}
}

/** Remember a value that JSON can hold. */
export function remember(name, value) {
	try {
		localStorage.setItem(`ajet.${name}`, JSON.stringify(value));
	} catch {
		// Private windows may refuse: then it lasts as long as the page.
	}
}
