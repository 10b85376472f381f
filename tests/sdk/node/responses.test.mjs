// The responses surface through the official SDK, with vendors of all three protocols. The SDK's stream accumulator returns
// the same response as a non-streamed call; a response can be sent back unchanged; and the SDK throws on every failure.

import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';

import OpenAI from 'openai';
import { makeParseableTextFormat } from 'openai/lib/parser';

import {
  ALPHA, BETA, chatClient, collect, createAccount, credits, eventually, prompt, RESPONSES, vendorRequests, warnings,
} from './harness.mjs';

const MODELS = [ALPHA, BETA, RESPONSES];
const UNICODE = 'Grüße, 漢字, e\u0301, 👩‍👩‍👧 and \u{1d11e}';
const LONG = 'the quick brown fox jumps over the lazy dog '.repeat(40);
const WEATHER = {
  type: 'function',
  name: 'get_weather',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  strict: false,
};
const PATCH = { type: 'custom', name: 'apply_patch', description: 'Edits files.' };
const TOOLS = [WEATHER, PATCH];
const ANSWER = '{"city":"Oslo","celsius":7}';
const SCHEMA = {
  type: 'object',
  properties: { city: { type: 'string' }, celsius: { type: 'integer' } },
  required: ['city', 'celsius'],
  additionalProperties: false,
};

const weather = (city, id) => ({ tool: 'get_weather', args: { city }, id });
const blocks = (...parts) => `blocks=${JSON.stringify(parts)}`;

let account;
before(async () => {
  account = await createAccount();
});

const open = (options) => chatClient(account.key, { maxRetries: 0, ...options });
const ask = (model, input, more) => ({
  model, input, max_output_tokens: 4000, store: false, tools: TOOLS, reasoning: { effort: 'low', summary: 'auto' }, ...more,
});

/** The response without ids, times, ciphertexts and the fields that the SDK's helpers add. */
function comparable(response) {
  const { id, created_at, completed_at, output, output_text, output_parsed, _request_id, ...rest } = response;
  const item = ({ id, encrypted_content, parsed_arguments, ...kept }) => ({
    ...kept,
    content: kept.content?.map(({ parsed, ...part }) => part),
  });
  assert.match(id, /^resp_\w+$/);
  return JSON.parse(JSON.stringify({ ...rest, output: output.map(item) }));
}

/** Sends one request twice: returns the non-streamed response and the SDK's accumulated stream. */
async function answers(model, marker) {
  const { client, sent } = open();
  const request = ask(model, prompt(`${marker} input=50 output=20`));
  const whole = await client.responses.create(request);
  const stream = client.responses.stream(request);
  const events = await collect(stream);
  const streamed = await stream.finalResponse();
  assert.equal(sent.length, 2);
  assert.deepEqual(comparable(streamed), comparable(whole));
  assert.deepEqual([whole.model, whole.usage.output_tokens, whole.usage.total_tokens], [model, 20, 70]);
  return { whole, streamed, events };
}

/** An item without the fields that the SDK's helper added. */
function asTold({ parsed_arguments, content, ...item }) {
  return content ? { ...item, content: content.map(({ parsed, ...part }) => part) } : item;
}

const kinds = ({ output }) => output.map(({ type }) => type);

const ANSWERS = {
  text: ['text="Hello there."', ['message'], { text: 'Hello there.' }],
  'text in many pieces': [`text="${UNICODE}" events=30`, ['message'], { text: UNICODE }],
  'odd framing': [`text="${UNICODE}" crlf=1 split=7 keepalive=comment unknown=1`, ['message'], { text: UNICODE }],
  'text and a tool': [blocks({ text: 'So.' }, weather('Oslo', 'call_1')), ['message', 'function_call'], { calls: ['Oslo'] }],
  'parallel tools': [
    blocks(weather('Oslo', 'call_1'), weather(UNICODE, 'call_2')),
    ['function_call', 'function_call'],
    { calls: ['Oslo', UNICODE] },
  ],
  thought: [
    blocks({ thinking: 'Hm.' }, { text: 'So.' }, weather('Oslo', 'call_1')),
    ['reasoning', 'message', 'function_call'],
    { thought: 'Hm.', calls: ['Oslo'] },
  ],
};

