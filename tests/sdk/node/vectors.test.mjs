// The official SDKs read what the vectors say: what our client must get, and what the vendors are taken to send. Each
// file is served from here, without a gateway, to the SDK of its protocol.

import assert from 'node:assert/strict';
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { createServer } from 'node:http';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';

import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

const VECTORS = fileURLToPath(new URL('../../vectors', import.meta.url));
const PAIRS = {
  'chat-to-messages': { client: 'chat', vendor: 'messages' },
  'messages-to-chat': { client: 'messages', vendor: 'chat' },
  'chat-to-chat': { client: 'chat', vendor: 'chat' },
  'messages-to-messages': { client: 'messages', vendor: 'messages' },
};
// Vendors' streams with data that is no JSON: their own SDKs cannot read them, and we must.
const MORE_THAN_AN_SDK_BEARS = ['chat-to-messages/stream-unknown-event-and-block', 'messages-to-chat/stream-comments'];
// The accumulator of this SDK knows no custom calls.
const MORE_THAN_THE_HELPER_BEARS = ['chat-to-messages/stream-custom-tool'];
const ASKED = { model: 'public-model', max_tokens: 100, messages: [{ role: 'user', content: 'Hi' }] };

let body;
let type;
const server = createServer((request, response) => {
  request.resume().on('end', () => response.writeHead(200, { 'content-type': type }).end(body));
});
const apis = {};

before(async () => {
  await new Promise((listens) => server.listen(0, '127.0.0.1', listens));
  const url = `http://127.0.0.1:${server.address().port}`;
  apis.chat = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 }).chat.completions;
  apis.messages = new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0 }).messages;
});

after(() => {
  server.close();
  server.closeAllConnections();
});

/** A vector's text; a star, which stands for any number or word, is one. */
const textOf = (file) => readFileSync(file, 'utf8').replace(/("\w+_tokens"\s*:\s*)"\*"/g, '$11');

function serve(file) {
  body = textOf(file);
  type = file.endsWith('.sse') ? 'text/event-stream; charset=utf-8' : 'application/json';
}

/** Reads the file to its end, and returns what was read. */
async function read(protocol, file) {
  serve(file);
  if (file.endsWith('.json')) return apis[protocol].create(ASKED);
  const pieces = [];
  for await (const piece of await apis[protocol].create({ ...ASKED, stream: true })) pieces.push(piece);
  return pieces;
}

function final(protocol, file) {
  serve(file);
  const stream = apis[protocol].stream(ASKED);
  return protocol === 'chat' ? stream.finalChatCompletion() : stream.finalMessage();
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
              assert.deepEqual(JSON.parse(JSON.stringify(told)), JSON.parse(textOf(file)));
            } else if (!fails) {
              // The frame that ends a stream that fails is the edge's, and so not in the file.
              assert.ok(told.length > 0);
              if (MORE_THAN_THE_HELPER_BEARS.includes(name)) return;
              const answer = await final(protocol, file);
              assert.ok(protocol === 'chat' ? answer.choices[0].finish_reason : answer.stop_reason);
            }
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
