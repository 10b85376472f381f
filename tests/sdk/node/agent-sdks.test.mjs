// Agents built with the AI SDK and with the OpenAI Agents SDK, which both use the responses API by default: one tool call,
// streamed and non-streamed, with vendors of all three protocols. Only the address, the key and the model are set.

import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';

import { createOpenAI } from '@ai-sdk/openai';
import { Agent, OpenAIResponsesModel, run, setTracingDisabled, tool as agentTool } from '@openai/agents';
import { APICallError, generateText, jsonSchema, Output, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

import {
  ALPHA, BASE_URL, BETA, chatClient, createAccount, credits, eventually, prompt, RESPONSES, vendorRequests,
} from './harness.mjs';

const MODELS = [ALPHA, BETA, RESPONSES];
const CITY = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false };
const STEP = `blocks=${JSON.stringify([{ thinking: 'Hm.' }, { text: 'Looking.' }, { tool: 'get_weather', args: { city: 'Oslo' } }])} input=50 output=20`;

let account;
before(async () => {
  account = await createAccount();
  // Otherwise the SDK reports every run to its maker.
  setTracingDisabled(true);
});

const model = (id) => createOpenAI({ baseURL: `${BASE_URL}/v1`, apiKey: account.key })(id);

/** The request of a run with one tool. */
function weather(id, text, openai = {}) {
  const asked = [];
  const execute = async ({ city }) => {
    asked.push(city);
    return `Rain in ${city}`;
  };
  const tools = { get_weather: tool({ description: 'The weather.', inputSchema: jsonSchema(CITY), execute }) };
  const options = {
    model: model(id), tools, prompt: text, stopWhen: stepCountIs(4), maxOutputTokens: 4000, maxRetries: 0,
    providerOptions: { openai },
  };
  return { asked, options };
}

describe('the AI SDK', () => {
  for (const id of MODELS) {
    for (const streams of [false, true]) {
      test(`calls its tool and reads the result with ${id}, ${streams ? 'streamed' : 'whole'}`, async () => {
        const text = prompt(STEP);
        const { asked, options } = weather(id, text, { store: false });
        const result = streams ? streamText(options) : await generateText(options);
        const parts = [];
        if (streams) for await (const part of result.fullStream) parts.push(part);
        assert.deepEqual(parts.filter(({ type }) => type === 'error'), []);
        assert.equal(await result.text, 'The tool said: Rain in Oslo');
        assert.deepEqual(asked, ['Oslo']);
        const steps = await result.steps;
        assert.deepEqual(steps.map(({ finishReason }) => finishReason), ['tool-calls', 'stop']);
        assert.deepEqual([steps[0].text, steps[0].usage.inputTokens, steps[0].usage.outputTokens], ['Looking.', 50, 20]);
        assert.equal((await vendorRequests(text)).length, 2, 'the vendor accepts the history at once');
      });
    }

    test(`has its object by a schema with ${id}`, async () => {
      const schema = jsonSchema({ ...CITY, properties: { city: { type: 'string' } } });
      const { output } = await generateText({
        model: model(id), prompt: prompt(`text='{"city":"Oslo"}'`), output: Output.object({ schema }),
        providerOptions: { openai: { store: false } },
      });
      assert.deepEqual(output, { city: 'Oslo' });
    });

    test(`which leaves the storing to the vendor is told to send all itself (${id})`, async () => {
      const { options } = weather(id, prompt(STEP));
      // The second request only references the first response's text by id.
      await assert.rejects(generateText(options), (error) => {
        assert.ok(APICallError.isInstance(error), String(error));
        assert.equal(error.statusCode, 400);
        assert.match(error.message, /set store=false so that items are sent in full/);
        return true;
      });
    });
  }

  test('throws what the gateway says', async () => {
    const options = { model: model('nobody'), prompt: 'Hi', maxRetries: 0 };
    await assert.rejects(generateText(options), (error) => error.statusCode === 404 && /nobody/.test(error.message));
    const broken = { model: model(ALPHA), prompt: prompt('events=8 cut=6'), maxRetries: 0, onError: () => {} };
    const errors = [];
    for await (const part of streamText(broken).fullStream) if (part.type === 'error') errors.push(part.error);
    assert.equal(errors.length, 1, 'told once');
    assert.match(JSON.stringify(errors[0]), /ended its answer early/);
  });

  test('stops when it is told to, and what was made is paid', async () => {
    const fresh = await createAccount();
    const own = createOpenAI({ baseURL: `${BASE_URL}/v1`, apiKey: fresh.key })(ALPHA);
    const stop = new AbortController();
    const { textStream } = streamText({
      model: own, prompt: prompt('events=40 gap_ms=50 input=50 output=400'), maxRetries: 0, abortSignal: stop.signal,
      onError: () => {},
    });
    let pieces = 0;
    for await (const _ of textStream) if (++pieces === 3) stop.abort();
    await eventually('it is paid', async () => {
      const { balance, held } = await credits(fresh.key);
      return Number(held) === 0 && Number(balance) < 300;
    });
  });
});

describe('the OpenAI Agents SDK', () => {
  for (const id of MODELS) {
    for (const stream of [false, true]) {
      test(`calls its tool and reads the result with ${id}, ${stream ? 'streamed' : 'whole'}`, async () => {
        const asked = [];
        const agent = new Agent({
          name: 'Forecaster',
          instructions: 'Be brief.',
          model: new OpenAIResponsesModel(chatClient(account.key, { maxRetries: 0 }).client, id),
          modelSettings: { store: false, maxTokens: 4000 },
          tools: [
            agentTool({
              name: 'get_weather',
              description: 'The weather in a city.',
              parameters: z.object({ city: z.string() }),
              execute: async ({ city }) => {
                asked.push(city);
                return `Rain in ${city}`;
              },
            }),
          ],
        });
        const text = prompt(STEP);
        const result = await run(agent, text, { stream, maxTurns: 3 });
        if (stream) await result.completed;
        assert.equal(result.finalOutput, 'The tool said: Rain in Oslo');
        assert.deepEqual(asked, ['Oslo']);
        assert.equal((await vendorRequests(text)).length, 2);
        // The SDK's history can be continued with the same model and with another.
        const more = prompt('text="Bye."');
        const next = [...result.history, { role: 'user', content: more }];
        for (const other of [agent, agent.clone({ model: new OpenAIResponsesModel(chatClient(account.key).client, MODELS[0]) })]) {
          assert.equal((await run(other, next)).finalOutput, 'Bye.');
        }
      });
    }
  }
});
