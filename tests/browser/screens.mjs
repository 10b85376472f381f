// Makes the screenshots of docs/screens again, in a world of its own:
//
//   node tests/world/run.mjs node tests/browser/screens.mjs
//
// Checks nothing: the tests in this directory check the pages.

import { spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { fileURLToPath } from 'node:url';

import { BASE_URL, command, prompt } from '../world/client.mjs';
import { launch, person } from './browser.mjs';

const SCREENS = fileURLToPath(new URL('../../docs/screens/', import.meta.url));
const WIDE = { width: 1440, height: 1000 };
const PHONE = { width: 390, height: 844 };
const EMAIL = 'ada@example.com';
const PASSWORD = randomUUID();

/** Runs one turn of a conversation, streamed and billed; returns the request's id. `tokens` is the size of its history: usage
 * that a request cannot cause would be capped, and the receipt would say so. */
async function turn(key, session, model, marker, tokens) {
  const answer = await fetch(`${BASE_URL}/v1/messages`, {
    method: 'POST',
    headers: { 'x-api-key': key, 'content-type': 'application/json', 'x-session-id': session },
    body: JSON.stringify({
      model,
      max_tokens: 4_000,
      stream: true,
      system: 'text '.repeat(tokens),
      messages: [{ role: 'user', content: prompt(marker) }],
    }),
  });
  if (answer.status !== 200) throw new Error(await answer.text());
  await answer.text();
  return answer.headers.get('x-request-id');
}

/** Simulates an agent's session: every turn sends the history again, and most of it comes from the cache. */
async function session(key, model, turns) {
  const name = randomUUID();
  let last;
  for (let index = 0; index < turns; index += 1) {
    const [fresh, cached] = [900 + 130 * index, index === 0 ? 0 : 4_000 * index];
    last = await turn(key, name, model, `input=${fresh} cache_read=${cached} output=${300 + 53 * index} delay_ms=40 events=8 gap_ms=15`, fresh + cached);
  }
  return last;
}

const account = spawnSync(
  process.env.MODEL_GATEWAY_BIN,
  ['account', 'create', '--email', EMAIL, '--password-stdin', '--admin', '--json'],
  { input: PASSWORD, encoding: 'utf8' },
);
if (account.status !== 0) throw new Error(account.stderr);
const { account_id: accountId } = JSON.parse(account.stdout);
const { key } = await command('key', 'create', '--account', EMAIL, '--name', 'laptop', '--spend-limit', '400/day');
await command('account', 'top-up', accountId, '500', '--ref', 'invoice 2026-117');
await command('ledger', 'adjust', accountId, '-12.5', '--ref', 'ticket 9', '--reason', 'granted twice by mistake');
await session(key, 'beta-5.2', 3);
await session(key, 'alpha-haiku-4-5-20251001', 4);
await session(key, 'alpha-opus-4-7', 6);
const receipt = await session(key, 'alpha-sonnet-4-6', 4);

const browser = await launch();
try {
  const { page } = await person(browser, { viewport: WIDE });
  await page.goto('/dashboard/sign-in');
  await page.getByLabel('Email', { exact: true }).fill(EMAIL);
  await page.getByLabel('Password', { exact: true }).fill(PASSWORD);
  await page.getByRole('button', { name: 'Sign in', exact: true }).click();
  await page.waitForURL('**/dashboard/operator');
  await page.goto('/dashboard');
  await page.locator('[data-live-state].live').waitFor();
  const keep = async (name) => page.screenshot({ path: `${SCREENS}${name}.png` });
  await keep('overview');
  await page.goto(`/dashboard/activity/${receipt}`);
  await keep('receipt');
  await page.getByRole('link', { name: /^[0-9a-f]{16}$/ }).click();
  await page.locator('figure .chart svg').first().waitFor();
  await keep('conversation');
  await page.goto('/docs/models');
  await keep('catalog');
  await page.goto('/dashboard/spending?range=7d&by=model');
  await page.locator('figure .chart svg').first().waitFor();
  await keep('spending');
  await page.goto('/dashboard/playground');
  // Only the simulated vendor sees what it shall answer.
  const [question, answer] = ['Why is the sky blue?', '[[sim text=\\"Air scatters blue light more than red light.\\" events=5]]'];
  await page.route('**/v1/*', (route) => {
    const postData = route.request().postData()?.replace(question, `${question} ${answer}`);
    return route.continue({ postData });
  });
  await page.getByLabel('Message').fill(question);
  await page.getByRole('button', { name: 'Send', exact: true }).click();
  await page.locator('[data-testid="cost"] a').waitFor();
  await keep('playground');
  await page.goto(`/dashboard/operator/accounts/${accountId}`);
  await keep('operator');
  await page.goto('/dashboard/operator');
  await page.locator('figure .chart svg').first().waitFor();
  await keep('operator-overview');
  await page.emulateMedia({ colorScheme: 'dark' });
  await page.setViewportSize(PHONE);
  await page.goto('/dashboard');
  await page.locator('[data-live-state].live').waitFor();
  await keep('overview-phone-dark');
} finally {
  await browser.close();
}
