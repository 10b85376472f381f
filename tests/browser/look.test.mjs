// How every page looks, with data in it: on a phone, a tablet and a desk, light and dark, with and without JavaScript. And
// what a reader finds from the overview by the texts of links.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';

import { BASE_URL, command, eventually, prompt } from '../world/client.mjs';
import { PAGE_BYTES_MAX, launch, person, ruleFaults } from './browser.mjs';

const TABLET = 768;
const DESK = 1024;
const WIDTHS = [360, 390, TABLET, DESK, 1440];
/** Widths at which the rules of accessibility are checked: those between have the layout of one of them. */
const RULE_WIDTHS = [360, 1440];
const HEIGHT = 900;
const PASSWORD = 'a long password of theirs';
const CLICKS_MAX = 3;
/** The pages include some that return 404, 410 and 422. */
const EXPECTED = /Failed to load resource: the server responded with a status of (404|410|422)/;

let browser;
let world;
before(async () => {
  browser = await launch();
  world = await fill();
});
after(() => browser?.close());

/** Creates an account that can sign in. */
function account(...args) {
  const email = `somebody-with-a-long-name-${randomUUID()}@example.com`;
  const all = ['account', 'create', '--email', email, '--password-stdin', ...args, '--json'];
  const made = spawnSync(process.env.MODEL_GATEWAY_BIN, all, { input: PASSWORD, encoding: 'utf8' });
  assert.equal(made.status, 0, made.stderr);
  return { email, id: JSON.parse(made.stdout).account_id };
}

async function signIn(page, { email, password = PASSWORD }) {
  await page.goto('/dashboard/sign-in');
  await page.getByLabel('Email', { exact: true }).fill(email);
  await page.getByLabel('Password', { exact: true }).fill(password);
  await page.getByRole('button', { name: 'Sign in', exact: true }).click();
  await page.waitForURL((url) => !url.pathname.includes('sign-in'));
}

/** One billed response; returns its request id. */
async function turn(key, session, marker, model = 'alpha-opus-4-7') {
  const answer = await fetch(`${BASE_URL}/v1/messages`, {
    method: 'POST',
    headers: { 'x-api-key': key, 'content-type': 'application/json', 'x-session-id': session },
    body: JSON.stringify({ model, max_tokens: 200, messages: [{ role: 'user', content: prompt(marker) }] }),
  });
  const text = await answer.text();
  assert.equal(answer.status, 200, text);
  return answer.headers.get('x-request-id');
}

