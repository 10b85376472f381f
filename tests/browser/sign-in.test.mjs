// Signs in with an identity provider, as a person does: the button, the provider's page, and the way back.

import assert from 'node:assert/strict';
import { createHash, generateKeyPairSync, sign } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { after, before, test } from 'node:test';

import { BASE_URL, eventually } from '../world/client.mjs';
import { judge, launch, person } from './browser.mjs';

const PASSWORD = 'a long password of theirs';
const CONFIG = process.env.GATEWAY_CONFIG;

const base64 = (value) => Buffer.from(typeof value === 'string' ? value : JSON.stringify(value)).toString('base64url');

/** A provider on this machine whose page has one button, which signs `email` in. */
function provider(email) {
  const { publicKey, privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  const grants = new Map();
  const idToken = (issuer, nonce) => {
    const now = Math.floor(Date.now() / 1000);
    const claims = { iss: issuer, aud: 'gateway', sub: email, nonce, iat: now, exp: now + 60, email, email_verified: true };
    const signed = `${base64({ alg: 'RS256', kid: '1' })}.${base64(claims)}`;
    return `${signed}.${sign('sha256', Buffer.from(signed), privateKey).toString('base64url')}`;
  };
  const server = createServer(async (request, response) => {
    const issuer = `http://${request.headers.host}`;
    const url = new URL(request.url, issuer);
    const json = (value) => response.setHeader('content-type', 'application/json').end(JSON.stringify(value));
    const pages = {
      '/.well-known/openid-configuration': () =>
        json({
          issuer,
          authorization_endpoint: `${issuer}/authorize`,
          token_endpoint: `${issuer}/token`,
          jwks_uri: `${issuer}/keys`,
        }),
      '/keys': () => json({ keys: [{ ...publicKey.export({ format: 'jwk' }), kid: '1', use: 'sig' }] }),
      '/authorize': () => {
        const asked = Object.fromEntries(url.searchParams);
        grants.set(`code-${grants.size}`, asked);
        const back = `${asked.redirect_uri}?code=code-${grants.size - 1}&state=${asked.state}`;
        response.setHeader('content-type', 'text/html').end(`<title>Company</title><a href="${back}">Yes, it is me</a>`);
      },
      '/token': async () => {
        const form = new URLSearchParams(Buffer.concat(await request.toArray()).toString());
        const asked = grants.get(form.get('code'));
        grants.delete(form.get('code'));
        const challenge = createHash('sha256').update(form.get('code_verifier')).digest('base64url');
        const isGood = asked?.code_challenge === challenge && asked.redirect_uri === form.get('redirect_uri');
        json(isGood ? { id_token: idToken(issuer, asked.nonce), access_token: 'a' } : { error: 'invalid_grant' });
      },
    };
    await (pages[url.pathname] ?? (() => response.writeHead(404).end()))();
  });
  return new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(server)));
}

let browser;
let server;
const config = readFileSync(CONFIG, 'utf8');
before(async () => {
  browser = await launch();
  server = await provider('linked@example.com');
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const company = { id: 'company', kind: 'oidc', issuer, client_id: 'gateway', client_secret: 'secret' };
  writeFileSync(CONFIG, `${config}sign_in: ${JSON.stringify({ providers: [company] })}\n`);
  await eventually('the button', async () => {
    const page = await (await fetch(`${BASE_URL}/dashboard/sign-in`)).text();
    return page.includes('Continue with Company');
  });
});
after(async () => {
  writeFileSync(CONFIG, config);
  server?.close();
  await browser?.close();
});

test('a person links the account once by its password, and then signs in with the provider', async () => {
  const body = new URLSearchParams({ email: 'linked@example.com', password: PASSWORD });
  const signedUp = await fetch(`${BASE_URL}/dashboard/sign-up`, { method: 'POST', body, redirect: 'manual' });
  assert.equal(signedUp.status, 303);
  for (const isFirst of [true, false]) {
    const { context, page, faults } = await person(browser);
    await page.goto('/dashboard/sign-in');
    if (isFirst) await judge(page, 'sign-in-provider', '/dashboard/sign-in');
    await page.getByRole('button', { name: 'Continue with Company' }).click();
    await page.getByRole('link', { name: 'Yes, it is me' }).click();
    if (isFirst) {
      await page.getByRole('heading', { name: 'Link Company to your account' }).waitFor();
      await judge(page, 'link-provider', page.url());
      await page.getByLabel('Password').fill(PASSWORD);
      await page.getByRole('button', { name: 'Link and sign in' }).click();
    }
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
    await page.goto('/dashboard/account');
    await page.getByRole('heading', { name: 'Linked providers' }).waitFor();
    const own = faults.filter((fault) => !/^request to http:\/\/127\.0\.0\.1:\d+\/authorize/.test(fault));
    // A browser asks the provider's page for an icon, which it does not have.
    assert.deepEqual(own.filter((fault) => !/favicon/.test(fault)), []);
    await context.close();
  }
});
