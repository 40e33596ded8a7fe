/**
 * Text that others wrote, made safe to look at: what would act on the page or be invisible is shown as a sign or a name.
 */

const ACTS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\p{Surrogate}|[\u{e0000}-\u{e007f}]/gu;

/** A text whose control characters, bidi marks, zero-width characters and lone surrogates can be seen. Line breaks and tabs stay. */
export function visible(text) {
	return text.replaceAll("\r\n", "\n").replace(ACTS, sign);
}

/** The same in one line: a line break becomes ⏎, a tab ⇥. */
export function oneLine(text) {
	return visible(text).replaceAll("\n", "⏎").replaceAll("\t", "⇥");
}

/** At most so many characters of a text, never half of a surrogate pair; an ellipsis shows that some are missing. */
export function shortened(text, most) {
	if (text.length <= most) return text;
	const high = text.charCodeAt(most - 1);
	return text.slice(0, high >= 0xd800 && high < 0xdc00 ? most - 1 : most) + "…";
}

/** Any value of JSON as text: a string as it is, everything else indented. */
export function asText(value) {
	if (typeof value === "string") return value;
	return value === null || value === undefined ? "" : JSON.stringify(value, null, 2);
}

function sign(found) {
	const code = found.codePointAt(0);
	if (code < 0x20) return String.fromCharCode(0x2400 + code);
	if (code === 0x7f) return "␡";
	if (code >= 0xd800 && code < 0xe000) return `\\u${code.toString(16)}`;
	return `⟦U+${code.toString(16).toUpperCase().padStart(4, "0")}⟧`;
}