/** An administrator, a viewer and a holder, with something in every table that they see. */
async function fill() {
  const [admin, viewer, guest] = [account('--admin'), account('--viewer'), account()];
  await command('account', 'top-up', admin.id, '12345.678901', '--ref', 'invoice 2026-117');
  await command('ledger', 'adjust', admin.id, '-0.000001', '--ref', 'ticket 9', '--reason', 'granted twice by mistake');
  await command('account', 'invite', '--count', '2');
  const make = (name, ...rest) => command('key', 'create', '--account', admin.email, '--name', name, ...rest);
  const laptop = await make('laptop', '--spend-limit', '400/day', '--requests-per-minute', '600', '--expires-in', '30d');
  const server = await make('n'.repeat(64), '--models', 'beta-5.2,beta-5.5');
  const revoked = await make('revoked');
  const session = randomUUID();
  for (const marker of ['input=2000 output=80', 'input=400 cache_read=2000 output=90', 'input=500 cache_read=4000 output=70']) {
    await turn(laptop.key, session, marker);
  }
  const receipt = await turn(server.key, randomUUID(), 'input=900 output=40', 'beta-5.2');
  const capped = await turn(revoked.key, randomUUID(), 'input=900000000 output=40');
  const estimated = await turn(laptop.key, randomUUID(), 'usage=none');
  await command('key', 'revoke', revoked.key_id);

  const { page, context } = await person(browser);
  await signIn(page, admin);
  await eventually('all responses are in the ledger', async () => {
    await page.goto('/dashboard/activity');
    return (await page.getByRole('link', { name: /^Receipt of/ }).count()) === 6;
  });
  await command('ledger', 'refund', receipt, '--ref', 'ticket 10');
  await page.goto('/dashboard/conversations');
  const conversation = await page.getByRole('link', { name: /^Conversation of/ }).last().getAttribute('href');
  await page.goto('/dashboard/alerts');
  await page.getByLabel('When the balance falls below, in credits').fill('10');
  await page.getByRole('button', { name: 'Save alerts' }).click();
  // A name that no resolver knows: nothing leaves this machine.
  await page.getByLabel('URL', { exact: true }).fill('https://receiver.invalid/hook');
  await page.getByRole('button', { name: 'Save URL' }).click();
  await page.getByRole('button', { name: 'Send a test message' }).click();
  const cookies = { admin: await context.storageState(), public: undefined };
  await context.clearCookies();
  await signIn(page, viewer);
  cookies.viewer = await context.storageState();
  await context.close();

  const { link } = await command('account', 'reset-link', guest.email);
  const key = `/dashboard/keys/${laptop.key_id}`;
  const submit = (name) => async (page) => {
    await page.getByRole('button', { name, exact: true }).click();
    // The click waits for the next page, but not for its style.
    await page.waitForLoadState('load');
  };
  const holderPages = [
    ['overview', '/dashboard'],
    ['keys', '/dashboard/keys'],
    ['key', key],
    ['key-disable', key, submit('Disable key')],
    ['key-revoke', `${key}/revoke`],
    ['setup', '/dashboard/setup'],
    ['setup-claude-code', '/dashboard/setup/claude-code'],
    ['setup-opencode', '/dashboard/setup/opencode'],
    ['playground', '/dashboard/playground'],
    ['activity', '/dashboard/activity'],
    ['activity-filtered', '/dashboard/activity?model=beta-5.2&outcome=completed&from=2026-01-01'],
    ['activity-fault', '/dashboard/activity?from=never'],
    ['receipt', `/dashboard/activity/${receipt}`],
    ['receipt-capped', `/dashboard/activity/${capped}`],
    ['receipt-estimated', `/dashboard/activity/${estimated}`],
    ['conversations', '/dashboard/conversations'],
    ['conversation', conversation],
    ['spending', '/dashboard/spending'],
    ['spending-keys', '/dashboard/spending?range=24h&by=key'],
    ['spending-days', '/dashboard/spending?range=7d&by=day'],
    ['spending-fault', '/dashboard/spending?from=never&to=2026-01-01'],
    ['statement', '/dashboard/statement'],
    ['alerts', '/dashboard/alerts'],
    ['account', '/dashboard/account'],
    ['docs-signed-in', '/docs'],
    ['not-found', '/dashboard/nothing'],
  ];
  const operatorPages = [
    ['operator', '/dashboard/operator'],
    ['operator-accounts', '/dashboard/operator/accounts'],
    ['operator-models', '/dashboard/operator/models'],
    ['operator-none', '/dashboard/operator/search?q=nobody'],
    ['operator-account', `/dashboard/operator/accounts/${admin.id}`],
    ['operator-activity', `/dashboard/operator/accounts/${admin.id}/activity`],
    ['operator-spending', `/dashboard/operator/accounts/${admin.id}/spending`],
    ['operator-receipt', `/dashboard/operator/activity/${receipt}`],
    ['operator-service', '/dashboard/operator/service'],
    ['operator-invites', '/dashboard/operator/invites'],
    ['operator-audit', '/dashboard/operator/audit'],
  ];
  const newAccount = ['operator-new-account', '/dashboard/operator/new-account'];
  const publicPages = [
    ['docs', '/docs'],
    ['docs-client', '/docs/clients/claude-code'],
    ['sign-in', '/dashboard/sign-in'],
    ['sign-up', '/dashboard/sign-up'],
    ['forgot', '/dashboard/forgot'],
    ['link', new URL(link).pathname],
    ['link-gone', '/dashboard/link/unknown'],
  ];
  return { admin, cookies, pages: { admin: [...holderPages, ...operatorPages, newAccount], viewer: operatorPages, public: publicPages } };
}

