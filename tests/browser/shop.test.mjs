// The shop in a browser: buy credits and see them appear, read the receipts, set automatic top-up, redeem a code; without
// JavaScript on a phone, and with it. Stripe's pages are played, and its API is the simulator's.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { after, before, test } from 'node:test';

import { BASE_URL, actAtStripe, command, eventually, stripeUrl } from '../world/client.mjs';
import { judge, launch, person } from './browser.mjs';

const SECRET = 'whsec_sdk'; // as tests/world/run.mjs has it
const STRIPE_URL = stripeUrl();
const PHONE = { width: 390, height: 844 };

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser?.close());

/** Delivers all events that Stripe has not delivered. */
async function deliver() {
  for (const { body, signature } of await actAtStripe('deliveries', { secret: SECRET })) {
    const headers = { 'stripe-signature': signature };
    const answer = await fetch(`${BASE_URL}/webhooks/stripe`, { method: 'POST', body, headers });
    assert.equal(answer.status, 200, body);
  }
}

/** A person with an account, whose browser shows as Stripe's page one with a link back to the shop. */
async function shopper(args = [], options = {}) {
  const who = await person(browser, options);
  await who.context.route(/^https:\/\/checkout\.stripe\.com\//, async (route) => {
    const [, id] = route.request().url().match(/\/c\/pay\/(\w+)/);
    const answer = await fetch(`${STRIPE_URL}/v1/checkout/sessions/${id}`, { headers: { authorization: 'Bearer sk_test_sdk' } });
    const { success_url: back } = await answer.json();
    const body = `<!doctype html><title>Stripe</title><a href="${back.replaceAll('&', '&amp;')}">Back to the shop</a>`;
    await route.fulfill({ contentType: 'text/html', body });
  });
  const [email, password] = [`${randomUUID()}@example.com`, `a long password ${randomUUID()}`];
  const create = ['account', 'create', '--email', email, '--password-stdin', '--json', ...args];
  const { account_id: id } = JSON.parse(execFileSync(process.env.MODEL_GATEWAY_BIN, create, { input: password }));
  const { page, faults } = who;
  await page.goto('/dashboard/sign-in');
  await page.getByLabel('Email', { exact: true }).fill(email);
  await page.getByLabel('Password', { exact: true }).fill(password);
  await page.getByRole('button', { name: 'Sign in', exact: true }).click();
  await page.waitForURL((url) => !url.pathname.includes('sign-in'));
  const expected = /^request to https:\/\/checkout\.stripe\.com\/|Failed to load resource: .* status of 422/;
  const ownFaults = () => faults.filter((fault) => !expected.test(fault));
  return { ...who, id, email, ownFaults };
}

/** Does something on Stripe's page as the person, and goes back. Returns what Stripe answers. */
async function atStripe(page, what) {
  await page.waitForURL(/checkout\.stripe\.com/);
  const done = await actAtStripe(what, { session: page.url().match(/\/c\/pay\/(\w+)/)[1] });
  await page.getByRole('link', { name: 'Back to the shop' }).click();
  await page.waitForURL((url) => url.pathname === '/dashboard/credits');
  return done;
}

