// Signs in with an identity provider, as a person does: the button, the provider's page, and the way back. The provider is
// oidc-provider, a certified server; what only a provider that lies can answer is in src/sidecar/tests/providers.rs.

import assert from 'node:assert/strict';
import { generateKeyPairSync } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { after, before, test } from 'node:test';

import { Provider } from 'oidc-provider';

import { BASE_URL, command, eventually } from '../world/client.mjs';
import { judge, launch, person } from './browser.mjs';

const PASSWORD = 'a long password of theirs';
const CONFIG = process.env.GATEWAY_CONFIG;

/** What the provider knows of the person who signs in. */
const who = { sub: 's1', email: 'linked@example.com', email_verified: true, groups: [] };

let keys = 0;
function signingKey() {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  keys += 1;
  return { ...privateKey.export({ format: 'jwk' }), kid: `key-${keys}`, use: 'sig', alg: 'RS256' };
}

/** A provider with a new key, whose page has one link, which signs `who` in. */
function provider(issuer) {
  const made = new Provider(issuer, {
    clients: [
      {
        client_id: 'gateway',
        client_secret: 'secret',
        redirect_uris: [`${BASE_URL}/dashboard/sign-in/company/callback`],
        grant_types: ['authorization_code'],
        response_types: ['code'],
      },
    ],
    claims: { openid: ['sub'], email: ['email', 'email_verified'], groups: ['groups'] },
    conformIdTokenClaims: false,
    cookies: { keys: ['a key of the cookies'] },
    jwks: { keys: [signingKey()] },
    features: { devInteractions: { enabled: false } },
    findAccount: (_context, accountId) => ({ accountId, claims: () => ({ ...who }) }),
    interactions: { url: (_context, { uid }) => `/who/${uid}` },
    // The company has agreed to the gateway for all its people.
    loadExistingGrant: async ({ oidc }) => {
      const grant = new oidc.provider.Grant({ clientId: oidc.client.clientId, accountId: oidc.session.accountId });
      grant.addOIDCScope('openid email groups');
      await grant.save();
      return grant;
    },
  });
  const answer = made.callback();
  return (request, response) => {
    const [, page, uid, isSure] = request.url.split('/');
    if (page !== 'who') return answer(request, response);
    if (isSure) return made.interactionFinished(request, response, { login: { accountId: who.sub } });
    return response.setHeader('content-type', 'text/html').end(`<title>Company</title><a href="/who/${uid}/yes">Yes, it is me</a>`);
  };
}

let browser;
let handler;
let issuer;
const server = createServer((request, response) => handler(request, response));
const config = readFileSync(CONFIG, 'utf8');
before(async () => {
  browser = await launch();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  issuer = `http://127.0.0.1:${server.address().port}`;
  handler = provider(issuer);
  const company = { id: 'company', kind: 'oidc', issuer, client_id: 'gateway', client_secret: 'secret' };
  const groups = { scopes: ['groups'], roles: { 'llm-admins': 'operator' } };
  writeFileSync(CONFIG, `${config}sign_in: ${JSON.stringify({ providers: [{ ...company, ...groups }] })}\n`);
  await eventually('the button', async () => {
    const page = await (await fetch(`${BASE_URL}/dashboard/sign-in`)).text();
    return page.includes('Continue with Company');
  });
});
after(async () => {
  writeFileSync(CONFIG, config);
  server.closeAllConnections();
  server.close();
  await browser?.close();
});

/** Opens an account with a password. */
async function signUp(email) {
  const body = new URLSearchParams({ email, password: PASSWORD });
  const signedUp = await fetch(`${BASE_URL}/dashboard/sign-up`, { method: 'POST', body, redirect: 'manual' });
  assert.equal(signedUp.status, 303);
}

/** Signs in with the provider, in a browser that knows neither it nor the gateway, up to the gateway's next page. */
async function signIn(look = async () => {}) {
  const { context, page, faults } = await person(browser);
  const answers = [];
  page.on('response', (response) => {
    if (response.url().includes('/company/callback')) answers.push({ url: response.url(), status: response.status() });
  });
  await page.goto('/dashboard/sign-in');
  await look(page);
  await page.getByRole('button', { name: 'Continue with Company' }).click();
  await page.getByRole('link', { name: 'Yes, it is me' }).click();
  await page.waitForURL((url) => url.origin === BASE_URL);
  const own = () => faults.filter((fault) => !fault.includes(issuer) && !/favicon/.test(fault));
  return { context, page, own, answer: answers.at(-1) };
}

/** Signs in, up to the first page of the dashboard. */
async function signedIn() {
  const made = await signIn();
  await made.page.getByRole('button', { name: 'Sign out' }).waitFor();
  return made;
}

/** Signs in, and returns whether the operator pages are there for the person. */
async function isOperator() {
  const { context, page } = await signedIn();
  const answer = await page.goto('/dashboard/operator');
  await context.close();
  return answer.status() === 200;
}

test('a person links the account once by its password, and then signs in with the provider', async () => {
  await signUp(who.email);
  for (const isFirst of [true, false]) {
    const { context, page, own } = await signIn((page) => isFirst && judge(page, 'sign-in-provider', '/dashboard/sign-in'));
    if (isFirst) {
      await page.getByRole('heading', { name: 'Link Company to your account' }).waitFor();
      await judge(page, 'link-provider', page.url());
      await page.getByLabel('Password').fill(PASSWORD);
      await page.getByRole('button', { name: 'Link and sign in' }).click();
    }
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
    await page.goto('/dashboard/account');
    await page.getByRole('heading', { name: 'Linked providers' }).waitFor();
    assert.deepEqual(own(), []);
    await context.close();
  }
});

test('a group gives the role of an operator, and who loses it loses the role', async () => {
  // The last administrator who can sign in would stay one.
  const root = 'other-root@example.com';
  await signUp(root);
  await command('account', 'role', root, 'operator');
  const roles = [];
  for (const groups of [[], ['llm-admins'], ['llm-readers']]) {
    who.groups = groups;
    roles.push(await isOperator());
  }
  assert.deepEqual(roles, [false, true, false]);
});

test('an answer of the provider counts once', async () => {
  const { context, page, answer } = await signedIn();
  const again = await page.goto(answer.url);
  assert.equal(again.status(), 400);
  await page.getByText('Begin again').first().waitFor();
  await context.close();
});

test('a person is known by the subject, whatever the address, and by the newest key', async () => {
  who.email = 'renamed@example.com';
  handler = provider(issuer);
  const { context, page } = await signedIn();
  await page.goto('/dashboard/account');
  await page.getByText('linked@example.com').first().waitFor();
  await context.close();
});

test('somebody new whose address is not verified is not let in', async () => {
  Object.assign(who, { sub: 's2', email: 'new@example.com', email_verified: false });
  const { context, page, answer } = await signIn();
  assert.equal(answer.status, 403);
  await page.goto('/dashboard');
  assert.match(page.url(), /\/dashboard\/sign-in/);
  await context.close();
});