/** What is wrong with the layout of the open page. It runs in the browser. */
function layoutFaults() {
  const faults = [];
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) faults.push(`the page is ${scrollWidth} px wide`);
  for (const part of document.querySelectorAll('h1, h2, h3, dt, label, button, summary')) {
    if (part.scrollWidth > part.clientWidth + 1 && getComputedStyle(part).overflowX === 'hidden' && !part.closest('.hidden')) {
      faults.push(`cut: ${part.textContent.trim()}`);
    }
  }
  // The header is one line: the name stands beside nothing that wraps.
  const brand = document.querySelector('.brand span');
  if (brand.getClientRects().length !== 1 || brand.offsetHeight > 32) faults.push('the header has more than one line');
  if (innerWidth >= 1024 && document.querySelector('.site .top')?.offsetHeight > 64) faults.push('the header has more than one line');
  const isShown = (element) => element.checkVisibility() && element.getClientRects().length > 0;
  for (const table of document.querySelectorAll('table')) {
    // Between a phone and a desk, a table leaves out columns of which its row's page has more.
    const isExtra = (cell) => cell.matches('.extra') && innerWidth < 1408;
    const headers = [...table.querySelectorAll('thead tr:last-child > th')].filter((header) => !isExtra(header));
    const region = table.closest('.scroll');
    const name = region?.getAttribute('aria-label') ?? 'a table';
    if (!region) faults.push(`${name}: no region that scrolls`);
    if (headers.every(isShown)) continue;
    if (region.scrollWidth > region.clientWidth) faults.push(`${name}: ${region.scrollWidth} px in ${region.clientWidth} px`);
    // Rows of two lines: what, how much and when; the rest is on the page that the row opens.
    if (table.matches('.two')) {
      for (const cell of table.querySelectorAll('tbody :is(.a, .b, .c)')) if (!isShown(cell)) faults.push(`${name}: a line lacks ${cell.className}`);
      if (!table.querySelector('.a')) faults.push(`${name}: no first line`);
      continue;
    }
    for (const row of table.querySelectorAll('tbody tr')) {
      if (row.querySelector('[scope="rowgroup"]')) continue;
      if (row.cells.length !== headers.length) faults.push(`${name}: ${row.cells.length} cells below ${headers.length} headers`);
      for (const [index, cell] of [...row.cells].entries()) {
        if (!cell.textContent.trim() && !cell.childElementCount) continue;
        if (!isShown(cell)) faults.push(`${name}: no cell ${index}`);
        // The first cell opens the row. A bar, a link and a button say what they are.
        const control = cell.querySelector('svg, a, button');
        if (index === 0 || !cell.textContent.trim() || (control && !cell.dataset.label)) continue;
        const label = getComputedStyle(cell, '::before').content;
        if (!cell.dataset.label || label !== JSON.stringify(cell.dataset.label)) {
          faults.push(`${name}: nothing says "${headers[index]?.textContent}"`);
        }
      }
    }
  }
  return [...new Set(faults)];
}

/**
 * Opens pages in one context, and returns all that is wrong with their layout at each width. With JavaScript it also checks the
 * rules of accessibility: all rules at one layout of each kind, stacked and wide, in the light theme. The dark one differs in
 * colours only, which a wide page has all of except those of its menu on a phone. A viewer's pages are an administrator's,
 * without the forms.
 */
async function findFaults(audience, { colorScheme, javaScriptEnabled }) {
  const options = { colorScheme, javaScriptEnabled, reducedMotion: 'reduce', storageState: world.cookies[audience] };
  const { page, faults: consoleFaults, context } = await person(browser, options);
  const network = await context.newCDPSession(page);
  await network.send('Network.enable');
  await network.send('Network.setCacheDisabled', { cacheDisabled: true });
  let bytes = 0;
  network.on('Network.loadingFinished', ({ encodedDataLength }) => {
    bytes += encodedDataLength;
  });
  const found = [];
  for (const [name, path, act] of world.pages[audience]) {
    const add = (size, faults) => found.push(...faults.map((fault) => `${audience}, ${name}, ${size}: ${fault}`));
    bytes = 0;
    await page.goto(path, { waitUntil: 'load' });
    if (bytes === 0 || bytes > PAGE_BYTES_MAX) add('transfer', [`${bytes} bytes`]);
    if (act) await act(page);
    await page.evaluate(() => document.querySelectorAll('main details').forEach((part) => { part.open = true; }));
    for (const width of WIDTHS) {
      await page.setViewportSize({ width, height: HEIGHT });
      add(`${width} px`, await page.evaluate(layoutFaults));
      await keep(page, `${audience}-${name}-${width}-${colorScheme}${javaScriptEnabled ? '' : '-static'}`);
      if (!javaScriptEnabled || audience === 'viewer' || !RULE_WIDTHS.includes(width)) continue;
      add(`${width} px`, await ruleFaults(page));
      if (width < TABLET && path !== world.pages[audience][0][1]) continue;
      await page.emulateMedia({ colorScheme: 'dark' });
      add(`${width} px, dark`, await ruleFaults(page, { coloursOnly: true }));
      await page.emulateMedia({ colorScheme });
    }
  }
  found.push(...consoleFaults.filter((fault) => !EXPECTED.test(fault)).map((fault) => `${audience}: ${fault}`));
  await context.close();
  return found;
}

async function keep(page, name) {
  if (!process.env.SCREENSHOT_DIR) return;
  mkdirSync(process.env.SCREENSHOT_DIR, { recursive: true });
  await page.screenshot({ path: join(process.env.SCREENSHOT_DIR, `look-${name}.png`), fullPage: true });
}

