/** The server's answers. Every function throws `Problem` with one line for the reader. */

import { address } from "./dom.js";

/** Why there is no answer, in words. */
export class Problem extends Error {
	/** `status` of the answer; 0 if there was none. */
	constructor(status, message) {
		super(message);
		this.status = status;
	}
}

/** Ask `/api/NAME`. */
export function get(name, parameters, signal) {
	return answered(address(`/api/${name}`, parameters), { signal });
}

/** Send JSON to `/api/NAME`. */
export function post(name, body) {
	return answered(`/api/${name}`, {
		method: "POST",
		headers: { "content-type": "application/json" },
		body: JSON.stringify(body),
	});
}

/** Ask `/api/NAME` for a file, and give it to the reader; `otherwise` is its name if the answer has none. */
export async function download(name, parameters, otherwise) {
	const response = await sent(address(`/api/${name}`, parameters), {});
	if (!response.ok) throw new Problem(response.status, (await response.json()).error);
	const named = /filename="?([^";]+)/.exec(response.headers.get("content-disposition") ?? "")?.[1];
	const url = URL.createObjectURL(await response.blob());
	const anchor = document.createElement("a");
	anchor.href = url;
	anchor.download = named ?? otherwise;
	anchor.click();
	setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/**
 * Call `changed` whenever one of some runs has grown after its answer, and `connected` with whether the server is there. A browser has
 * six connections to a host: all runs share one, and a page that is out of sight gives it back.
 */
export function follow(runs, { changed, connected }, signal) {
	const url = address("/api/live", { run: runs.map(({ run }) => run), seen: runs.map(({ seen }) => seen) });
	let source = null;
	const turn = () => {
		source?.close();
		if (document.hidden || signal.aborted) return;
		source = new EventSource(url);
		source.addEventListener("open", () => connected(true));
		source.addEventListener("error", () => connected(false));
		source.addEventListener("changed", changed);
	};
	document.addEventListener("visibilitychange", turn, { signal });
	signal.addEventListener("abort", turn);
	turn();
}

async function sent(url, options) {
	let response;
	try {
		response = await fetch(url, options);
	} catch (error) {
		if (error.name === "AbortError") throw error;
		throw new Problem(0, "The studio does not answer. Check that `ajet studio` still runs, then try again.");
	}
	if (response.status === 401) {
		throw new Problem(401, "This page has no token, or an old one. Open the address that `ajet studio` has printed.");
	}
	return response;
}

async function answered(url, options) {
	const response = await sent(url, options);
	let body;
	try {
		body = await response.json();
	} catch (error) {
		if (error.name === "AbortError") throw error;
		throw new Problem(response.status, `The studio answered ${response.status} without JSON.`);
	}
	if (!response.ok) throw new Problem(response.status, body.error ?? `The studio answered ${response.status}.`);
	return body;
}
