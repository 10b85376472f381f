// The gateway names its changes to a request in a header, and refuses the request in strict mode.

import assert from 'node:assert/strict';
import { before, test } from 'node:test';

import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

import {
  ALPHA, BETA, chatClient, collect, createAccount, messagesClient, prompt, vendorRequests, warnings,
} from './harness.mjs';

const SURFACES = {
  chat: { model: ALPHA, open: chatClient, api: (client) => client.chat.completions, refusal: OpenAI.BadRequestError },
  messages: { model: BETA, open: messagesClient, api: (client) => client.messages, refusal: Anthropic.BadRequestError },
};
const CHANGED = [
  ['chat', { seed: 7 }, 'dropped:seed'],
  ['chat', { temperature: 1.5, seed: 7 }, 'clamped:temperature, dropped:seed'],
  ['chat', { x_unknown: 1 }, 'dropped:x_unknown'],
  ['messages', { top_k: 5 }, 'dropped:top_k'],
  ['messages', { temperature: 0.5, stop_sequences: ['END'] }, 'dropped:stop_sequences, dropped:temperature'],
  ['messages', { x_unknown: 1 }, 'dropped:x_unknown'],
];

let account;
before(async () => {
  account = await createAccount();
});

const ask = (model, text, more) => ({ model, max_tokens: 300, messages: [{ role: 'user', content: text }], ...more });

for (const [surface, more, warning] of CHANGED) {
  const { model, open, api, refusal } = SURFACES[surface];

  test(`what was changed is told (${surface}, ${warning})`, async () => {
    const { client, sent } = open(account.key);
    const request = ask(model, prompt('input=5 output=5'), more);
    const { data, response } = await api(client).create(request).withResponse();
    assert.ok(data.usage);
    assert.equal(response.headers.get('x-gateway-warnings'), warning);
    assert.ok((await collect(await api(client).create({ ...request, stream: true }))).length > 0);
    assert.equal(warnings(sent), warning);
  });

  for (const stream of [false, true]) {
    test(`who is strict is refused instead (${surface}, ${warning}, ${stream ? 'streamed' : 'whole'})`, async () => {
      const { client, sent } = open(account.key);
      const text = prompt('input=5 output=5');
      const request = { ...ask(model, text, more), stream };
      await assert.rejects(api(client).create(request, { headers: { 'x-gateway-strict': 'true' } }), (error) => {
        assert.ok(error instanceof refusal);
        const { message } = error.error.error ?? error.error;
        assert.ok(warning.split(', ').some((token) => message === `Strict mode: ${token}`), message);
        return true;
      });
      assert.equal(sent.length, 1);
      assert.deepEqual(await vendorRequests(text), []);
    });
  }
}

for (const [surface, { model, open, api }] of Object.entries(SURFACES)) {
  test(`where nothing was changed nothing is told (${surface})`, async () => {
    const { client, sent } = open(account.key);
    const request = ask(model, prompt('input=5 output=5'), { temperature: 1 });
    await api(client).create(request, { headers: { 'x-gateway-strict': 'true' } });
    assert.equal(warnings(sent), null);
  });
}
