// Set-up pages: a key and a model are chosen, the files are copied whole, and the pasted lines work. With and without JavaScript.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { after, before, test } from 'node:test';

import { MODELS, command } from '../world/client.mjs';
import { judge, launch, person } from './browser.mjs';

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser?.close());

/** A signed-in account holder without a key. */
async function holder(options = {}) {
  const who = await person(browser, options);
  const email = `${randomUUID()}@example.com`;
  await who.page.goto('/dashboard/sign-up');
  await who.page.getByLabel('Email', { exact: true }).fill(email);
  await who.page.getByLabel('Password', { exact: true }).fill(`a long password ${randomUUID()}`);
  await who.page.getByRole('button', { name: 'Sign up', exact: true }).click();
  await who.page.waitForURL((url) => url.pathname === '/dashboard');
  return { ...who, email };
}

test('set-up pages keep the rules of accessibility in both themes, fit a phone, and are light', async () => {
  const { page, email, faults, context } = await holder();
  await judge(page, 'setup-no-key', '/dashboard/setup/codex');
  await command('key', 'create', '--account', email, '--name', 'laptop');
  for (const client of ['aider', 'vscode', 'open-webui', 'curl', 'openai-python']) {
    await judge(page, `setup-${client}`, `/dashboard/setup/${client}`);
  }
  await judge(page, 'setup-fault', '/dashboard/setup/codex?model=nothing');
  // look.test.mjs checks the list, the page of Claude Code, and what readers without an account see.
  assert.deepEqual(faults, []);
  await context.close();
});

test('a holder finds the page of a client in the menu, chooses key and model, and copies a file', async () => {
  const { page, email, faults, context } = await holder({ permissions: ['clipboard-read', 'clipboard-write'] });
  await command('key', 'create', '--account', email, '--name', 'small', '--models', 'beta-5.2,beta-5.5');
  await page.getByRole('link', { name: 'Set up', exact: true }).click();
  await page.getByRole('link', { name: 'Codex', exact: true }).click();
  const models = await page.getByLabel('Model', { exact: true }).locator('option').allInnerTexts();
  assert.deepEqual(models, ['beta-5.2', 'beta-5.5'], 'the models of the key');
  await page.getByLabel('Model', { exact: true }).selectOption('beta-5.5');
  await page.getByRole('button', { name: 'Show', exact: true }).click();
  await page.waitForURL(/model=beta-5\.5/);
  await page.getByRole('button', { name: 'Copy' }).first().click();
  await page.getByText('Copied').first().waitFor();
  const pasted = await page.evaluate(() => navigator.clipboard.readText());
  const { files } = await command('clients', 'codex', '--model', 'beta-5.5');
  assert.equal(pasted.split('\n')[0], 'model = "beta-5.5"');
  assert.equal(pasted.split('\n\n').at(-1), files[0].text.split('\n\n').at(-1), 'the provider');
  assert.ok(!pasted.includes('alpha-'), 'a model that the key cannot use');
  assert.deepEqual(faults, []);
  await context.close();
});

test('without JavaScript, the page of a new key has lines that work as pasted', async () => {
  const { page, context } = await holder({ javaScriptEnabled: false });
  await page.goto('/dashboard/setup/curl');
  await page.getByRole('link', { name: 'Create one' }).click();
  assert.equal(await page.getByLabel('Show the set-up of').inputValue(), 'curl');
  await page.getByLabel('Key name', { exact: true }).fill('laptop');
  await page.getByRole('button', { name: 'Create key', exact: true }).click();
  const set = await page.getByTestId('setup-terminal').innerText();
  const requests = await page.locator('section[aria-labelledby="setup-title"] pre').allInnerTexts();
  const lines = requests.filter((text) => text.startsWith('curl '));
  assert.equal(lines.length, 3, 'one for each surface');
  for (const line of lines) {
    const response = execFileSync('sh', ['-c', `${set}\n${line}`], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
    assert.ok(MODELS.includes(JSON.parse(response).model), response);
    assert.match(response, /Say hello/, 'the simulated vendor repeats the prompt');
  }
  await context.close();
});
