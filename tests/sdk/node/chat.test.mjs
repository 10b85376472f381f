// The chat-completions surface through the official openai SDK.

import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';

import OpenAI from 'openai';

import {
  BETA, CHAT_AUTH, METERED, MODELS, REQUEST_ID, chatClient, collect, createAccount, passedOn, prompt, reached, vendorRequests,
} from './harness.mjs';

const ask = (text, model, more = {}) => ({
  model,
  max_completion_tokens: 200,
  messages: [{ role: 'user', content: text }],
  ...more,
});

let account;
before(async () => {
  account = await createAccount();
});

for (const model of reached('chat')) {
  describe(model, () => {
    for (const auth of Object.keys(CHAT_AUTH)) {
      test(`a streamed answer equals the whole one (${auth})`, async () => {
        const { client, sent } = chatClient(account.key, { auth });
        const text = prompt('text="Grüße, two words and 漢字 🎈" events=7 input=50 output=20');
        const whole = await client.chat.completions.create(ask(text, model));
        const streamed = await client.chat.completions
          .stream(ask(text, model, { stream_options: { include_usage: true } }))
          .finalChatCompletion();

        assert.equal(whole.choices[0].message.content, 'Grüße, two words and 漢字 🎈');
        assert.equal(streamed.choices[0].message.content, whole.choices[0].message.content);
        assert.equal(streamed.choices[0].finish_reason, whole.choices[0].finish_reason);
        assert.equal(whole.model, model);
        assert.equal(streamed.model, model);
        assert.deepEqual(streamed.usage, whole.usage);
        assert.match(whole._request_id, REQUEST_ID);
        assert.equal(sent.length, 2);
      });
    }

    test('a stream has usage only if the caller asked', async () => {
      const { client } = chatClient(account.key);
      const request = ask(prompt('events=4'), model, { stream: true });

      const silent = await collect(await client.chat.completions.create(request));
      assert.ok(silent.every((chunk) => chunk.choices.length === 1 && !('usage' in chunk)));

      const asked = await collect(
        await client.chat.completions.create({ ...request, stream_options: { include_usage: true } }),
      );
      const last = asked.pop();
      assert.ok(asked.every((chunk) => chunk.choices.length === 1 && chunk.usage === null));
      assert.deepEqual(last.choices, []);
      assert.ok(last.usage.prompt_tokens > 0 && last.usage.completion_tokens > 0);
    });

    for (const stream of [false, true]) {
      test(`the SDK's tool runner makes the round trip (${stream ? 'streamed' : 'whole'})`, async () => {
        const { client, sent } = chatClient(account.key);
        // The simulated vendor calls the tool until the last turn is the tool's result.
        const question = prompt('tool=get_weather args={"city":"Oslo"} text="It is 7 degrees."');
        const messages = [{ role: 'user', content: question }];
        const cities = [];
        const tool = {
          type: 'function',
          function: {
            name: 'get_weather',
            description: 'The weather in a city.',
            parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
            parse: JSON.parse,
            function: ({ city }) => {
              cities.push(city);
              return '{"celsius": 7}';
            },
          },
        };
        const runner = client.chat.completions.runTools({ model, max_completion_tokens: 200, messages, tools: [tool], stream });
        assert.equal(await runner.finalContent(), 'It is 7 degrees.');
        assert.deepEqual(cities, ['Oslo']);
        assert.equal(sent.length, 2);
        const [, second] = await vendorRequests(question);
        assert.match(JSON.stringify(second.body), /celsius/);
      });

      test(`a prompt of five megabytes arrives whole (${stream ? 'streamed' : 'whole'})`, async () => {
        const { client } = chatClient(account.key);
        const text = `${'lorem ipsum '.repeat(420_000)}${prompt('input=1000 output=5')}`;
        const answer = stream
          ? await client.chat.completions.stream(ask(text, model)).finalChatCompletion()
          : await client.chat.completions.create(ask(text, model));
        assert.ok(answer.choices[0].message.content);
        assert.equal(answer.choices[0].finish_reason, 'stop');
      });
    }

    test('a vendor that stays busy is a RateLimitError after the retries', async () => {
      const { client, sent } = chatClient(account.key);
      await assert.rejects(
        client.chat.completions.create(ask(prompt('status=429 retry_after=1'), model)),
        OpenAI.RateLimitError,
      );
      assert.equal(sent.length, 3);
    });

    for (const marker of ['events=8 error_event=2', 'events=8 error_event=5', 'events=8 cut=2', 'events=8 cut=5']) {
      test(`a vendor that fails in mid-stream raises (${marker})`, async () => {
        const { client, sent } = chatClient(account.key, { maxRetries: 0 });
        const request = ask(prompt(marker), model);
        await assert.rejects(async () => {
          await collect(await client.chat.completions.create({ ...request, stream: true }));
        }, OpenAI.APIError);
        await assert.rejects(client.chat.completions.stream(request).finalChatCompletion(), OpenAI.APIError);
        assert.equal(sent.length, 2);
      });
    }

    test('an account without credits is asked to pay once', async () => {
      const poor = await createAccount({ trial: false });
      const { client, sent } = chatClient(poor.key);
      await assert.rejects(client.chat.completions.create(ask(prompt(), model)), (error) => {
        assert.ok(error instanceof OpenAI.APIError);
        assert.deepEqual([error.status, error.type, error.code], [402, 'insufficient_quota', 'insufficient_credits']);
        return true;
      });
      assert.equal(sent.length, 1);
    });
  });
}

test('a body for a vendor of the same protocol is passed on byte for byte', async () => {
  const { client, sent } = chatClient(account.key);
  const text = prompt('lenient=1');
  await client.chat.completions.create(ask(text, BETA, { x_unknown: { n: [1.5, null, 'ü'] } }));
  const [seen] = await vendorRequests(text);
  assert.deepEqual(seen.body.x_unknown, { n: [1.5, null, 'ü'] });
  assert.ok(passedOn(sent[0].body, seen));
});

for (const auth of ['bearer', 'x-api-key']) {
  for (const key of [`sk-${'proj-'}${'A'.repeat(48)}`, 'nonsense']) {
    test(`a key that is not one of the gateway's is refused once (${auth}, ${key.slice(0, 8)})`, async () => {
      const { client, sent } = chatClient(key, { auth });
      await assert.rejects(client.chat.completions.create(ask(prompt(), BETA)), OpenAI.AuthenticationError);
      assert.equal(sent.length, 1);
    });
  }
}

test('a model that is not in the catalog is not found', async () => {
  const { client, sent } = chatClient(account.key);
  await assert.rejects(client.chat.completions.create(ask(prompt(), 'no-such-model')), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, 'model_not_found');
    return true;
  });
  assert.equal(sent.length, 1);
});

test('all models are listed', async () => {
  const { client } = chatClient(account.key);
  const ids = (await collect(client.models.list())).map((model) => model.id);
  assert.deepEqual(ids.sort(), [...MODELS, ...Object.keys(METERED)].sort());
});