for (const model of MODELS) {
  describe(model, () => {
    for (const [title, [marker, items, said]] of Object.entries(ANSWERS)) {
      test(`a streamed answer equals the whole one: ${title}`, async () => {
        // The gateway forwards an unknown event unchanged, and the SDK's helper throws on it.
        const spoken = model === RESPONSES ? marker.replace(' unknown=1', '') : marker;
        const { whole, streamed, events } = await answers(model, spoken);
        assert.deepEqual([kinds(whole), whole.status], [items, 'completed']);
        if (said.text !== undefined) assert.equal(whole.output_text, said.text);
        if (said.thought) assert.equal(whole.output[0].summary.map(({ text }) => text).join(), said.thought);
        const calls = (answer) => answer.output.filter(({ type }) => type === 'function_call');
        for (const answer of [whole, streamed]) {
          assert.deepEqual(calls(answer).map((item) => JSON.parse(item.arguments).city), said.calls ?? []);
          assert.deepEqual(calls(answer).map((item) => item.call_id), (said.calls ?? []).map((_, at) => `call_${at + 1}`));
        }
        const deltas = events.filter(({ type }) => type === 'response.output_text.delta').map(({ delta }) => delta);
        assert.equal(deltas.join(''), streamed.output_text);
        // The SDK also accumulates an object of its own: at the end it contains every item that the stream reported.
        const done = events.filter(({ type }) => type === 'response.output_item.done').map(({ item }) => item.id);
        assert.deepEqual(streamed.output.map(({ id }) => id), done);
      });
    }

    test('an answer that its limit cut is incomplete, streamed and whole', async () => {
      const { client } = open();
      const request = ask(model, prompt(`text="${LONG}"`), { max_output_tokens: 20, reasoning: undefined });
      const whole = await client.responses.create(request);
      const events = await collect(await client.responses.create({ ...request, stream: true }));
      for (const answer of [whole, events.at(-1).response]) {
        assert.deepEqual([answer.status, answer.incomplete_details], ['incomplete', { reason: 'max_output_tokens' }]);
        assert.ok(LONG.startsWith(answer.output[0].content[0].text));
      }
      assert.equal(events.at(-1).type, 'response.incomplete');
    });

    test('an answer says when it was whole', async () => {
      const { client } = open();
      const { created_at: began, completed_at: ended } = await client.responses.create(ask(model, prompt('text=Hi')));
      assert.ok(Number.isInteger(ended) && ended >= began && ended <= Date.now() / 1000 + 1, `${began} ${ended}`);
    });

    test('what it said goes back as it came, over as many turns as it takes', async () => {
      const { client, sent } = open();
      const marker = blocks({ thinking: 'Größe?' }, { text: 'Looking.' }, weather('Oslo', 'call_1'));
      const input = [{ role: 'user', content: prompt(marker) }];
      for (const streams of [false, true, false]) {
        const request = ask(model, input, { include: ['reasoning.encrypted_content'] });
        const first = streams
          ? await client.responses.stream(request).finalResponse()
          : await client.responses.create(request);
        const { call_id } = first.output.find(({ type }) => type === 'function_call');
        input.push(...first.output.map(asTold), { type: 'function_call_output', call_id, output: 'Rain' });
        const second = await client.responses.create(ask(model, input));
        assert.equal(second.output_text, 'The tool said: Rain');
        assert.equal(warnings(sent), null);
        input.push(...second.output, { role: 'user', content: `[[sim ${marker}]] Go on.` });
      }
    });

    test('a custom tool gets its text as it is, and what it gave goes back', async () => {
      const { client } = open();
      const patch = `*** Begin Patch\n"quoted" \\d ${UNICODE}`;
      // A model that supports custom tools gets the plain text; any other model gets an object with the text.
      const args = JSON.stringify(model === RESPONSES ? patch : { input: patch });
      const text = prompt(`blocks=[{"tool":"apply_patch","args":${args},"id":"call_1"}]`);
      const first = await client.responses.stream(ask(model, text)).finalResponse();
      const made = first.output.find(({ type }) => type === 'custom_tool_call');
      assert.deepEqual([made.name, made.input], ['apply_patch', patch]);
      const input = [{ role: 'user', content: text }, ...first.output];
      input.push({ type: 'custom_tool_call_output', call_id: made.call_id, output: 'Done.' });
      const second = await client.responses.create(ask(model, input));
      assert.equal(second.output_text, 'The tool said: Done.');
    });

    test('an answer and its calls are parsed by their schemas', async () => {
      const { client } = open();
      const format = makeParseableTextFormat({ type: 'json_schema', name: 'weather', strict: true, schema: SCHEMA }, JSON.parse);
      const request = ask(model, prompt(`text='${ANSWER}'`), { text: { format }, tools: undefined });
      const whole = await client.responses.parse(request);
      const streamed = await client.responses.stream(request).finalResponse();
      for (const answer of [whole, streamed]) assert.deepEqual(answer.output_parsed, JSON.parse(ANSWER));
      const strict = { ...WEATHER, strict: true, parameters: { ...WEATHER.parameters, additionalProperties: false } };
      const called = await client.responses.parse(ask(model, prompt(blocks(weather('Oslo', 'c'))), { tools: [strict] }));
      assert.deepEqual(called.output.at(-1).parsed_arguments, { city: 'Oslo' });
    });

    test('a client that aborts pays for what was made, once', async () => {
      const fresh = await createAccount();
      const { client } = chatClient(fresh.key, { maxRetries: 0 });
      // This model may hide its reasoning, so the gateway reads the rest of the stream after the client disconnects.
      const text = prompt('events=20 gap_ms=50 input=50 output=400');
      const stream = await client.responses.create(ask(model, text, { stream: true, reasoning: undefined }));
      let deltas = 0;
      for await (const { type } of stream) {
        if (type === 'response.output_text.delta' && ++deltas === 3) break; // which aborts the request
      }
      assert.equal((await vendorRequests(text)).length, 1);
      await eventually('it is paid', async () => {
        const { balance, held } = await credits(fresh.key);
        return Number(held) === 0 && Number(balance) < 300;
      });
      // By now, tests of other files may have pushed the first request out of the vendor's list.
      assert.ok((await vendorRequests(text)).length <= 1);
      const helper = client.responses.stream(ask(model, prompt('events=60 gap_ms=50'), { reasoning: undefined }));
      helper.on('response.output_text.delta', () => helper.abort());
      await assert.rejects(helper.finalResponse(), OpenAI.APIUserAbortError);
    });

    const FAILURES = {
      'status=400 error_body=context': ['BadRequestError', 400, 'context_length_exceeded'],
      'status=429': ['RateLimitError', 429, 'rate_limit_exceeded'],
      'status=503': ['InternalServerError', 503, 'server_is_overloaded'],
      'status=500': ['InternalServerError', 502, 'upstream_error'],
      'cut=headers': ['InternalServerError', 502, 'upstream_error'],
    };
    for (const [marker, [name, status, code]] of Object.entries(FAILURES)) {
      test(`an error of the vendor is thrown (${marker})`, async () => {
        for (const streams of [false, true]) {
          const { client } = open();
          const request = ask(model, prompt(marker));
          const asked = streams ? client.responses.stream(request).finalResponse() : client.responses.create(request);
          await assert.rejects(asked, (error) => {
            assert.deepEqual([error.constructor.name, error.status, error.code], [name, status, code], error.message);
            return true;
          });
        }
      });
    }

    const ENDS = {
      'events=8 cut=6': [/ended its answer early/, 'server_error'],
      'events=8 nofinish=1': [/ended its answer early/, 'server_error'],
      'events=8 error_event=6 error_type=overloaded_error error_code=server_is_overloaded': [/./, 'server_is_overloaded'],
    };
    for (const [marker, [words, code]] of Object.entries(ENDS)) {
      test(`a stream that fails throws our words (${marker})`, async () => {
        const { client } = open();
        const request = ask(model, prompt(marker), { reasoning: undefined });
        for (const read of [
          async () => collect(await client.responses.create({ ...request, stream: true })),
          () => client.responses.stream(request).finalResponse(),
        ]) {
          await assert.rejects(read, (error) => {
            assert.ok(error instanceof OpenAI.APIError, String(error));
            assert.match(error.message, words);
            assert.equal(error.code, code);
            return true;
          });
        }
      });
    }
  });
}

