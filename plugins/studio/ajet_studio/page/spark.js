/** Curves and bars as small as a word. */

import { s } from "./dom.js";

const HEIGHT = 16;

/** Values as a line from the first to the last. */
export function sparkline(values, width = 64) {
	if (values.length < 2) return null;
	const [low, high] = [Math.min(...values), Math.max(...values)];
	const at = (value, i) => `${((width - 2) * i) / (values.length - 1) + 1} ${(HEIGHT - 2 - ((HEIGHT - 4) * (value - low)) / (high - low || 1)).toFixed(1)}`;
	return picture(width, s("path", { d: `M${values.map(at).join("L")}`, class: "curve" }));
}

/** Rewards between `low` and `high` as bars; each has a tone, good, bad or none. Null is a failed episode, a dashed line. */
export function sparkbars(rewards, tones, low, high) {
	const step = Math.max(2, Math.min(8, 160 / rewards.length));
	const bar = (reward, i) => {
		const top = reward === null ? HEIGHT - 2 : Math.max(1.5, ((HEIGHT - 2) * (reward - low)) / (high - low || 1));
		return `M${((i + 0.5) * step).toFixed(1)} ${HEIGHT - 1}v${-top.toFixed(1)}`;
	};
	const toned = (i) => (rewards[i] === null ? "failed" : tones[i] || "none");
	const of = (tone) => rewards.map((reward, i) => (toned(i) === tone ? bar(reward, i) : "")).join("");
	const path = (tone) => of(tone) && s("path", { d: of(tone), class: tone, "stroke-width": tone === "failed" ? 1.5 : step * 0.7 });
	return picture(step * rewards.length, ["good", "bad", "none", "failed"].map(path));
}

function picture(width, content) {
	return s("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, class: "spark", "aria-hidden": true, focusable: "false" }, content);
}
