// How Codex handles the streams that this gateway writes. This file plays the vectors' files to it byte for byte, without a
// gateway; and it tests a vendor's failures and silence through the gateway. Codex acts on few events and retries for many
// reasons, so the tests check the commands that it ran, the number of its requests, and its output.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { after, before, describe } from 'node:test';
import { fileURLToPath } from 'node:url';

import { BASE_URL, createAccount, prompt, SIMULATOR_URL, skip, vendorRequests } from '../world/client.mjs';
import { AGENTS, agentTest, work } from './agent.mjs';

const VECTORS = fileURLToPath(new URL('../vectors/responses-to-', import.meta.url));
const MODEL = 'alpha-opus-4-7';

/** Codex with a given address and settings of its provider. */
const codex = (address, settings = '', model = MODEL) => ({
  ...AGENTS.Codex,
  start: ({ prompt: task }) => [
    'exec', '--json', '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox', task,
  ],
  settings: () => ({
    '~/.codex/config.toml': `
      model = "${model}"
      model_provider = "gateway"
      [model_providers.gateway]
      name = "gateway"
      base_url = "${address}/v1"
      env_key = "GATEWAY_KEY"
      wire_api = "responses"
      ${settings}
      `,
  }),
});

/** The turn as Codex reported it: texts, commands that it ran, usage. */
function told(text) {
  const events = text.split('\n').filter((line) => line.startsWith('{')).map((line) => JSON.parse(line));
  const items = events.filter(({ type }) => type === 'item.completed').map(({ item }) => item);
  return {
    texts: items.filter(({ type }) => type === 'agent_message').map((item) => item.text),
    commands: items.filter(({ type }) => type === 'command_execution').map(({ command }) => command),
    usage: events.find(({ type }) => type === 'turn.completed')?.usage,
  };
}

/** Serves the queued files, one per request, and keeps the requests' bodies. */
const shelf = { files: [], asked: [] };
const server = createServer((request, response) => {
  const pieces = [];
  request.on('data', (piece) => pieces.push(piece));
  request.on('end', () => {
    shelf.asked.push(JSON.parse(Buffer.concat(pieces)));
    const file = shelf.files[Math.min(shelf.asked.length, shelf.files.length) - 1];
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.end(readFileSync(`${VECTORS}${file}/client_response.sse`));
  });
});

before(() => new Promise((listens) => server.listen(0, '127.0.0.1', listens)));
after(() => {
  server.close();
  server.closeAllConnections();
});

async function play(...files) {
  Object.assign(shelf, { files, asked: [] });
  const address = `http://127.0.0.1:${server.address().port}`;
  const { status, text } = await work(codex(address, '', 'public-model'), { key: 'none', prompt: 'Go.' });
  return { status, text, asked: shelf.asked, ...told(text) };
}

describe('what the vectors say is played to Codex', () => {
  agentTest('a thought, a text and a call: it runs the call and sends all of it back', async () => {
    const { status, text, asked, texts, commands, usage } = await play('messages/stream-thought-text-call', 'messages/stream-refusal-after-text');
    assert.equal(status, 0, text);
    assert.deepEqual([asked.length, commands.length], [2, 1], text);
    assert.match(commands[0], /\bls\b/);
    assert.equal(texts[0], 'Hi');
    const [thought, , call] = asked[1].input.slice(-4);
    assert.equal(thought.encrypted_content, 'gw1.m.eyJ0IjoiaG0iLCJzIjoiRXFRQiJ9');
    assert.deepEqual([call.type, call.call_id, call.arguments], ['function_call', 'toolu_1', '{"cmd":"ls"}']);
    assert.equal(asked[1].input.at(-1).call_id, 'toolu_1');
    // The sum of both responses: 60 + 10 input tokens, 9 + 9 output tokens.
    assert.deepEqual([usage.input_tokens, usage.output_tokens], [70, 18], text);
  });

  for (const [file, words] of [
    ['messages/stream-refusal-after-text', 'Hi'],
    ['messages/stream-refusal-without-words', 'The model declined to answer.'],
    ['chat/stream-content-filter', 'I '],
  ]) {
    agentTest(`it shows what was said of a refusal, and asks once (${file})`, async () => {
      const { status, text, asked, texts } = await play(file);
      assert.equal(status, 0, text);
      assert.equal(asked.length, 1, text);
      assert.deepEqual(texts.map((words) => words.trim()).slice(0, 1), [words.trim()], text);
    });
  }

  for (const file of ['messages/stream-call-cut-off', 'chat/stream-call-cut-off']) {
    agentTest(`it runs nothing of a call that was cut off (${file})`, async () => {
      const { text, asked, commands } = await play(file);
      assert.deepEqual([asked.length, commands], [1, []], text);
    });
  }
});

/** Runs Codex on `marker` through the gateway; returns its report and the number of the vendor's requests. */
async function ask(marker, settings, { address = BASE_URL, key } = {}) {
  key ??= (await createAccount()).key;
  const task = prompt(marker);
  const { status, text } = await work(codex(address, settings), { key, prompt: task });
  return { status, text, asked: (await vendorRequests(task)).length, ...told(text) };
}

describe('failures and silence of a vendor', () => {
  agentTest('a stream that breaks off is asked for again, as often as it is told to', async () => {
    const { status, text, asked } = await ask('events=8 cut=5', 'stream_max_retries = 2');
    assert.notEqual(status, 0);
    assert.equal(asked, 3, text);
    assert.match(text, /ended its answer early/);
  });

  agentTest('an overloaded vendor is not asked again', async () => {
    const marker = 'events=8 error_event=5 error_type=overloaded_error';
    const { status, text, asked } = await ask(marker, 'stream_max_retries = 2');
    assert.notEqual(status, 0);
    assert.equal(asked, 1, text);
  });

  const IMPATIENT = 'stream_max_retries = 1\nstream_idle_timeout_ms = 4000';
  for (const marker of ['first_ms=9000', 'events=1 gap_ms=3000']) {
    agentTest(`a vendor that is silent for longer than it waits is waited for (${marker})`, async () => {
      const { status, text, asked, texts } = await ask(`text="Slow but sure" ${marker}`, IMPATIENT);
      assert.equal(status, 0, text);
      assert.deepEqual([texts, asked], [['Slow but sure'], 1], text);
    });
  }

  agentTest('without signs of life it gives up', async (t) => {
    if (process.env.GATEWAY_TEST_VENDORS === 'h2') {
      return skip(t, 'Codex calls the simulated vendor itself, and does not trust its certificate');
    }
    // The simulated vendor refuses a key that looks like the gateway's.
    const direct = { address: SIMULATOR_URL, key: 'none' };
    const { status, text, asked } = await ask('text="Slow but sure" first_ms=9000', IMPATIENT, direct);
    assert.notEqual(status, 0);
    assert.match(text, /idle timeout/);
    assert.equal(asked, 2, 'and asks once more');
  });
});
