// The endpoints beyond chat through the official openai SDK: it gets the same objects from the gateway as from the vendor itself.

import assert from 'node:assert/strict';
import { before, test } from 'node:test';

import { toFile } from 'openai';

import { METERED, chatClient, createAccount, stripeUrl } from './harness.mjs';

let gateway;
let vendor;
before(async () => {
  const { key } = await createAccount();
  gateway = chatClient(key).client;
  vendor = chatClient('sim-beta-key', { baseURL: `${stripeUrl()}/v1` }).client;
});

/** Returns an answer as the gateway's clients see it: with its name of the model. */
function renamed(answer, model) {
  assert.equal(answer.model, METERED[model].upstream_model);
  return { ...answer, model };
}

for (const [name, options] of Object.entries({
  'a text': { input: 'Grüße' },
  'two texts with a size': { input: ['one text', 'and another'], dimensions: 5 },
  'token ids as numbers': { input: [15339, 1917, 0], encoding_format: 'float' },
  'lists of token ids in base64': { input: [[15339, 1917, 0], [15339]], encoding_format: 'base64', user: 'someone' },
})) {
  test(`embeddings of ${name} are the vendor's own`, async () => {
    const ask = (client, model) => client.embeddings.create({ model, ...options });
    const own = await ask(vendor, METERED['beta-embed'].upstream_model);
    assert.deepEqual(await ask(gateway, 'beta-embed'), renamed(own, 'beta-embed'));
  });
}

test("a moderation is the vendor's own, and its model may be left out", async () => {
  const image = { type: 'image_url', image_url: { url: 'data:image/png;base64,iVBORw0KGgo=' } };
  for (const input of ['fine', ['fine', 'too'], [{ type: 'text', text: 'fine' }, image]]) {
    const own = await vendor.moderations.create({ input });
    assert.deepEqual(await gateway.moderations.create({ input }), renamed(own, 'beta-guard'));
  }
});

for (const [name, options] of Object.entries({
  'a text with a suffix': { prompt: 'Grüße', suffix: 'end', max_tokens: 5, stop: ['x'], user: 'someone' },
  'two texts, with the better of two': { prompt: ['one text', 'and another'], n: 1, best_of: 2, logprobs: 2, seed: 7 },
  'token ids, with echo': { prompt: [15339, 1917, 0], echo: true },
  'lists of token ids': { prompt: [[15339, 1917, 0], [15339]], n: 2, logit_bias: { 50256: -100 } },
})) {
  const model = 'beta-text';
  const lasting = (answer) => ({ ...answer, id: '', created: 0 });

  test(`a completion of ${name} is the vendor's own`, async () => {
    const own = await vendor.completions.create({ model: METERED[model].upstream_model, ...options });
    const found = await gateway.completions.create({ model, ...options });
    assert.deepEqual(lasting(found), lasting(renamed(own, model)));
  });

  test(`a streamed completion of ${name} is the vendor's own`, async () => {
    const ask = async (client, id) => {
      const stream_options = { include_usage: true, include_obfuscation: false };
      const stream = await client.completions.create({ ...options, best_of: undefined, model: id, stream: true, stream_options });
      return (await Array.fromAsync(stream)).map(lasting);
    };
    const own = await ask(vendor, METERED[model].upstream_model);
    assert.deepEqual(await ask(gateway, model), own.map((chunk) => renamed(chunk, model)));
  });
}

/** Asks the vendor itself and the gateway, each with its name of the model. */
async function both(model, ask) {
  return [await ask(vendor, METERED[model].upstream_model), await ask(gateway, model)];
}

const audio = () => toFile(Buffer.alloc(32_000, '\r\n--'), 'a.mp3');

for (const options of [{}, { response_format: 'verbose_json' }, { response_format: 'srt' }, { language: 'en', prompt: 'A hint.' }]) {
  test(`a transcription with ${JSON.stringify(options)} is the vendor's own`, async () => {
    const ask = async (client, model) => client.audio.transcriptions.create({ model, file: await audio(), ...options });
    const [own, found] = await both('beta-scribe', ask);
    assert.deepEqual(found, own);
  });
}

test("a streamed transcription is the vendor's own", async () => {
  const ask = async (client, model) =>
    Array.fromAsync(await client.audio.transcriptions.create({ model, file: await audio(), stream: true }));
  const [own, found] = await both('beta-scribe-tokens', ask);
  assert.deepEqual(found, own);
});

test("speech is the vendor's own", async () => {
  const ask = async (client, model) => {
    const answer = await client.audio.speech.create({ model, input: 'Grüße', voice: 'alloy' });
    return [answer.headers.get('content-type'), Buffer.from(await answer.arrayBuffer()).toString('hex')];
  };
  const [own, found] = await both('beta-voice', ask);
  assert.deepEqual(found, own);
});

test("images, streamed and edited, are the vendor's own", async () => {
  const prompt = 'A cat.';
  const image = () => toFile(Buffer.from('one'), 'a.png', { type: 'image/png' });
  for (const ask of [
    (client, model) => client.images.generate({ model, prompt, n: 2 }),
    async (client, model) => Array.fromAsync(await client.images.generate({ model, prompt, stream: true, partial_images: 1 })),
    async (client, model) => client.images.edit({ model, prompt, image: [await image(), await image()] }),
  ]) {
    const [own, found] = await both('beta-paint', ask);
    assert.deepEqual(found, own);
  }
});
