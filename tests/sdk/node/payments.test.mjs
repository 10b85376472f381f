// The shop with Stripe's own library: it creates and reads sessions at the simulated Stripe, and signs and checks webhooks, in both
// directions.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { test } from 'node:test';

import Stripe from 'stripe';

import { BASE_URL, actAtStripe, command, stripeUrl } from './harness.mjs';

const SECRET = 'whsec_sdk'; // as tests/world/run.mjs has it
const STRIPE_URL = stripeUrl();
const { hostname: host, port } = new URL(STRIPE_URL);
const stripe = new Stripe('sk_test_sdk', { host, port, protocol: 'http', maxNetworkRetries: 0, telemetry: false });

const sessionOf = (changes = {}) => ({
  mode: 'payment',
  success_url: 'https://shop.example/',
  line_items: [{ quantity: 1, price_data: { currency: 'usd', unit_amount: 1000, product_data: { name: 'Credits' } } }],
  ...changes,
});

test('the library creates, reads and expires a session', async () => {
  const idempotencyKey = randomUUID();
  const made = await stripe.checkout.sessions.create(sessionOf(), { idempotencyKey });
  const again = await stripe.checkout.sessions.create(sessionOf(), { idempotencyKey });
  assert.deepEqual([made.id, made.status, made.amount_total], [again.id, 'open', 1000]);
  const other = stripe.checkout.sessions.create(sessionOf({ metadata: { a: 'b' } }), { idempotencyKey });
  await assert.rejects(other, { type: 'StripeIdempotencyError' });
  const unknown = stripe.checkout.sessions.create(sessionOf({ colour: 'red' }));
  await assert.rejects(unknown, { type: 'StripeInvalidRequestError', param: 'colour', code: 'parameter_unknown' });
  assert.equal((await stripe.checkout.sessions.expire(made.id)).status, 'expired');
  const read = await stripe.checkout.sessions.retrieve(made.id, { expand: ['payment_intent.latest_charge'] });
  assert.deepEqual([read.status, read.payment_intent], ['expired', null]);
});

test('the gateway takes what the library signs, and the library what the simulator signs', async () => {
  const email = `${randomUUID()}@example.com`;
  const post = (path, form, cookie = '') =>
    fetch(`${BASE_URL}${path}`, { method: 'POST', body: new URLSearchParams(form), headers: { cookie }, redirect: 'manual' });
  const signedUp = await post('/dashboard/sign-up', { email, password: 'a long password' });
  const cookie = signedUp.headers.get('set-cookie').split(';')[0];
  const page = await (await fetch(`${BASE_URL}/dashboard/credits`, { headers: { cookie } })).text();
  const [, csrf] = page.match(/name="csrf" value="([0-9a-f]{64})"/);
  const ordered = await post('/dashboard/credits', { csrf, amount: '10' }, cookie);
  const [, order] = ordered.headers.get('location').match(/order=(\w+)/);
  const { data } = await stripe.checkout.sessions.list({ limit: 20 });
  const session = data.find((it) => it.client_reference_id === order);
  await actAtStripe('pay', { session: session.id });
  const events = await actAtStripe('deliveries', { secret: SECRET });
  const paid = events.find(({ type, body }) => type === 'checkout.session.completed' && body.includes(session.id));

  assert.equal(stripe.webhooks.constructEvent(paid.body, paid.signature, SECRET).data.object.id, session.id);
  const foreign = () => stripe.webhooks.constructEvent(paid.body, paid.signature, 'whsec_of_another_endpoint');
  assert.throws(foreign, { type: 'StripeSignatureVerificationError' });

  const balance = async () => Number((await command('account', 'show', email)).balance);
  const deliver = async (options) => {
    const signature = stripe.webhooks.generateTestHeaderString({ payload: paid.body, secret: SECRET, ...options });
    const headers = { 'stripe-signature': signature };
    return (await fetch(`${BASE_URL}/webhooks/stripe`, { method: 'POST', body: paid.body, headers })).status;
  };
  const before = await balance();
  assert.equal(await deliver({ secret: 'whsec_of_another_endpoint' }), 400);
  assert.equal(await deliver({ timestamp: Math.floor(Date.now() / 1000) - 301 }), 400);
  assert.equal(await balance(), before);
  assert.deepEqual([await deliver({}), await deliver({})], [200, 200]);
  assert.equal(await balance(), before + 1000);
});
