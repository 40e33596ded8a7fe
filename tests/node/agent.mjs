// The two-step tool task of tests/plugins/programs.py by the openai package, as a program of its own:
// the task comes as JSON on stdin, what the package saw of the model goes as JSON to stdout.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const { wire, stream, system, question, tool } = JSON.parse(readFileSync(0, "utf8"));
const client = new OpenAI({ maxRetries: 0 }); // address and key come from the environment
const seen = { answer: "", reasons: [], calls: [], tokens: [0, 0] };

// Adds up all numbers in the values of its arguments.
const calculate = (values) =>
    String(
        Object.values(values)
            .flatMap((value) => String(value).split("+"))
            .reduce((sum, number) => sum + Number(number), 0),
    );

// As agents do that keep calls as objects: the arguments go back as JavaScript writes them.
function run(name, text) {
    const values = JSON.parse(text);
    seen.calls.push([name, values]);
    return { sent: JSON.stringify(values), result: calculate(values) };
}

function count(prompt, completion) {
    seen.tokens[0] += prompt;
    seen.tokens[1] += completion;
}

async function byChat() {
    const messages = [
        { role: "system", content: system },
        { role: "user", content: question },
    ];
    for (;;) {
        const asked = { model: "m", messages, tools: [tool] };
        const reply = stream
            ? await client.chat.completions
                  .stream({ ...asked, stream_options: { include_usage: true } })
                  .finalChatCompletion()
            : await client.chat.completions.create(asked);
        const { message, finish_reason } = reply.choices[0];
        count(reply.usage.prompt_tokens, reply.usage.completion_tokens);
        seen.reasons.push(finish_reason);
        messages.push(message);
        if (!message.tool_calls?.length) return message.content;
        for (const call of message.tool_calls) {
            const { sent, result } = run(call.function.name, call.function.arguments);
            call.function.arguments = sent;
            messages.push({ role: "tool", tool_call_id: call.id, content: result });
        }
    }
}

async function byResponses() {
    const input = [
        { role: "system", content: system },
        { role: "user", content: question },
    ];
    for (;;) {
        const asked = { model: "m", input, tools: [{ type: "function", strict: false, ...tool.function }] };
        const reply = stream
            ? await client.responses.stream(asked).finalResponse()
            : await client.responses.create(asked);
        count(reply.usage.input_tokens, reply.usage.output_tokens);
        const calls = reply.output.filter((item) => item.type === "function_call");
        seen.reasons.push(calls.length ? "tool_calls" : reply.status === "completed" ? "stop" : "length");
        input.push(...reply.output);
        if (!calls.length) return reply.output_text;
        for (const call of calls) {
            const { sent, result } = run(call.name, call.arguments);
            call.arguments = sent;
            input.push({ type: "function_call_output", call_id: call.call_id, output: result });
        }
    }
}

seen.answer = await (wire === "responses" ? byResponses() : byChat());
console.log(JSON.stringify(seen));
