// Official clients that point at the world of tests/world/run.mjs and record the requests that they send.

import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

import { BASE_URL, REACHABLE } from '../../world/client.mjs';

export * from '../../world/client.mjs';

export const ALPHA = 'alpha-haiku-4-5-20251001'; // its vendor speaks the messages protocol
export const BETA = 'beta-5.2'; // its vendor speaks chat completions
export const RESPONSES = 'beta-5.5'; // its vendor also serves it at /v1/responses
/** One model per vendor that the surface reaches. */
export const reached = (surface) => REACHABLE[surface].filter((model) => [ALPHA, BETA].includes(model));
/** Those of them whose vendor speaks the other protocol. */
export const translated = (surface) => reached(surface).filter((model) => protocol(model) !== surface);
/** The surface with the protocol of the model's vendor. */
export const protocol = (model) => (model.startsWith('alpha-') ? 'messages' : 'chat');

export const REQUEST_ID = /^req_[0-9a-f]{32}$/;

/** How a client sends its key. */
export const CHAT_AUTH = {
  bearer: (key) => ({ apiKey: key }),
  'x-api-key': (key) => ({ apiKey: 'unused', defaultHeaders: { Authorization: null, 'x-api-key': key } }),
  both: (key) => ({ apiKey: 'not-a-gateway-key', defaultHeaders: { 'x-api-key': key } }),
};

export const MESSAGES_AUTH = {
  apiKey: (key) => ({ apiKey: key }),
  authToken: (key) => ({ authToken: key }),
  'x-api-key': (key) => ({ authToken: null, defaultHeaders: { 'X-Api-Key': key } }),
};

/** Returns `client` and `sent`: the requests it made, including its own retries. */
export function chatClient(key, { auth = 'bearer', ...options } = {}) {
  const sent = [];
  const client = new OpenAI({
    baseURL: `${BASE_URL}/v1`,
    fetch: remembering(sent),
    ...CHAT_AUTH[auth](key),
    ...options,
  });
  return { client, sent };
}

export function messagesClient(key, { auth = 'apiKey', ...options } = {}) {
  const sent = [];
  const client = new Anthropic({
    baseURL: BASE_URL,
    fetch: remembering(sent),
    ...MESSAGES_AUTH[auth](key),
    ...options,
  });
  return { client, sent };
}

function remembering(sent) {
  return async (url, init) => {
    const request = { url: String(url), headers: new Headers(init?.headers), body: init?.body };
    sent.push(request);
    const answer = await fetch(url, init);
    request.answered = answer.headers;
    return answer;
  };
}

/** The changes to the last request that the gateway reported. */
export const warnings = (sent) => sent.at(-1).answered.get('x-gateway-warnings');

export async function collect(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}
