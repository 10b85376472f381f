// Responses of a vendor that speaks the other protocol, through the official SDKs' own accumulators: the final object of a
// stream equals the non-streamed response.

import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';

import { jsonSchemaOutputFormat } from '@anthropic-ai/sdk/helpers/json-schema';
import { makeParseableResponseFormat } from 'openai/lib/parser';

import {
  ALPHA, BETA, chatClient, collect, createAccount, messagesClient, prompt, vendorRequests, warnings,
} from './harness.mjs';

const UNICODE = 'Grüße, 漢字, e\u0301, 👩‍👩‍👧 and \u{1d11e}';
const LONG = 'the quick brown fox jumps over the lazy dog '.repeat(40);
const SEALED = 196; // length of the simulated vendor's signatures

const PARAMETERS = {
  get_weather: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  get_time: { type: 'object', properties: {} },
};
const CHAT_TOOLS = Object.entries(PARAMETERS).map(([name, parameters]) => ({
  type: 'function',
  function: { name, parameters },
}));
const MESSAGES_TOOLS = Object.entries(PARAMETERS).map(([name, input_schema]) => ({ name, input_schema }));

const weather = (city, id) => ({ tool: 'get_weather', args: { city }, id });
const OSLO = weather('Oslo', 'call_oslo');
const ROME = weather('Rome', 'call_rome');
const TIME = { tool: 'get_time', args: {}, id: 'call_time' };
const blocks = (...parts) => `blocks=${JSON.stringify(parts)}`;
/** Without the vendor's counts, the gateway estimates the input from the request's bytes; a streaming request has more bytes. */
const isUncounted = (marker) => /usage=(none|zero)/.test(marker);
/** The simulated vendor would also count bytes, so this sets its input count. */
const counted = (marker) => (marker.includes('input=') ? marker : `${marker} input=50`);

/**
 * The response without the values that differ in each response (ids and times) and the fields that the SDKs' helpers add. A
 * signature, which differs each time too, is replaced by its length. Null, empty and absent values are the same.
 */
function comparable(value, key = '') {
  if (Array.isArray(value)) return value.map((member) => comparable(member, key));
  if (value && typeof value === 'object') {
    const skipped = ['id', 'created', 'parsed', '_request_id', '_iterations', 'parsed_output'];
    // The accumulator keeps only the last piece of this display text.
    skipped.push('reasoning_content');
    if (['tool_calls', 'annotations'].includes(key)) skipped.push('index');
    const members = Object.entries(value)
      .filter(([name]) => !skipped.includes(name))
      .map(([name, member]) => [name, comparable(member, name)])
      .filter(([, member]) => member !== null && member !== undefined && member !== '');
    return Object.fromEntries(members);
  }
  if (['signature', 'data'].includes(key) && value !== 'gw1.') return value.length;
  return key === 'arguments' ? JSON.stringify(JSON.parse(value)) : value;
}

let account;
before(async () => {
  account = await createAccount();
});

/** Sends one request to a model of the messages vendor on the chat surface; its streamed and non-streamed response are equal. */
async function completion(marker, more = {}) {
  const { client, sent } = chatClient(account.key, { maxRetries: 0 });
  const messages = [{ role: 'user', content: prompt(counted(marker)) }];
  const request = { model: ALPHA, max_tokens: 1000, tools: CHAT_TOOLS, messages, ...more };
  const whole = await client.chat.completions.create(request);
  const folded = await client.chat.completions.create({ ...request, max_tokens: more.max_tokens ?? 12000 });
  const stream = client.chat.completions.stream({ ...request, stream_options: { include_usage: true } });
  const streamed = await stream.finalChatCompletion();
  assert.equal(sent.length, 3);
  const [told, ...others] = [whole, folded, streamed].map(comparable);
  if (isUncounted(marker)) for (const { usage } of [told, ...others]) delete usage.prompt_tokens, delete usage.total_tokens;
  for (const other of others) assert.deepEqual(other, told);
  assert.equal(told.model, ALPHA);
  return { told, message: told.choices[0].message, all: [whole, folded, streamed] };
}

