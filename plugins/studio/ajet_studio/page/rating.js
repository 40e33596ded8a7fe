/** What the reader thinks of an episode: a rating, a comment, a corrected response. */

import { post } from "./api.js";
import { data, h, setText } from "./dom.js";
import { moment } from "./format.js";
import { longText } from "./longtext.js";
import { say } from "./shell.js";

const RATINGS = [[1, "good", "+"], [0, "neither", ""], [-1, "bad", "-"]];
const MOST = 5;

/** @param {Page} page */
export function rating(page, run, episode) {
	const given = h("ul.ratings");
	const state = h("p.quiet", { role: "status" });
	const show = (ratings) => given.replaceChildren(...ratings.slice(-MOST).reverse().map(one));
	const send = async (body) => {
		setText(state, "Saving …");
		try {
			const answer = await post("feedback", { run, id: episode.id, ...body });
			show(answer.ratings);
			setText(state, "Saved.");
			return true;
		} catch (error) {
			setText(state, `Not saved: ${error.message}`);
			return false;
		}
	};
	const choices = RATINGS.map(([value, name, key]) =>
		h("label", h("input", { type: "radio", name: "rating", value, title: key ? `key ${key}` : null }), name),
	);
	const comment = h("textarea", { rows: 2, name: "comment" });
	const correction = h("textarea", { rows: 3, name: "correction" });
	const correct = h("details", h("summary", "Correct the answer"), h("label", "What the answer should have been", correction));
	correct.addEventListener("toggle", () => {
		if (correct.open && !correction.value && !episode.response.cut) correction.value = episode.response.text;
	});
	const form = h(
		"form.rate",
		{ "aria-label": "Your rating" },
		h("fieldset", h("legend.quiet", "This episode is"), choices),
		h("label", "Comment", comment),
		correct,
		h("button", { type: "submit", class: "main" }, "Save"),
		state,
		given,
	);
	form.addEventListener("submit", async (event) => {
		event.preventDefault();
		const chosen = form.querySelector("input[type=radio]:checked");
		const corrected = correct.open && correction.value !== episode.response.text ? correction.value : "";
		if (!chosen && !comment.value.trim() && !corrected) {
			setText(state, "Choose a rating, or write a comment or a correction.");
			return;
		}
		if (await send({ rating: chosen ? Number(chosen.value) : null, comment: comment.value, correction: corrected })) {
			form.reset();
			correct.open = false;
		}
	});
	const quick = (value) => async () => {
		form.querySelector(`input[value="${value}"]`).checked = true;
		if (await send({ rating: value, comment: "", correction: "" })) say(`Rated ${value > 0 ? "good" : "bad"}.`);
	};
	page.keys["+"] = quick(1);
	page.keys["-"] = quick(-1);
	page.keys.e = () => comment.focus();
	show(episode.ratings);
	return form;
}

function one({ rating, comment, correction, time }) {
	const name = RATINGS.find(([value]) => value === rating)?.[1] ?? rating;
	return h(
		"li",
		h("p", rating !== null && h("b", { class: rating > 0 ? "good" : rating < 0 ? "bad" : null }, name), " ", h("small", moment(time))),
		comment && h("p", data(comment)),
		correction && h("details", h("summary", "Correction"), longText(correction)),
	);
}