test('what is kept nowhere, a wrong key and an unknown model are refused in the vendor’s words', async () => {
  const { client } = open();
  const rejects = (request, name, members) =>
    assert.rejects(client.responses.create(request), (error) => {
      assert.deepEqual([error.constructor.name, { ...members }], [name, { code: error.code, param: error.param }]);
      return true;
    });
  for (const model of MODELS) {
    const stored = ask(model, 'Hi', { previous_response_id: 'resp_1' });
    await rejects(stored, 'BadRequestError', { code: 'previous_response_not_found', param: 'previous_response_id' });
  }
  await rejects(ask('nobody', 'Hi'), 'NotFoundError', { code: 'model_not_found', param: 'model' });
  await assert.rejects(client.responses.retrieve('resp_1'), OpenAI.NotFoundError);
  const stranger = chatClient('gw-sk-wrong', { maxRetries: 0 }).client;
  await assert.rejects(stranger.responses.create(ask(ALPHA, 'Hi')), OpenAI.AuthenticationError);
});

test('input tokens are counted', async () => {
  const { client } = open();
  for (const model of MODELS) {
    const { object, input_tokens: count } = await client.responses.inputTokens.count({ model, input: 'One, two, three.' });
    assert.ok(object === 'response.input_tokens' && count > 3, `${model}: ${count}`);
  }
});

// The SDK throws on any event that it does not know, and on a keep-alive before the response has begun.
for (const [model, marker] of [[ALPHA, 'first_ms=5000'], [BETA, 'first_ms=5000'], [BETA, 'events=1 gap_ms=1500']]) {
  test(`a vendor’s silence is survived (${model}, ${marker})`, async () => {
    const { client } = open();
    const stream = client.responses.stream(ask(model, prompt(`text="Slow but sure" ${marker}`), { reasoning: undefined }));
    const events = await collect(stream);
    assert.equal((await stream.finalResponse()).output_text, 'Slow but sure');
    const types = events.map(({ type }) => type);
    assert.ok(types.includes('keepalive'), types.join());
    assert.deepEqual(types.slice(0, 2), ['response.created', 'response.in_progress']);
  });
}