/** Sends one request to a model of the chat vendor on the messages surface; its streamed and non-streamed response are equal. */
async function message(marker, more = {}) {
  const { client, sent } = messagesClient(account.key, { maxRetries: 0 });
  const text = prompt(counted(marker));
  const messages = [{ role: 'user', content: text }];
  const request = { model: BETA, max_tokens: 2000, tools: MESSAGES_TOOLS, messages, ...more };
  const all = [await client.messages.create(request), await client.messages.stream(request).finalMessage()];
  assert.equal(sent.length, 2);
  // A stream reports only the usage fields that change during the stream.
  const [told, streamed] = all.map(comparable).map(({ usage, ...rest }) => {
    const names = ['input_tokens', 'cache_read_input_tokens', 'cache_creation_input_tokens', 'output_tokens'];
    if (isUncounted(marker)) delete usage.input_tokens;
    return { ...rest, usage: [...names.map((name) => usage[name]), usage.output_tokens_details.thinking_tokens] };
  });
  assert.deepEqual(streamed, told);
  assert.equal(told.model, BETA);
  return { told, all, text, sent };
}

const call = (name, args) => ({ type: 'function', function: { name, arguments: JSON.stringify(args) } });
const calls = (...cities) => cities.map((city) => call('get_weather', { city }));

const COMPLETIONS = {
  text: ['text="Hello there."', 'stop', { content: 'Hello there.' }],
  'text in many pieces': [`text="${UNICODE}" events=30`, 'stop', { content: UNICODE }],
  'odd framing': [`text="${UNICODE}" crlf=1 split=7 keepalive=comment unknown=1`, 'stop', { content: UNICODE }],
  nothing: ['text=""', 'stop', {}],
  'one tool': [blocks(OSLO), 'tool_calls', { tool_calls: calls('Oslo') }],
  'text and a tool': [blocks({ text: 'So.' }, OSLO), 'tool_calls', { content: 'So.', tool_calls: calls('Oslo') }],
  'parallel tools': [blocks(OSLO, ROME), 'tool_calls', { tool_calls: calls('Oslo', 'Rome') }],
  'arguments at the start': [`${blocks(OSLO, ROME)} calls=whole`, 'tool_calls', { tool_calls: calls('Oslo', 'Rome') }],
  'a tool without arguments': [blocks(TIME), 'tool_calls', { tool_calls: [call('get_time', {})] }],
  'unicode in arguments': [blocks(weather(UNICODE, 'call_1')), 'tool_calls', { tool_calls: calls(UNICODE) }],
  'a refusal': ['refusal=1', 'content_filter', { refusal: 'The model declined to answer.' }],
  'a refusal with words': ['refusal=1 explanation="Not this."', 'content_filter', { refusal: 'Not this.' }],
  'the output limit': [`text="${LONG}"`, 'length', { content: LONG.slice(0, 80) }, { max_tokens: 20 }],
  'a stop sequence': ['text="One, two" stop_sequence=three', 'stop', { content: 'One, two' }],
};

describe('the chat surface, the messages vendor', () => {
  for (const [title, [marker, finish, said, more]] of Object.entries(COMPLETIONS)) {
    test(`a streamed completion equals the whole one: ${title}`, async () => {
      const { told, message, all } = await completion(marker, more);
      assert.equal(told.choices[0].finish_reason, finish);
      assert.deepEqual(message, { role: 'assistant', ...said });
      const ids = [...marker.matchAll(/"id":"(.*?)"/g)].map(([, id]) => id);
      for (const answer of all) {
        assert.deepEqual((answer.choices[0].message.tool_calls ?? []).map(({ id }) => id), ids);
      }
    });
  }

  test('reasoning stays whole: thinking, text and tools, with what only the vendor can read', async () => {
    const said = [{ thinking: 'Rain.' }, { text: 'Größe 🎈: ' }, { redacted: true }, { text: 'so.' }];
    const parts = [...said, OSLO, { thinking: 'And?' }, ROME];
    const { message, all } = await completion(blocks(...parts));
    const shared = { format: 'anthropic-claude-v1' };
    assert.deepEqual(message.reasoning_details, [
      { type: 'reasoning.text', text: 'Rain.', signature: SEALED, index: 0, anchor: '0:0', ...shared },
      { type: 'reasoning.encrypted', data: SEALED, index: 1, anchor: '9:0', ...shared },
      { type: 'reasoning.text', text: 'And?', signature: SEALED, index: 2, anchor: '12:1', ...shared },
    ]);
    assert.equal(message.content, 'Größe 🎈: so.');
    assert.deepEqual(message.tool_calls, calls('Oslo', 'Rome'));
    assert.equal(all[0].choices[0].message.reasoning_content, 'Rain.And?');
  });

  test('reasoning that is not shown lives on its signature', async () => {
    const { message } = await completion(blocks({ thinking: 'Secret.', omitted: true }, { text: 'Done.' }));
    const [detail] = message.reasoning_details;
    assert.deepEqual([detail.text, detail.signature], [undefined, SEALED]);
  });

  test('usage counts what was cached and thought', async () => {
    const { told } = await completion('input=1001 cache_read=2003 write_5m=307 output=99 reasoning=40');
    assert.deepEqual(told.usage, {
      prompt_tokens: 3311,
      completion_tokens: 99,
      total_tokens: 3410,
      prompt_tokens_details: { cached_tokens: 2003, cache_write_tokens: 307, audio_tokens: 0 },
      completion_tokens_details: {
        reasoning_tokens: 40,
        audio_tokens: 0,
        accepted_prediction_tokens: 0,
        rejected_prediction_tokens: 0,
      },
    });
  });

  for (const usage of ['none', 'zero']) {
    test(`usage that the vendor did not count is numbers all the same (${usage})`, async () => {
      const { all } = await completion(`text=hello usage=${usage}`);
      for (const { usage } of all) {
        assert.ok(usage.prompt_tokens > 0 && usage.completion_tokens > 0);
        assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
      }
    });
  }

  test('a completion is parsed by its schema', async () => {
    const { client, sent } = chatClient(account.key, { maxRetries: 0 });
    const text = prompt(`text='${ANSWER}'`);
    const json_schema = { name: 'weather', strict: true, schema: SCHEMA };
    const response_format = makeParseableResponseFormat({ type: 'json_schema', json_schema }, JSON.parse);
    const request = { model: ALPHA, max_tokens: 500, messages: [{ role: 'user', content: text }], response_format };
    const whole = await client.chat.completions.parse(request);
    const streamed = await client.chat.completions.stream(request).finalChatCompletion();
    for (const { choices } of [whole, streamed]) assert.deepEqual(choices[0].message.parsed, JSON.parse(ANSWER));
    for (const { body } of await vendorRequests(text)) assert.equal(body.output_config.format.type, 'json_schema');
    assert.equal(warnings(sent), null);
  });
});

