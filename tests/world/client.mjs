// A test suite's view of the world that run.mjs started for it: its addresses, accounts and keys made
// by the program's own commands, and the requests that the simulated vendor recorded.

import { execFile } from 'node:child_process';
import { createHash, randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { promisify } from 'node:util';

const run = promisify(execFile);

function setting(name, how = '') {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: start the suite by tests/world/run.mjs${how}`);
  return value;
}

/** Address of the simulator that plays Stripe, and any vendor without TLS. */
export const stripeUrl = () => setting('GATEWAY_STRIPE_URL', ' with GATEWAY_TEST_SHOP=stripe');

/** Does what people do at Stripe, or takes its events. */
export async function actAtStripe(page, form) {
  const answer = await fetch(`${stripeUrl()}/_sim/stripe/${page}`, { method: 'POST', body: new URLSearchParams(form) });
  if (answer.status !== 200) throw new Error(`${page} answered ${answer.status}: ${await answer.text()}`);
  return answer.json();
}

export const BASE_URL = setting('GATEWAY_BASE_URL');
export const SIMULATOR_URL = setting('GATEWAY_SIMULATOR_URL');
const BINARY = setting('MODEL_GATEWAY_BIN');

// The catalog, and the models that each surface reaches: all of them. Every suite reads the same file.
const models = JSON.parse(readFileSync(new URL('models.json', import.meta.url), 'utf8'));
export const MODELS = models.catalog;
// For the endpoints beyond chat.
export const METERED = models.metered;
export const REACHABLE = models.reachable;

/** Runs one of the program's commands and returns the JSON document that it prints. */
export async function command(...args) {
  const { stdout } = await run(BINARY, [...args, '--json']); // the config comes from GATEWAY_CONFIG
  return JSON.parse(stdout);
}

/** Creates an account with one key. With `trial: false` it has no credits. */
export async function createAccount({ trial = true } = {}) {
  const email = `${randomUUID()}@example.com`;
  const { account_id: accountId } = await command('account', 'create', '--email', email, ...(trial ? [] : ['--no-trial']));
  const { key } = await command('key', 'create', '--account', email, '--name', 'tests');
  return { accountId, email, key };
}

export async function credits(key) {
  const answer = await fetch(`${BASE_URL}/v1/credits`, { headers: { authorization: `Bearer ${key}` } });
  if (answer.status !== 200) throw new Error(`GET /v1/credits answered ${answer.status}: ${await answer.text()}`);
  return answer.json();
}

/** A prompt that instructs the simulated vendor and that no other request contains. */
export function prompt(marker = '') {
  return `${randomUUID()} ${marker && `[[sim ${marker}]]`}`.trim();
}

/**
 * Returns the requests whose body contains `text`, oldest first. The simulated vendor keeps the last 256 requests, with up to
 * 64 KiB of a body.
 */
export async function vendorRequests(text) {
  const nonce = text.split(' ')[0];
  // Few requests are cheap to read. All are read if an older one may be among the wanted, since other files' tests send some too.
  for (const count of [64, 256]) {
    const requests = await (await fetch(`${SIMULATOR_URL}/_sim/requests?last=${count}`)).json();
    const first = requests.findIndex((request) => request.body?.includes(nonce));
    if (count === 64 && (first < 0 || first < requests.length - 32)) continue;
    return requests
      .filter((request) => request.body?.includes(nonce))
      .map((request) => ({ ...request, body: JSON.parse(request.body) }));
  }
}

/** Whether the vendor received exactly the bytes that an SDK sent, except for the model's upstream name. */
export function passedOn(body, seen) {
  const publicId = JSON.parse(body).model;
  const expected = String(body).replace(`"model":"${publicId}"`, `"model":"${seen.body.model}"`);
  return seen.body_sha256 === createHash('sha256').update(expected).digest('hex');
}

/** Polls `condition` until it returns something truthy, and returns that. */
export async function eventually(what, condition, seconds = 60) {
  const deadline = Date.now() + seconds * 1000;
  for (;;) {
    const result = await condition();
    if (result) return result;
    if (Date.now() > deadline) throw new Error(`not within ${seconds} s: ${what}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}

/**
 * Reports that the test `t` cannot run on this machine, and why; the test must return at once. Under `scripts/test`, which has
 * installed all that a test needs, the test fails instead.
 */
export function skip(t, reason) {
  if (process.env.GATEWAY_SKIPPED_TESTS_FAIL !== undefined) throw new Error(`skipped: ${reason}`);
  t.skip(reason);
}
