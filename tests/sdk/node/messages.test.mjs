// The messages surface through the official @anthropic-ai/sdk.

import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';

import Anthropic from '@anthropic-ai/sdk';
import { betaTool } from '@anthropic-ai/sdk/helpers/beta/json-schema';

import {
  ALPHA, BETA, MESSAGES_AUTH, METERED, MODELS, REQUEST_ID, chatClient, createAccount, messagesClient, passedOn, prompt, reached,
  vendorRequests,
} from './harness.mjs';

const ask = (text, model, more = {}) => ({
  model,
  max_tokens: 200,
  messages: [{ role: 'user', content: text }],
  ...more,
});

const WEATHER = {
  name: 'get_weather',
  description: 'The weather in a city.',
  input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
};

const texts = (message) => message.content.map(({ type, text }) => ({ type, text }));

let account;
before(async () => {
  account = await createAccount();
});

for (const model of reached('messages')) {
  describe(model, () => {
    for (const auth of Object.keys(MESSAGES_AUTH)) {
      test(`a streamed answer equals the whole one (${auth})`, async () => {
        const { client, sent } = messagesClient(account.key, { auth });
        const text = prompt('text="Grüße, two words and 漢字 🎈" events=7 input=50 output=20');
        const whole = await client.messages.create(ask(text, model));
        const stream = client.messages.stream(ask(text, model));
        const streamed = await stream.finalMessage();

        assert.deepEqual(texts(whole), [{ type: 'text', text: 'Grüße, two words and 漢字 🎈' }]);
        assert.deepEqual(texts(streamed), texts(whole));
        assert.equal(whole.stop_reason, 'end_turn');
        assert.equal(streamed.stop_reason, whole.stop_reason);
        assert.equal(whole.model, model);
        assert.equal(streamed.model, model);
        assert.equal(streamed.usage.input_tokens, whole.usage.input_tokens);
        assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
        assert.match(whole._request_id, REQUEST_ID);
        assert.match(stream.request_id, REQUEST_ID);
        assert.equal(sent.length, 2);
      });
    }

    test('one key serves both surfaces', async () => {
      const text = prompt('text="same"');
      const message = await messagesClient(account.key).client.messages.create(ask(text, model));
      const completion = await chatClient(account.key).client.chat.completions.create({
        model: BETA,
        max_completion_tokens: 200,
        messages: [{ role: 'user', content: text }],
      });
      assert.equal(message.content[0].text, 'same');
      assert.equal(completion.choices[0].message.content, 'same');
    });

    for (const streamed of [false, true]) {
      const create = (client, request) =>
        streamed ? client.messages.stream(request).finalMessage() : client.messages.create(request);

      test(`a tool call makes the round trip (${streamed ? 'streamed' : 'whole'})`, async () => {
        const { client } = messagesClient(account.key);
        const question = { role: 'user', content: prompt('tool=get_weather args={"city":"Oslo"}') };
        const first = await create(client, { model, max_tokens: 200, tools: [WEATHER], messages: [question] });
        assert.equal(first.stop_reason, 'tool_use');
        const call = first.content.find((block) => block.type === 'tool_use');
        assert.equal(call.name, 'get_weather');
        assert.deepEqual(call.input, { city: 'Oslo' });

        const then = prompt('text="It is 7 degrees."');
        const result = { type: 'tool_result', tool_use_id: call.id, content: '{"celsius": 7}' };
        const second = await create(client, {
          model,
          max_tokens: 200,
          tools: [WEATHER],
          messages: [
            question,
            { role: 'assistant', content: first.content },
            { role: 'user', content: [result, { type: 'text', text: then }] },
          ],
        });
        assert.equal(second.content[0].text, 'It is 7 degrees.');
        const [seen] = await vendorRequests(then);
        assert.match(JSON.stringify(seen.body), /celsius/);
      });

      test(`a prompt of five megabytes arrives whole (${streamed ? 'streamed' : 'whole'})`, async () => {
        const { client } = messagesClient(account.key);
        const text = `${'lorem ipsum '.repeat(420_000)}${prompt('input=1000 output=5')}`;
        const answer = await create(client, ask(text, model));
        assert.ok(answer.content[0].text);
        assert.equal(answer.stop_reason, 'end_turn');
      });
    }

    // The runner begins a message thread by itself. A vendor of another protocol has no threads: the gateway
    // must refuse it with the message that makes the runner send the whole conversation.
    test("the SDK's tool runner makes the round trip", async () => {
      const { client } = messagesClient(account.key);
      const cities = [];
      const tool = betaTool({
        name: 'get_weather',
        description: 'The weather in a city.',
        inputSchema: WEATHER.input_schema,
        run: ({ city }) => {
          cities.push(city);
          return '{"celsius": 7}';
        },
      });
      const content = prompt('tool=get_weather args={"city":"Oslo"} text="It is 7 degrees."');
      const messages = [{ role: 'user', content }];
      const last = await client.beta.messages.toolRunner({ model, max_tokens: 200, messages, tools: [tool] });
      assert.deepEqual(cities, ['Oslo']);
      assert.equal(last.stop_reason, 'end_turn');
      assert.ok(last.content.some((block) => block.type === 'text' && block.text));
    });

    test('a vendor that stays busy is a RateLimitError after the retries', async () => {
      const { client, sent } = messagesClient(account.key);
      await assert.rejects(
        client.messages.create(ask(prompt('status=429 retry_after=1'), model)),
        Anthropic.RateLimitError,
      );
      assert.equal(sent.length, 3);
    });

    for (const marker of ['events=8 error_event=2', 'events=8 error_event=5', 'events=8 cut=2', 'events=8 cut=5']) {
      test(`a vendor that fails in mid-stream raises (${marker})`, async () => {
        const { client, sent } = messagesClient(account.key, { maxRetries: 0 });
        const request = ask(prompt(marker), model);
        await assert.rejects(async () => {
          for await (const _ of await client.messages.create({ ...request, stream: true }));
        }, Anthropic.APIError);
        await assert.rejects(client.messages.stream(request).finalMessage(), Anthropic.APIError);
        assert.equal(sent.length, 2);
      });
    }

    test('an account without credits is asked to pay once', async () => {
      const poor = await createAccount({ trial: false });
      const { client, sent } = messagesClient(poor.key);
      await assert.rejects(client.messages.create(ask(prompt(), model)), (error) => {
        assert.ok(error instanceof Anthropic.PaymentRequiredError);
        assert.equal(error.error.error.type, 'billing_error');
        return true;
      });
      assert.equal(sent.length, 1);
    });
  });
}

