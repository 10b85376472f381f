// An account holder's path from sign-up to a revoked key, in a real browser.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, before, test } from 'node:test';

import { BASE_URL, MODELS, credits, prompt } from '../world/client.mjs';
import { launch, look, person } from './browser.mjs';

/** Maximum time between a debit and its appearance on an open page: ten times what is promised, for a busy machine. */
const BALANCE_MS = 10_000;

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser?.close());

const pathOf = (page) => new URL(page.url()).pathname.replace(/(.)\/$/, '$1');

/** The credits in the balance element, as written. */
const shownBalance = async (page) => numberIn(await page.getByTestId('balance').innerText());

function numberIn(text) {
  const found = /\d[\d,]*(?:\.\d+)?/.exec(text);
  assert.ok(found, `no number in ${JSON.stringify(text)}`);
  return Number(found[0].replaceAll(',', ''));
}

async function signUp(page, email, password) {
  await page.goto('/dashboard/sign-up');
  await page.getByLabel('Email', { exact: true }).fill(email);
  await page.getByLabel('Password', { exact: true }).fill(password);
  await page.getByRole('button', { name: 'Sign up', exact: true }).click();
  await page.waitForURL((url) => !url.pathname.includes('sign-up'));
}

async function createKey(page, name) {
  await page.goto('/dashboard/keys');
  await page.getByLabel('Key name', { exact: true }).fill(name);
  await page.getByRole('button', { name: 'Create key', exact: true }).click();
  const text = await page.getByTestId('new-key').innerText();
  return /gw-sk-[0-9A-Za-z]{49}/.exec(text)?.[0] ?? assert.fail(`no key in ${text}`);
}

