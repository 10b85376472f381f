// The official SDKs can read the vectors: the responses that our clients must get, and those that vendors are assumed to
// send. This file serves each vector, without a gateway, to the SDK of its protocol.

import assert from 'node:assert/strict';
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { createServer } from 'node:http';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { createOpenAI } from '@ai-sdk/openai';
import Anthropic from '@anthropic-ai/sdk';
import { generateText, jsonSchema, streamText, tool } from 'ai';
import OpenAI from 'openai';

const VECTORS = fileURLToPath(new URL('../../vectors', import.meta.url));
const PAIRS = {
  'chat-to-messages': { client: 'chat', vendor: 'messages' },
  'messages-to-chat': { client: 'messages', vendor: 'chat' },
  'chat-to-chat': { client: 'chat', vendor: 'chat' },
  'messages-to-messages': { client: 'messages', vendor: 'messages' },
  'responses-to-messages': { client: 'responses', vendor: 'messages' },
  'responses-to-chat': { client: 'responses', vendor: 'chat' },
  'responses-to-responses': { client: 'responses', vendor: 'responses' },
  'chat-to-responses': { client: 'chat', vendor: 'responses' },
  'messages-to-responses': { client: 'messages', vendor: 'responses' },
};
// Vendors' streams with data that is not JSON: their own SDKs cannot read them, but the gateway must.
const MORE_THAN_AN_SDK_BEARS = ['chat-to-messages/stream-unknown-event-and-block', 'messages-to-chat/stream-comments'];
// The accumulator of this SDK does not support custom tool calls, and no event whose item id is not the item's, which a vendor's
// own stream may have.
const MORE_THAN_THE_HELPER_BEARS = ['chat-to-messages/stream-custom-tool', 'responses-to-responses/stream'];
const CONVERSATION = { model: 'public-model', max_tokens: 100, messages: [{ role: 'user', content: 'Hi' }] };
const ASKED = { chat: CONVERSATION, messages: CONVERSATION, responses: { model: 'public-model', input: 'Hi' } };

let body;
let type;
const server = createServer((request, response) => {
  request.resume().on('end', () => response.writeHead(200, { 'content-type': type }).end(body));
});
const apis = {};
let aiSdk;

before(async () => {
  await new Promise((listens) => server.listen(0, '127.0.0.1', listens));
  const url = `http://127.0.0.1:${server.address().port}`;
  const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
  apis.chat = openai.chat.completions;
  apis.responses = openai.responses;
  aiSdk = createOpenAI({ baseURL: `${url}/v1`, apiKey: 'none' })('public-model');
  apis.messages = new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0 }).messages;
});

after(() => {
  server.close();
  server.closeAllConnections();
});

/** A vector's text, with each star, which stands for any number or word, replaced by a value. */
const textOf = (file) =>
  readFileSync(file, 'utf8')
    .replace(/("\w+_tokens"\s*:\s*)"\*"/g, '$11')
    .replace(/("usage"\s*:\s*)"\*"/g, '$1{"output_tokens":1}');

function serve(file) {
  body = textOf(file);
  type = file.endsWith('.sse') ? 'text/event-stream; charset=utf-8' : 'application/json';
}

/** Reads the file to its end, and returns the parsed response or events. */
async function read(protocol, file) {
  serve(file);
  if (file.endsWith('.json')) return apis[protocol].create(ASKED[protocol]);
  const pieces = [];
  for await (const piece of await apis[protocol].create({ ...ASKED[protocol], stream: true })) pieces.push(piece);
  return pieces;
}

function final(protocol, file) {
  serve(file);
  const stream = apis[protocol].stream(ASKED[protocol]);
  return stream[{ chat: 'finalChatCompletion', messages: 'finalMessage', responses: 'finalResponse' }[protocol]]();
}