test('a body for a vendor of the same protocol is passed on byte for byte', async () => {
  const { client, sent } = messagesClient(account.key);
  const text = prompt('lenient=1');
  const cache_control = { type: 'ephemeral', ttl: '1h' };
  const content = [{ type: 'text', text, cache_control }];
  await client.messages.create(ask('', ALPHA, { messages: [{ role: 'user', content }], x_unknown: { n: [1.5, null] } }));
  const [seen] = await vendorRequests(text);
  assert.deepEqual(seen.body.messages[0].content[0].cache_control, cache_control);
  assert.deepEqual(seen.body.x_unknown, { n: [1.5, null] });
  assert.ok(passedOn(sent[0].body, seen));
});

for (const auth of Object.keys(MESSAGES_AUTH)) {
  for (const key of [`sk-${'ant-api03-'}${'A'.repeat(80)}`, 'nonsense']) {
    test(`a key that is not one of the gateway's is refused once (${auth}, ${key.slice(0, 7)})`, async () => {
      const { client, sent } = messagesClient(key, { auth });
      await assert.rejects(client.messages.create(ask(prompt(), ALPHA)), Anthropic.AuthenticationError);
      assert.equal(sent.length, 1);
    });
  }
}

test('a model that is not in the catalog is not found', async () => {
  const { client, sent } = messagesClient(account.key);
  await assert.rejects(client.messages.create(ask(prompt(), 'no-such-model')), Anthropic.NotFoundError);
  assert.equal(sent.length, 1);
});

test('all chat models are listed', async () => {
  const { client } = messagesClient(account.key);
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  const more = Object.keys(METERED).filter((id) => METERED[id].kind === 'chat');
  assert.deepEqual(ids.sort(), [...MODELS, ...more].sort());
});
