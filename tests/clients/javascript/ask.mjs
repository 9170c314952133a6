// OpenAI's and Anthropic's SDKs under Node, as anybody would use them. Prints what they were told, as JSON.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [url, apiKey, model] = process.argv.slice(2);
const messages = [{ role: "user", content: "hello" }];
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });
const told = {};

const chat = await openai.chat.completions.create({ model, messages, max_tokens: 6 });
told.chat = chat.choices[0].message.content;
told.streamed = "";
for await (const chunk of await openai.chat.completions.create({ model, messages, max_tokens: 6, stream: true })) {
  told.streamed += chunk.choices[0]?.delta?.content ?? "";
}
told.response = (await openai.responses.create({ model, input: "hello", max_output_tokens: 6 })).output_text;
told.message = (await anthropic.messages.create({ model, messages, max_tokens: 6 })).content[0].text;
told.messageStreamed = await anthropic.messages.stream({ model, messages, max_tokens: 6 }).finalText();
told.refused = await openai.chat.completions.create({ model: "none", messages }).catch((error) => [error.status, error.code]);
console.log(JSON.stringify(told));