const ANSWER = '{"city":"Oslo","celsius":7}';
const SCHEMA = {
  type: 'object',
  properties: { city: { type: 'string' }, celsius: { type: 'integer' } },
  required: ['city', 'celsius'],
  additionalProperties: false,
};

const text = (words) => ({ type: 'text', text: words });
const use = (city) => ({ type: 'tool_use', name: 'get_weather', input: { city } });

const MESSAGES = {
  text: ['text="Hello there."', 'end_turn', [text('Hello there.')]],
  'text in many pieces': [`text="${UNICODE}" events=30`, 'end_turn', [text(UNICODE)]],
  'odd framing': [`text="${UNICODE}" crlf=1 split=7 keepalive=comment unknown=1`, 'end_turn', [text(UNICODE)]],
  'comments as data': ['text=One keepalive=data', 'end_turn', [text('One')]],
  nothing: ['text=""', 'end_turn', []],
  'one tool': [blocks(OSLO), 'tool_use', [use('Oslo')]],
  'text and a tool': [blocks({ text: 'So.' }, OSLO), 'tool_use', [text('So.'), use('Oslo')]],
  'parallel tools': [blocks(OSLO, ROME), 'tool_use', [use('Oslo'), use('Rome')]],
  'a tool without arguments': [blocks(TIME), 'tool_use', [{ type: 'tool_use', name: 'get_time', input: {} }]],
  'unicode in arguments': [blocks(weather(UNICODE, 'call_1')), 'tool_use', [use(UNICODE)]],
  'a stop although it called': [`${blocks(OSLO)} finish=stop`, 'tool_use', [use('Oslo')]],
  'calls announced and not made': ['text=Hm finish=tool_calls', 'end_turn', [text('Hm')]],
  'a refusal': ['refusal=1 text="Not this."', 'refusal', [text('Not this.')]],
  'a content filter': ['text=Hm finish=content_filter', 'refusal', [text('Hm')]],
  'the output limit': [`text="${LONG}"`, 'max_tokens', [text(LONG.slice(0, 80))], { max_tokens: 20 }],
  'an end without a terminator': ['text=One nodone=1', 'end_turn', [text('One')]],
};

const ENABLED = { type: 'enabled', budget_tokens: 1024 };

