// Batches of OpenAI's and Anthropic's SDKs under Node, from the requests to the results. Prints what they were told, as JSON.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI, { toFile } from "openai";

const [url, apiKey, model] = process.argv.slice(2);
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "hello" }];
const endpoint = "/v1/chat/completions";
const told = {};

async function until(look, isOver) {
  for (;;) {
    const found = await look();
    if (isOver(found)) return found;
    await new Promise((done) => setTimeout(done, 20));
  }
}

const lines = ["a", "b"].map((id) => JSON.stringify({ custom_id: id, method: "POST", url: endpoint, body: { model, messages } }));
const file = await openai.files.create({ file: await toFile(Buffer.from(lines.join("\n")), "in.jsonl"), purpose: "batch" });
const made = await openai.batches.create({ input_file_id: file.id, endpoint, completion_window: "24h", metadata: { for: "test" } });
const done = await until(() => openai.batches.retrieve(made.id), (each) => each.status === "completed");
told.counts = done.request_counts;
told.metadata = done.metadata;
const output = await (await openai.files.content(done.output_file_id)).text();
told.outputs = output.trim().split("\n").map((line) => JSON.parse(line)).map((each) => [each.custom_id, each.response.body.choices[0].message.content]).sort();
told.listed = [];
for await (const each of openai.batches.list()) told.listed.push(each.id === made.id);
told.lateCancel = await openai.batches.cancel(made.id).catch((error) => [error.status, error.code]);

const requests = ["a", "b"].map((id) => ({ custom_id: id, params: { model, max_tokens: 8, messages } }));
const created = await anthropic.messages.batches.create({ requests });
const ended = await until(() => anthropic.messages.batches.retrieve(created.id), (each) => each.processing_status === "ended");
told.succeeded = ended.request_counts.succeeded;
told.results = [];
for await (const each of await anthropic.messages.batches.results(created.id)) told.results.push([each.custom_id, each.result.message.content[0].text]);
told.results.sort();
told.deleted = (await anthropic.messages.batches.delete(created.id)).id === created.id;
told.gone = await anthropic.messages.batches.retrieve(created.id).catch((error) => error.status);
console.log(JSON.stringify(told));
