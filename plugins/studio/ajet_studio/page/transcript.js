/** The messages of an episode in the order in which its calls first saw them. */

/**
 * @typedef {object} Item
 * @property {number} lane
 * @property {number} index of the message in its lane
 * @property {any} message
 * @property {any} call the call that first saw or wrote it
 * @property {boolean} first whether it is the first message of its call
 */

/**
 * @param {any} episode
 * @returns {Item[]}
 */
export function transcript({ calls, messages }) {
	const items = [];
	const done = messages.map(() => 0);
	const starts = messages.map(() => []);
	for (const call of calls) {
		if (call.messages_from !== null && call.messages_from >= (starts[call.lane].at(-1) ?? 0)) starts[call.lane].push(call.messages_from);
	}
	for (const call of calls) {
		const { lane } = call;
		if (call.messages_from === null || call.messages_from < done[lane]) {
			items.push({ lane, index: call.answer, message: null, call, first: true });
			continue;
		}
		const end = starts[lane].find((start) => start > call.messages_from) ?? messages[lane].length;
		for (let index = done[lane]; index < end; index += 1) items.push({ lane, index, message: messages[lane][index], call, first: index === done[lane] });
		done[lane] = end;
	}
	return items;
}

/** What a tool call says: the name of the tool and its arguments, indented where they are JSON. */
export function toolCall(call) {
	const of = call.function ?? call;
	const given = of.arguments ?? of.input;
	let text = typeof given === "string" ? given : JSON.stringify(given, null, 2);
	try {
		text = JSON.stringify(JSON.parse(text), null, 2);
	} catch {
		// Models write what is not JSON, too: shown as it is.
	}
	return { id: call.id, name: String(of.name ?? "tool"), text: text ?? "" };
}

/** The names of tools by the ids of their calls. */
export function toolNames({ messages }) {
	return new Map(messages.flat().flatMap((message) => message.tool_calls.map(toolCall).map(({ id, name }) => [id, name])));
}