/** The text, the calls and the usage of a response, as the AI SDK reads them. */
async function understood(file) {
  serve(file);
  const tools = Object.fromEntries(
    ['exec_command', 'apply_patch'].map((name) => [name, tool({ inputSchema: jsonSchema({ type: 'object' }) })]),
  );
  const errors = [];
  const asked = { model: aiSdk, prompt: 'Hi', tools, maxRetries: 0, onError: ({ error }) => errors.push(error) };
  const streams = file.endsWith('.sse');
  const result = streams ? streamText(asked) : await generateText(asked);
  const [text, usage] = [await result.text, await result.usage];
  assert.deepEqual(errors, []);
  const calls = (await result.toolCalls).map(({ toolCallId, toolName, input }) => [toolCallId, toolName, input]);
  return { text, calls, input: usage.inputTokens, output: usage.outputTokens };
}

/** The text, the calls and the usage of a response, as the vector has them. */
function said({ output, usage }) {
  const parts = output.filter(({ type }) => type === 'message').flatMap(({ content }) => content);
  const calls = output.filter(({ type, status }) => type === 'function_call' && status === 'completed');
  return {
    // This SDK returns a refusal as text.
    text: parts.map(({ text, refusal }) => text ?? refusal).join(''),
    calls: calls.map((call) => [call.call_id, call.name, JSON.parse(call.arguments)]),
    input: usage.input_tokens,
    output: usage.output_tokens,
  };
}

/** The final response in a vector's file. */
function ending(file) {
  const text = textOf(file);
  if (file.endsWith('.json')) return JSON.parse(text);
  const last = text.split('\n').filter((line) => line.startsWith('data:')).at(-1);
  return JSON.parse(last.slice('data:'.length)).response;
}

for (const [pair, protocols] of Object.entries(PAIRS)) {
  for (const folder of readdirSync(`${VECTORS}/${pair}`)) {
    const name = `${pair}/${folder}`;
    const fails = existsSync(`${VECTORS}/${name}/client_failure.json`);
    for (const side of ['client', 'vendor']) {
      const protocol = protocols[side];
      for (const end of ['json', 'sse']) {
        const file = `${VECTORS}/${name}/${side}_response.${end}`;
        if (!existsSync(file)) continue;
        if (side === 'client') {
          test(`what a client must get is read by its SDK: ${name}.${end}`, async () => {
            const told = await read(protocol, file);
            if (end === 'json') {
              // The SDK adds the concatenated text of the items as `output_text`.
              const { output_text, ...plain } = JSON.parse(JSON.stringify(told));
              assert.deepEqual(plain, JSON.parse(textOf(file)));
            } else if (!fails) {
              // The edge writes the last frame of a failed stream, so the file does not have it.
              assert.ok(told.length > 0);
              if (MORE_THAN_THE_HELPER_BEARS.includes(name)) return;
              const answer = await final(protocol, file);
              assert.ok(answer.choices?.[0].finish_reason ?? answer.stop_reason ?? answer.status);
              if (protocol !== 'responses') return;
              const wanted = ending(file);
              assert.deepEqual(answer.output.map(({ id, type }) => [id, type]), wanted.output.map(({ id, type }) => [id, type]));
              assert.deepEqual([answer.status, answer.usage], [wanted.status, wanted.usage]);
            }
          });
          // In a passthrough stream the events are the vendor's.
          if (protocol !== 'responses' || pair === 'responses-to-responses' || fails || /custom/.test(folder)) continue;
          test(`what a client must get is understood by the AI SDK: ${name}.${end}`, async () => {
            assert.deepEqual(await understood(file), said(ending(file)));
          });
        } else {
          test(`what a vendor sends is read by its own SDK: ${name}.${end}`, async () => {
            if (MORE_THAN_AN_SDK_BEARS.includes(name)) await assert.rejects(read(protocol, file), SyntaxError);
            else if (fails || /garbage|broken/.test(folder)) await read(protocol, file).catch(() => {});
            else assert.ok(await read(protocol, file));
          });
        }
      }
    }
  }
}