const askChat = (key) =>
  fetch(`${BASE_URL}/v1/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify(request('beta-5.2')),
  });

const askMessages = (key) =>
  fetch(`${BASE_URL}/v1/messages`, {
    method: 'POST',
    headers: { 'x-api-key': key, 'content-type': 'application/json' },
    body: JSON.stringify(request('alpha-opus-4-7')),
  });

const request = (model) => ({
  model,
  [model.startsWith('beta-') ? 'max_completion_tokens' : 'max_tokens']: 200,
  messages: [{ role: 'user', content: prompt('input=2000 output=100') }],
});

/** Sends a request and checks that the open page shows the new balance soon, without a reload. */
async function balanceFollows(page, key, ask) {
  const before = await shownBalance(page);
  const answer = await ask(key);
  assert.equal(answer.status, 200, await answer.text());
  const cost = Number(answer.headers.get('x-gateway-credits'));
  assert.ok(cost > 0);

  const shown = new Intl.NumberFormat('en', { maximumFractionDigits: 6 }).format(before - cost);
  await page.waitForFunction(
    (text) => document.querySelector('[data-testid="balance"]').innerText.replaceAll(/[^\d.]/g, '') === text,
    shown,
    { timeout: BALANCE_MS },
  );
  assert.equal(Number((await credits(key)).balance), Number(shown));
}

test('an account holder signs up, spends, and revokes', async () => {
  const { page, faults } = await person(browser);
  const email = `${randomUUID()}@example.com`;
  const password = `a long password ${randomUUID()}`;

  await page.goto('/dashboard/sign-up');
  await look(page, 'sign-up');
  await signUp(page, email, password);
  assert.equal(pathOf(page), '/dashboard');
  assert.equal(await shownBalance(page), 300);
  await page.getByTestId('trial').waitFor();
  await look(page, 'overview-new');

  const key = await createKey(page, 'laptop');
  await look(page, 'keys-new');
  const keys = () => page.locator('tbody th.name').count();
  await page.reload();
  assert.ok((await page.getByTestId('new-key').innerText()).includes(key), 'a reload shows the same key');
  assert.equal(await keys(), 1, 'a reload makes no second key');
  await page.goBack();
  await page.goForward();
  assert.equal(await keys(), 1, 'going back and forth makes no second key');
  await page.goto('/dashboard/keys');
  assert.equal(await page.getByTestId('new-key').count(), 0, 'a key is shown once');
  assert.ok(!(await page.content()).includes(key), 'a key is shown once');

  await page.goto('/dashboard');
  await page.evaluate(() => {
    window.notReloaded = true;
  });
  await balanceFollows(page, key, askChat);
  await balanceFollows(page, key, askMessages);
  assert.equal(await page.evaluate(() => window.notReloaded), true, 'the page was reloaded');
  await look(page, 'overview');

  await page.goto('/dashboard/activity');
  const activity = await page.locator('body').innerText();
  for (const model of ['beta-5.2', 'alpha-opus-4-7']) assert.ok(activity.includes(model), `${model} in ${activity}`);
  await look(page, 'activity');
  await page.getByRole('row', { name: /alpha-opus-4-7/ }).getByRole('link').click();
  await page.waitForURL((url) => /\/req_[0-9a-f]{32}$/.test(url.pathname));
  // 2000 × 500 + 100 × 2500, per million
  assert.equal(await page.getByTestId('credits').innerText(), '1.25');
  await look(page, 'receipt');

  await page.goto('/dashboard/keys');
  await page.getByRole('row', { name: /laptop/ }).getByRole('button', { name: 'Revoke' }).click();
  await look(page, 'revoke');
  await page.getByRole('button', { name: 'Revoke key' }).click();
  await page.getByRole('row', { name: /laptop.*revoked/ }).waitFor();
  // The revoked key is refused from the next request on.
  assert.deepEqual([(await askChat(key)).status, (await askMessages(key)).status], [401, 401]);
  await look(page, 'keys-revoked');

  await page.goto('/dashboard');
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByRole('button', { name: 'Sign out' }).waitFor({ state: 'detached' });
  await page.goto('/dashboard');
  assert.equal(pathOf(page), '/dashboard/sign-in');
  await look(page, 'sign-in');

  await page.getByLabel('Email', { exact: true }).fill(email);
  await page.getByLabel('Password', { exact: true }).fill(password);
  await page.getByRole('button', { name: 'Sign in', exact: true }).click();
  await page.getByTestId('balance').waitFor();
  assert.ok((await shownBalance(page)) < 300);
  assert.deepEqual(faults, []);
});

test('another account sees nothing of the first', async () => {
  const first = await person(browser);
  await signUp(first.page, `${randomUUID()}@example.com`, `a long password ${randomUUID()}`);
  const key = await createKey(first.page, 'a name that nobody else uses');
  const answer = await askChat(key);
  assert.equal(answer.status, 200);
  const requestId = answer.headers.get('x-request-id');

  const second = await person(browser);
  await signUp(second.page, `${randomUUID()}@example.com`, `a long password ${randomUUID()}`);
  assert.equal(await shownBalance(second.page), 300);
  for (const path of ['/dashboard', '/dashboard/keys', '/dashboard/activity']) {
    await second.page.goto(path);
    const html = await second.page.content();
    assert.ok(!html.includes('a name that nobody else uses'), path);
    assert.ok(!html.includes(key.slice(0, 10)), path); // the part of a key that pages may show
    assert.ok(!html.includes(requestId), path);
  }
  assert.deepEqual([...first.faults, ...second.faults], []);
});

for (const javaScriptEnabled of [true, false]) {
  test(`the catalog names every model ${javaScriptEnabled ? '' : 'without JavaScript'}`, async () => {
    const { context, page, faults } = await person(browser, { javaScriptEnabled });
    const answer = await page.goto('/docs#models');
    assert.equal(answer.status(), 200);
    assert.ok(answer.headers()['content-security-policy'], 'a content security policy');
    const text = await page.locator('body').innerText();
    for (const model of MODELS) assert.ok(text.includes(model), `${model} in ${text}`);
    if (javaScriptEnabled) await look(page, 'catalog');
    assert.deepEqual(faults, []);
    await context.close();
  });
}
