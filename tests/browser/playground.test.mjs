// The playground in a real browser: it streams answers of every model with the holder's own credits, shows what they cost,
// and says what went wrong.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { after, before, test } from 'node:test';

import { BASE_URL, MODELS, command, credits, eventually, prompt, vendorRequests } from '../world/client.mjs';
import { judge, launch, look, person, violations } from './browser.mjs';

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser?.close());

/** A signed-in account holder on the playground. `keys` collects the keys with which the page sends requests. */
async function player(options = {}) {
  const who = await person(browser, options);
  const { page } = who;
  const email = `${randomUUID()}@example.com`;
  await page.goto('/dashboard/sign-up');
  await page.getByLabel('Email', { exact: true }).fill(email);
  await page.getByLabel('Password', { exact: true }).fill(`a long password ${randomUUID()}`);
  await page.getByRole('button', { name: 'Sign up', exact: true }).click();
  await page.waitForURL((url) => url.pathname === '/dashboard');
  const keys = new Set();
  page.on('request', (request) => {
    const key = request.headers().authorization?.replace('Bearer ', '');
    if (key) keys.add(key);
  });
  await page.goto('/dashboard/playground');
  return { ...who, email, keys };
}

const unexpected = (faults) => faults.filter((fault) => !/Failed to load resource: .* status of 4\d\d/.test(fault));

async function ask(page, text) {
  await page.getByLabel('Message').fill(text);
  await page.getByRole('button', { name: 'Send', exact: true }).click();
}

/** The cost of the latest answer, when it has been billed. */
async function latestCost(page, count) {
  const costs = page.locator('[data-testid="cost"] a');
  await page.waitForFunction((wanted) => document.querySelectorAll('[data-testid="cost"] a').length === wanted, count);
  const text = await page.getByTestId('cost').last().innerText();
  return { text, credits: Number(/^[\d.]+/.exec(text)[0]), receipt: await costs.last().getAttribute('href') };
}

test('the playground streams from every model and shows what each answer cost', async () => {
  const { page, email, keys, faults, context } = await player();
  await judge(page, 'playground', '/dashboard/playground');
  let spent = 0;
  for (const [index, model] of MODELS.entries()) {
    await page.locator('select[name="model"]').selectOption(model);
    const question = prompt(`text="Answer ${index} of <b>${model}</b>" events=5 input=1000 output=20`);
    await ask(page, question);
    const { text, credits: cost, receipt } = await latestCost(page, index + 1);
    assert.match(text, /^[\d.]+ credits · input 1000 tokens, output 20 tokens · Receipt$/);
    assert.ok(cost > 0);
    spent += cost;
    const answer = await page.locator('#turns > div').last().innerText();
    assert.ok(answer.includes(`Answer ${index} of <b>${model}</b>`), answer);
    assert.equal(Number(await page.getByTestId('spent').innerText()).toFixed(6), spent.toFixed(6));
    assert.equal(await page.getByLabel('Message').inputValue(), '', 'the field is free for the next question');
    const [seen] = await vendorRequests(question);
    assert.equal(seen.body.messages.filter(({ role }) => role === 'user').length, index + 1, 'the turns before it are sent too');
    assert.ok((await page.request.get(BASE_URL + receipt)).ok(), receipt);
  }
  assert.equal(keys.size, 1, 'one key for the page');
  const [key] = keys;
  const { balance } = await command('account', 'show', email);
  assert.ok(Math.abs(300 - Number(balance) - spent) < 1e-6, 'paid with the own credits');
  assert.deepEqual(await violations(page), []);
  await look(page, 'playground-conversation');
  const storage = await page.evaluate(() => JSON.stringify([localStorage, sessionStorage, document.documentElement.outerHTML]));
  assert.ok(!storage.includes(key), 'the key is in memory only');

  await page.goto('/dashboard/keys');
  await page.getByRole('row', { name: /Playground .* inference only/ }).waitFor();
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.waitForURL((url) => url.pathname === '/dashboard/sign-in');
  await assert.rejects(credits(key), /401/, 'the key ends with the session');
  assert.deepEqual(unexpected(faults), []);
  await context.close();
});

test('an answer that is stopped is billed for what was written', async () => {
  const { page, faults, context } = await player();
  await ask(page, prompt('text="It goes on and on and on and on" events=30 gap_ms=500 input=1000 output=300'));
  await page.waitForFunction(() => document.querySelector('#turns').innerText.includes('It'));
  await page.getByRole('button', { name: 'Stop' }).click();
  await page.getByText('Stopped. You pay for what the model wrote until then.').waitFor();
  const { text, credits: cost } = await latestCost(page, 1);
  assert.ok(cost > 0, text);
  // The conversation goes on.
  await ask(page, prompt('text="Fine" input=10 output=10'));
  await latestCost(page, 2);
  assert.deepEqual(unexpected(faults), []);
  await context.close();
});

test('the playground says what went wrong, and loses no question', async () => {
  const { page, email, keys, faults, context } = await player();
  const fault = page.locator('#fault');
  const refused = async (question, text) => {
    await ask(page, question);
    await page.waitForFunction((wanted) => document.querySelector('#fault').textContent.includes(wanted), text);
    assert.equal(await page.getByLabel('Message').inputValue(), question);
  };
  await page.getByText('System prompt, length, temperature, spend limit').click();
  await page.getByLabel('Spend limit, in credits').fill('1000');
  await refused('one', 'at most 100 credits. (status 422)');
  await page.getByLabel('Spend limit, in credits').fill('0.000001');
  await refused('two', '(status 402)');
  await page.getByLabel('Spend limit, in credits').fill('5');
  await refused(prompt('status=400'), '(status 400)');
  await ask(page, prompt('text="Well" input=10 output=10'));
  await latestCost(page, 1);
  assert.equal(await fault.isVisible(), false);

  // Its key was revoked elsewhere: the page gets a new one.
  const revokeAll = async () => {
    for (const { key_id: id, status } of await command('key', 'list', '--account', email)) {
      if (status === 'active') await command('key', 'revoke', id);
    }
  };
  await revokeAll();
  const before = keys.size;
  await ask(page, prompt('text="Again" input=10 output=10'));
  await latestCost(page, 2);
  assert.equal(keys.size, before + 1);

  const { balance } = await command('account', 'show', email);
  await command('ledger', 'adjust', email, `-${balance}`, '--reason', 'test', '--ref', randomUUID());
  await refused('three', '(status 402)');
  await page.getByRole('button', { name: 'New conversation' }).click();
  assert.equal(await page.locator('#turns > div').count(), 0);
  await context.clearCookies();
  await revokeAll();
  await refused('four', 'Your session has ended.');
  assert.deepEqual(unexpected(faults), []);
  await context.close();
});

test('without JavaScript the playground shows a request that a terminal can send', async () => {
  const { page, email, context } = await player({ javaScriptEnabled: false });
  const { key } = await command('key', 'create', '--account', email, '--name', 'terminal');
  assert.equal(await page.getByRole('button', { name: 'Send', exact: true }).isVisible(), false);
  for (const model of MODELS) {
    await page.locator('select[name="model"]').selectOption(model);
    await page.getByRole('button', { name: 'Show its request' }).click();
    await page.waitForURL((url) => url.searchParams.get('model') === model);
    const line = await page.getByTestId('curl').innerText();
    const answer = execFileSync('bash', ['-c', `${line} -sS`], { env: { ...process.env, GATEWAY_KEY: key }, encoding: 'utf8' });
    assert.equal(JSON.parse(answer).model, model, answer);
  }
  await context.close();
});
