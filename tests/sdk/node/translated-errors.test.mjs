// The errors that the official SDKs throw, and how often they retry. The rows apply to every pair of a surface and a vendor:
// the surface sets the shape of an error, whoever caused it.

import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';

import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

import {
  ALPHA, BETA, chatClient, collect, createAccount, messagesClient, prompt, reached, translated, vendorRequests,
} from './harness.mjs';

const SURFACES = {
  chat: { sdk: OpenAI, open: chatClient, api: (client) => client.chat.completions, final: 'finalChatCompletion' },
  messages: { sdk: Anthropic, open: messagesClient, api: (client) => client.messages, final: 'finalMessage' },
};

// Marker; the chat SDK's class, status, type, code; the messages SDK's class, status, type; whether the SDK retries.
const INVALID = 'invalid_request_error';
const MISTAKEN = ['BadRequestError', 400, INVALID, false];
const BUSY = [
  ...['InternalServerError', 503, 'server_error', 'overloaded'],
  ...['OverloadedError', 529, 'overloaded_error', true],
];
const FAILED = [
  ...['InternalServerError', 502, 'server_error', 'upstream_error'],
  ...['InternalServerError', 500, 'api_error', true],
];
const REFUSED_US = [...FAILED.slice(0, -1), false];
const LATE = [
  ...['InternalServerError', 504, 'server_error', 'upstream_timeout'],
  ...['GatewayTimeoutError', 504, 'timeout_error', true],
];
const VENDOR = {
  'status=400': ['BadRequestError', 400, INVALID, undefined, ...MISTAKEN],
  'status=400 error_body=context': ['BadRequestError', 400, INVALID, 'context_length_exceeded', ...MISTAKEN],
  'status=400 error_type=content_filter error_code=content_filter': [
    ...['BadRequestError', 400, INVALID, 'content_policy_violation'],
    ...MISTAKEN,
  ],
  'status=401': REFUSED_US,
  'status=403': REFUSED_US,
  'status=404': ['NotFoundError', 404, INVALID, 'model_not_found', 'NotFoundError', 404, 'not_found_error', false],
  'status=402': BUSY,
  'status=429 error_body=quota': BUSY,
  'status=408': ['APIError', 408, INVALID, undefined, 'RequestTimeoutError', 408, INVALID, true],
  'status=409': ['ConflictError', 409, INVALID, undefined, 'ConflictError', 409, 'conflict_error', true],
  'status=413': ['APIError', 413, INVALID, undefined, 'ContentTooLargeError', 413, 'request_too_large', false],
  'status=422': ['UnprocessableEntityError', 422, INVALID, undefined, ...MISTAKEN],
  'status=429': [
    ...['RateLimitError', 429, undefined, 'rate_limit_exceeded'],
    ...['RateLimitError', 429, 'rate_limit_error', true],
  ],
  'status=500': FAILED,
  'status=502': FAILED,
  'status=503': BUSY,
  'status=529': BUSY,
  'status=504': LATE,
  'status=524': LATE,
  'status=302': FAILED,
  'status=500 error_body=html': FAILED,
  'status=400 error_body=empty': ['BadRequestError', 400, INVALID, undefined, ...MISTAKEN],
  'cut=headers': FAILED,
  'garbage=headers': FAILED,
};

// Errors that end a stream in progress: the code of a chat frame and the type of a messages frame.
const FRAMES = {
  'error_event=6 error_type=overloaded_error error_code=overloaded': ['overloaded', 'overloaded_error'],
  'error_event=6 error_type=rate_limit_error error_code=rate_limit_exceeded': [
    'rate_limit_exceeded',
    'rate_limit_error',
  ],
  'error_event=6 error_type=api_error error_code=server_error': ['upstream_error', 'api_error'],
  'cut=6': ['upstream_closed', 'api_error'],
  'cut=6 end=clean': ['upstream_closed', 'api_error'],
  'nofinish=1': ['upstream_closed', 'api_error'],
};

let account;
before(async () => {
  account = await createAccount();
});

const LIMITS = { chat: 'max_completion_tokens', messages: 'max_tokens' };
const ask = (surface, model, text, more) => ({
  model,
  [LIMITS[surface]]: 100,
  messages: [{ role: 'user', content: text }],
  ...more,
});