describe('the messages surface, the chat vendor', () => {
  for (const [title, [marker, stop, content, more]] of Object.entries(MESSAGES)) {
    test(`a streamed message equals the whole one: ${title}`, async () => {
      const { told } = await message(marker, more);
      assert.equal(told.stop_reason, stop);
      assert.deepEqual(told.content, content);
    });
  }

  for (const mode of ['interleaved', 'zero', 'noid', 'noindex', 'whole', 'repeat', 'double']) {
    test(`parallel calls are told apart however the vendor writes them (${mode})`, async () => {
      const { told, all } = await message(`${blocks({ text: 'Both.' }, OSLO, ROME)} calls=${mode}`);
      assert.deepEqual(told.content, [text('Both.'), use('Oslo'), use('Rome')]);
      for (const { content } of all) {
        const ids = content.slice(1).map(({ id }) => id);
        if (mode === 'noid') assert.ok(ids.every((id) => /^call_\w+$/.test(id)) && ids[0] !== ids[1], ids);
        else assert.deepEqual(ids, ['call_oslo', 'call_rome']);
      }
    });
  }

  for (const spelling of ['reasoning_content', 'reasoning', 'reasoning_details', 'all']) {
    test(`reasoning is a thinking block for who switched it on (${spelling})`, async () => {
      const marker = `${blocks({ thinking: 'Rain.' }, { text: 'So.' }, OSLO)} spelling=${spelling}`;
      const { told } = await message(marker, { thinking: ENABLED });
      const thought = { type: 'thinking', thinking: 'Rain.', signature: 'gw1.' };
      assert.deepEqual(told.content, [thought, text('So.'), use('Oslo')]);
    });
  }

  for (const thinking of [undefined, { type: 'disabled' }, { ...ENABLED, display: 'omitted' }]) {
    test(`reasoning is hidden from who did not (${JSON.stringify(thinking)})`, async () => {
      const { told } = await message(blocks({ thinking: 'Rain.' }, { text: 'So.' }, OSLO), { thinking });
      assert.deepEqual(told.content, [text('So.'), use('Oslo')]);
    });
  }

  test('redacted reasoning is kept in a signature', async () => {
    const marker = `${blocks({ redacted: true }, { text: 'Done.' })} spelling=reasoning_details`;
    const { all } = await message(marker, { thinking: ENABLED });
    for (const { content } of all) {
      assert.deepEqual([content.length, content[0].type, content[0].thinking], [2, 'thinking', '']);
      assert.match(content[0].signature, /^gw1\.[\w-]{100,}$/);
    }
  });

  for (const mode of ['', 'usage=twice', 'usage=every', 'usage=finish', 'usage=before']) {
    test(`usage counts what was cached and thought (${mode})`, async () => {
      const { told } = await message(`input=1001 cache_read=2003 write_5m=307 output=99 reasoning=40 ${mode}`);
      assert.deepEqual(told.usage, [1001, 2003, 307, 99, 40]);
    });
  }

  for (const usage of ['none', 'zero']) {
    test(`usage that the vendor did not count is numbers all the same (${usage})`, async () => {
      const { all } = await message(`text=hello usage=${usage}`);
      for (const { usage } of all) {
        assert.ok(usage.input_tokens > 0 && usage.output_tokens > 0);
        assert.deepEqual([usage.cache_read_input_tokens, usage.cache_creation_input_tokens], [0, 0]);
      }
    });
  }

  test('a stop sequence that the model does not take is named', async () => {
    const { told, sent } = await message('text=One', { stop_sequences: ['END'] });
    assert.equal(warnings(sent), 'dropped:stop_sequences');
    assert.equal(told.stop_reason, 'end_turn');
  });

  test('a message is parsed by its schema', async () => {
    const { client, sent } = messagesClient(account.key, { maxRetries: 0 });
    const content = prompt(`text='${ANSWER}'`);
    const output_config = { format: jsonSchemaOutputFormat(SCHEMA) };
    const request = { model: BETA, max_tokens: 500, messages: [{ role: 'user', content }], output_config };
    const whole = await client.messages.parse(request);
    const streamed = await client.messages.stream(request).finalMessage();
    for (const answer of [whole, streamed]) assert.deepEqual(answer.parsed_output, JSON.parse(ANSWER));
    for (const { body } of await vendorRequests(content)) assert.equal(body.response_format.json_schema.strict, true);
    assert.equal(warnings(sent), null);
  });

  test('every event of a stream is one that the SDK knows, and the last one ends it', async () => {
    const { client } = messagesClient(account.key, { maxRetries: 0 });
    const content = prompt(blocks({ text: 'Both.' }, OSLO, ROME));
    const request = { model: BETA, max_tokens: 500, tools: MESSAGES_TOOLS, messages: [{ role: 'user', content }] };
    const events = await collect(await client.messages.create({ ...request, stream: true }));
    const starts = events.filter(({ type }) => type === 'content_block_start').map(({ index }) => index);
    assert.deepEqual(starts, [0, 1, 2]);
    assert.equal(events[0].type, 'message_start');
    assert.deepEqual(events.slice(-2).map(({ type }) => type), ['message_delta', 'message_stop']);
  });
});
