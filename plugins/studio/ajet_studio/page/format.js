/** Figures as people read them. */

const NONE = "–";
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const DATE = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

/** A number with at most four significant digits; whole numbers with all of theirs. */
export function number(value) {
	if (value === null || value === undefined) return NONE;
	if (typeof value !== "number") return String(value);
	const size = Math.abs(value);
	if (Number.isInteger(value) && size < 1e12) return WHOLE.format(value);
	if (size >= 1e6 || (size < 1e-3 && size > 0)) return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
	return String(Number(value.toPrecision(size >= 1000 ? 6 : 4)));
}

/** A reward or an accuracy, with three decimals so that columns line up. */
export function score(value) {
	if (value === null || value === undefined) return NONE;
	if (Math.abs(value) >= 1e6) return value.toExponential(2).replace("e+", "e");
	return Math.abs(value) >= 1000 ? number(value) : value.toFixed(3);
}

/** A number that always has its sign. */
export function signed(value) {
	if (value === null || value === undefined) return NONE;
	return (value > 0 ? "+" : value < 0 ? "−" : "±") + score(Math.abs(value));
}

/** Seconds as a duration: 40 ms, 0.4 s, 12 s, 3 min 20 s, 17 min, 2 h 5 min. */
export function duration(seconds) {
	if (seconds === null || seconds === undefined) return NONE;
	if (seconds < 0.1) return `${Math.round(1000 * seconds)} ms`;
	if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
	const whole = Math.round(seconds);
	if (whole < 60) return `${whole} s`;
	if (whole >= 600 && whole < 3600) return `${Math.round(whole / 60)} min`;
	if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
	return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** Bytes in powers of 1,000. */
export function bytes(count) {
	const units = ["B", "kB", "MB", "GB", "TB"];
	let unit = 0;
	let value = count;
	while (value >= 1000 && unit < units.length - 1) {
		value /= 1000;
		unit += 1;
	}
	return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** A time in ISO 8601 as day and minute of this browser's time zone. */
export function moment(iso) {
	const time = new Date(iso);
	return Number.isNaN(time.getTime()) ? NONE : DATE.format(time);
}

/** "1 episode", "2 episodes". */
export function count(many, noun) {
	return `${number(many)} ${noun}${many === 1 ? "" : "s"}`;
}