async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new assert.AssertionError({ message: 'it did not fail' });
}

/** Returns the error object that the surface sent, and checks its shape. */
function told(surface, error) {
  if (surface === 'chat') {
    assert.deepEqual(Object.keys(error.error).sort(), ['code', 'message', 'param', 'type']);
    return error.error;
  }
  assert.equal(error.error.type, 'error');
  assert.match(error.error.request_id, /^req_/);
  return error.error.error;
}

for (const [surface, { sdk, open, api, final }] of Object.entries(SURFACES)) {
  for (const model of reached(surface)) {
    describe(`${surface}, ${model}`, () => {
      for (const [marker, row] of Object.entries(VENDOR)) {
        const [name, status, type, code] = surface === 'chat' ? row : [...row.slice(4, 7), undefined];
        test(`an error of the vendor (${marker})`, async () => {
          for (const stream of [false, true]) {
            const { client, sent } = open(account.key, { maxRetries: 0 });
            const text = prompt(marker);
            const error = await failure(api(client).create(ask(surface, model, text, { stream })));
            assert.ok(error instanceof sdk.APIError);
            assert.deepEqual([error.constructor.name, error.status], [name, status]);
            const body = told(surface, error);
            if (type) assert.equal(body.type, type);
            if (code) assert.equal(body.code, code);
            assert.equal(sent.length, 1);
            // This checks only whether the SDK would retry, by its own rule. The Python suite checks how often it does.
            const usual = [408, 409, 429].includes(status) || status >= 500;
            assert.equal(error.headers.get('x-should-retry') ?? String(usual), String(row.at(-1)));
            assert.ok((await vendorRequests(text)).length > 0, 'the fault is the vendor’s');
          }
        });
      }

      test('a vendor that stays busy is tried again twice', async () => {
        const { client, sent } = open(account.key);
        const error = await failure(api(client).create(ask(surface, model, prompt('status=503 retry_after=1'))));
        assert.equal(error.status, surface === 'chat' ? 503 : 529);
        assert.equal(sent.length, 3);
      });

      test('a vendor that refuses our key is not tried again', async () => {
        const { client, sent } = open(account.key);
        const error = await failure(api(client).create(ask(surface, model, prompt('status=401'))));
        assert.ok(error instanceof sdk.InternalServerError);
        assert.equal(sent.length, 1);
      });
    });
  }

  for (const model of translated(surface)) {
    for (const [marker, [code, type]] of Object.entries(FRAMES)) {
      test(`a stream that breaks off raises once (${surface}, ${model}, ${marker})`, async () => {
        const { client, sent } = open(account.key);
        const request = ask(surface, model, prompt(`events=8 ${marker}`));
        const error = await failure(api(client).create({ ...request, stream: true }).then(collect));
        assert.ok(error instanceof sdk.APIError);
        if (surface === 'chat') assert.deepEqual([error.type, error.code], ['server_error', code]);
        else assert.equal(error.error.error.type, type);
        assert.equal(sent.length, 1);
        assert.ok((await failure(api(client).stream(request)[final]())) instanceof sdk.APIError);
        assert.equal(sent.length, 2);
      });
    }

    test(`a stream that begins with an error has a status (${surface}, ${model})`, async () => {
      const { client } = open(account.key, { maxRetries: 0 });
      const marker = 'error_event=0 status=529 error_type=overloaded_error error_code=overloaded';
      const error = await failure(api(client).create(ask(surface, model, prompt(marker), { stream: true })));
      assert.equal(error.status, surface === 'chat' ? 503 : 529);
    });
  }
}

test('a prompt that is too long is told in the words that clients look for', async () => {
  const marker = 'status=400 error_body=context';
  const chat = await failure(chatClient(account.key).client.chat.completions.create(ask('chat', ALPHA, prompt(marker))));
  assert.deepEqual([chat.code, chat.param], ['context_length_exceeded', 'messages']);
  assert.match(chat.message, /maximum context length is 200000 tokens.*resulted in 210000 tokens/);
  const messages = await failure(messagesClient(account.key).client.messages.create(ask('messages', BETA, prompt(marker))));
  assert.equal(messages.error.error.message, 'prompt is too long: 210000 tokens > 128000 maximum');
});