// A layout depends on the theme as little as on scripts, so two pairs have all four.
describe('every page is whole at three widths, keeps the rules of accessibility, and is light', { concurrency: 2 }, () => {
  for (const [colorScheme, javaScriptEnabled] of [['light', true], ['dark', false]]) {
    test(`${colorScheme}, ${javaScriptEnabled ? 'with' : 'without'} JavaScript`, async () => {
      const found = [];
      for (const audience of ['admin', 'viewer', 'public']) {
        found.push(...(await findFaults(audience, { colorScheme, javaScriptEnabled })));
      }
      assert.deepEqual(found, []);
    });
  }
});

test('the layout is looked at: a lost column and a page that is too wide are found out', async () => {
  const { page, context } = await person(browser, { storageState: world.cookies.admin, viewport: { width: 360, height: HEIGHT } });
  await page.goto('/dashboard/operator/models');
  assert.deepEqual(await page.evaluate(layoutFaults), []);
  await page.evaluate(() => document.querySelectorAll('td[data-label="Input"]').forEach((cell) => cell.removeAttribute('data-label')));
  assert.match((await page.evaluate(layoutFaults)).join('\n'), /nothing says "Input"/);
  await page.evaluate(() => { document.querySelector('td[data-label="Output"]').style.display = 'none'; });
  assert.match((await page.evaluate(layoutFaults)).join('\n'), /no cell 7/);
  await page.evaluate(() => { document.querySelector('h1').style.width = '500px'; });
  assert.match((await page.evaluate(layoutFaults)).join('\n'), /the page is \d+ px wide/);
  await context.close();
});

/** Goes from the overview along links and buttons, and fails if they are more than CLICKS_MAX. */
async function follow(page, width, names) {
  await page.setViewportSize({ width, height: HEIGHT });
  await page.goto('/dashboard');
  let clicks = 0;
  for (const name of names) {
    const place = page.getByRole('link', { name, exact: typeof name === 'string' }).first();
    if (!(await place.isVisible())) {
      await page.getByText('Menu', { exact: true }).click();
      clicks += 1;
    }
    await place.click();
    clicks += 1;
  }
  assert.ok(clicks <= CLICKS_MAX, `${clicks} clicks: ${names.join(', ')}`);
  return clicks;
}

for (const width of [360, 1440]) {
  test(`at ${width} px, the texts of links lead to what a holder looks for`, async () => {
    const guest = account();
    const { key } = await command('key', 'create', '--account', guest.email, '--name', 'laptop');
    await turn(key, randomUUID(), 'usage=none');
    const { page, faults, context } = await person(browser);
    await signIn(page, guest);

    // What last month cost, by key.
    await follow(page, width, ['Last month by key']);
    const today = new Date();
    const month = new Date(Date.UTC(today.getUTCFullYear(), today.getUTCMonth() - 1)).toISOString().slice(0, 7);
    assert.match(await page.locator('#sum-title').innerText(), new RegExp(`^${month}-01 to ${month}-\\d\\d`));
    assert.equal(await page.getByRole('navigation', { name: 'Division' }).locator('[aria-current]').innerText(), 'By key');

    // Why a receipt says "estimated".
    await follow(page, width, [/^Receipt of/, 'estimated']);
    assert.match(new URL(page.url()).hash, /^#estimated$/);
    assert.ok(await page.getByRole('heading', { name: 'Estimated costs' }).isVisible());

    // How to set up each client.
    await follow(page, width, ['Set up']);
    const clients = await page.getByRole('region', { name: 'Clients by kind' }).getByRole('link').allInnerTexts();
    assert.ok(clients.length >= 20, `${clients.length} clients`);
    // The way to the list is the same for all clients, and so are their pages at each width.
    for (const [index, client] of (width < TABLET ? clients.slice(0, 1) : clients).entries()) {
      if (index === 0) await follow(page, width, ['Set up', client]);
      else await page.getByRole('link', { name: client, exact: true }).click();
      assert.equal(await page.locator('h1').innerText(), `Set up ${client}`);
      assert.ok((await page.locator('main pre').count()) > 0, client);
      await page.getByRole('link', { name: '← Set up' }).click();
    }

    // A new password. Its button is the last click.
    const clicks = await follow(page, width, ['Account']);
    assert.ok(clicks < CLICKS_MAX);
    const password = `another ${PASSWORD}`;
    await page.getByLabel('Current password', { exact: true }).fill(PASSWORD);
    await page.getByLabel('New password', { exact: true }).fill(password);
    await page.getByRole('button', { name: 'Change password', exact: true }).click();
    await page.getByRole('status').first().waitFor();
    await context.clearCookies();
    await signIn(page, { ...guest, password });
    assert.deepEqual(faults, []);
    await context.close();
  });
}