test('credits are bought on a phone without JavaScript, appear by themselves, and have both receipts', async () => {
  const { page, context, ownFaults } = await shopper(['--no-trial'], { javaScriptEnabled: false, viewport: PHONE });
  await page.getByText('Menu', { exact: true }).click();
  await page.getByRole('link', { name: 'Credits', exact: true }).click();
  await page.getByLabel('Amount', { exact: true }).fill('12.50');
  await page.getByRole('button', { name: 'Continue to payment' }).click();
  await atStripe(page, 'pay');
  await page.getByText('Waiting for the payment.').waitFor();
  assert.equal(await page.getByTestId('balance').innerText(), '0');
  await deliver();
  await page.getByText('1250 credits were added to your balance.').waitFor();
  assert.match(await page.getByTestId('balance').innerText(), /1.?250/);
  const fits = () => page.evaluate(() => document.documentElement.scrollWidth <= window.innerWidth);
  assert.ok(await fits(), 'the page of credits is too wide');
  await page.getByRole('link', { name: 'Receipt', exact: true }).click();
  const receipt = await page.getByTestId('payment-receipt').innerText();
  for (const part of [/Number\s+pay_[0-9a-f]{32}/, /Paid\s+20\d\d-/, /Credits\s+1250\b/, /Total\s+12\.50 USD/, /Status\s+Paid/]) {
    assert.match(receipt, part);
  }
  assert.ok(await fits(), 'the receipt is too wide');
  // A browser without a network does not follow this to the page that is played.
  const link = await page.getByRole('link', { name: 'Receipt of the payment provider' }).getAttribute('href');
  const leads = await page.request.get(link, { maxRedirects: 0 });
  assert.match(leads.headers().location, /^https:\/\/pay\.stripe\.com\/receipts\/\w+$/);
  assert.deepEqual(ownFaults(), []);
  await context.close();
});

test('automatic top-up charges the saved card; a code is redeemed; the pages keep the rules', async () => {
  const { page, context, ownFaults, id } = await shopper(['--no-trial', '--admin']);
  const nextYear = `${new Date().getUTCFullYear() + 1}-12-31`;
  const { codes } = await command('codes', 'create', '--credits', '50', '--count', '1', '--expires', nextYear, '--per-account', '1');
  await page.goto('/dashboard/credits');
  await page.getByLabel('Code', { exact: true }).fill(codes[0]);
  await page.getByRole('button', { name: 'Redeem', exact: true }).click();
  await page.getByText('50.00 credits were added to your balance.').waitFor();
  const auto = page.getByTestId('auto');
  await auto.getByLabel('When the balance is below').fill('100');
  await auto.getByLabel('Charge, in USD').fill('10');
  await auto.getByLabel('At most per month').fill('5');
  await auto.getByRole('button', { name: 'Save and enter a card' }).click();
  await auto.getByText('The most per month must be at least one amount.').waitFor();
  await auto.getByLabel('At most per month').fill('30');
  await auto.getByRole('button', { name: 'Save and enter a card' }).click();
  await atStripe(page, 'set_up');
  await deliver();
  await auto.getByText('Visa ending in 4242 is charged 10.00 USD when the balance is below 100 credits').waitFor();
  await eventually('the charge', async () => {
    await page.reload();
    return (await page.getByTestId('payments').innerText()).includes('automatic');
  });
  assert.match(await auto.innerText(), /This month: 10\.00 USD/);
  assert.match(await page.getByTestId('balance').innerText(), /1.?050/);
  await judge(page, 'shop-credits', '/dashboard/credits');
  const receipt = await page.getByRole('link', { name: 'Receipt', exact: true }).getAttribute('href');
  await judge(page, 'shop-receipt', receipt);
  const payment = `/dashboard/operator/payments/${receipt.split('/').at(-1)}`;
  for (const [name, path] of [
    ['payments', '/dashboard/operator/payments'],
    ['payment', payment],
    ['codes', '/dashboard/operator/codes'],
  ]) {
    await judge(page, `shop-operator-${name}`, path);
  }
  await page.goto(`/dashboard/operator/accounts/${id}`);
  assert.match(await page.getByTestId('auto-topup').innerText(), /^on; 10\.00 USD when the balance is below 100 credits/);
  await page.goto(`/dashboard/operator/audit?account=${id}`);
  assert.match(await page.locator('main').innerText(), /saved a card and turned automatic top-up on/);
  await page.goto('/dashboard/credits');
  await auto.getByRole('button', { name: 'Remove Visa ending in 4242' }).click();
  await auto.getByText('Automatic top-up is off.').waitFor();
  await auto.getByRole('button', { name: 'Save and enter a card' }).waitFor();
  assert.deepEqual(ownFaults(), []);
  await context.close();
});
