// The pages of account holders: filters, receipts, conversations, charts, the live overview, the catalog; on a phone, in
// dark mode, by keyboard, without JavaScript, without credit.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';

import { BASE_URL, MODELS, command, eventually, prompt } from '../world/client.mjs';
import { exactCredits, launch, look, person, violations } from './browser.mjs';

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser?.close());

/** A signed-in account holder with a key. */
async function holder(options = {}) {
  const who = await person(browser, options);
  const email = `${randomUUID()}@example.com`;
  const { page } = who;
  await page.goto('/dashboard/sign-up');
  await page.getByLabel('Email', { exact: true }).fill(email);
  await page.getByLabel('Password', { exact: true }).fill(`a long password ${randomUUID()}`);
  await page.getByRole('button', { name: 'Sign up', exact: true }).click();
  await page.waitForURL((url) => url.pathname === '/dashboard');
  const { key, key_id: keyId } = await command('key', 'create', '--account', email, '--name', 'laptop');
  return { ...who, email, key, keyId };
}

/** One turn of a conversation on the messages surface, with its response billed. */
async function turn(key, session, marker, model = 'alpha-opus-4-7') {
  const answer = await fetch(`${BASE_URL}/v1/messages`, {
    method: 'POST',
    headers: { 'x-api-key': key, 'content-type': 'application/json', 'x-session-id': session },
    body: JSON.stringify({ model, max_tokens: 200, messages: [{ role: 'user', content: prompt(marker) }] }),
  });
  const text = await answer.text();
  assert.equal(answer.status, 200, text);
  const requestId = answer.headers.get('x-request-id');
  const receipt = await fetch(`${BASE_URL}/v1/receipts/${requestId}`, { headers: { 'x-api-key': key } });
  assert.equal(receipt.status, 200);
  return { requestId, ...(await receipt.json()) };
}

test('the rules are looked at: a page that breaks one is found out', async () => {
  const { page, context } = await person(browser);
  await page.goto('/dashboard/sign-in');
  await page.evaluate(() => document.querySelector('label[for="email"]').remove());
  assert.match((await violations(page)).join('\n'), /label/);
  await context.close();
});

test('activity is filtered by an address, paged, and downloaded', async () => {
  const { page, key, email, keyId, faults, context } = await holder();
  const { key: other } = await command('key', 'create', '--account', email, '--name', 'server');
  await turn(key, randomUUID(), 'input=1000 output=10');
  const mine = await turn(other, randomUUID(), 'input=3000 cache_read=1000 output=20', 'beta-5.2');
  await page.goto('/dashboard/activity');
  const rows = page.getByRole('region', { name: 'Responses' }).getByRole('link', { name: /^Receipt of/ });
  assert.equal(await rows.count(), 2);

  await page.getByLabel('Model', { exact: true }).selectOption('beta-5.2');
  await page.getByRole('button', { name: 'Filter', exact: true }).click();
  await page.waitForURL(/model=beta-5\.2/);
  assert.equal(await rows.count(), 1);
  const download = page.waitForEvent('download');
  await page.getByRole('link', { name: 'Download as CSV' }).click();
  const lines = readFileSync(await (await download).path(), 'utf8').trimEnd().split('\r\n');
  assert.equal(lines.length, 2);
  assert.ok(lines[1].includes(mine.requestId) && lines[1].includes(`,${mine.credits},`), lines[1]);

  for (const [query, count] of [
    [`key=${keyId}`, 1],
    [`key=${keyId}&model=beta-5.2`, 0],
    ['outcome=completed', 2],
    ['outcome=vendor_cut', 0],
    ['from=2026-01-01', 2],
    ['to=2026-01-01', 0],
  ]) {
    await page.goto(`/dashboard/activity?${query}`);
    assert.equal(await rows.count(), count, query);
  }
  await page.goto('/dashboard/activity?model=beta-5.2');
  assert.equal(await page.getByLabel('Model', { exact: true }).inputValue(), 'beta-5.2');
  await rows.first().click();
  await page.getByTestId('credits').waitFor();
  assert.equal(await page.getByTestId('credits').innerText(), mine.credits);
  assert.match(await page.getByTestId('why').innerText(), /completed.*vendor's own count/);
  assert.match(await page.getByTestId('saved').innerText(), /0\.1575 credits/); // 1000 × (175 − 17.5) ÷ 1 000 000
  assert.deepEqual(faults, []);
  await context.close();
});

test('a conversation shows how its turns grow and what caching saved', async () => {
  const { page, key, faults, context } = await holder();
  const session = randomUUID();
  const first = await turn(key, session, 'input=1000 output=10');
  const second = await turn(key, session, 'input=200 cache_read=1800 output=10');
  await turn(key, randomUUID(), 'input=10 output=10');
  await page.goto(`/dashboard/activity/${second.requestId}`);
  await page.getByRole('link', { name: /^[0-9a-f]{16}$/ }).click();
  await page.waitForURL(/\/conversations\//);
  assert.equal(await page.getByTestId('turns').innerText(), '2');
  const credits = Number(await page.getByTestId('credits').innerText());
  assert.ok(Math.abs(credits - Number(first.credits) - Number(second.credits)) < 1e-9);
  assert.equal(await page.getByTestId('saved').innerText(), '0.81'); // 1800 × (500 − 50) ÷ 1 000 000
  assert.match(await page.locator('main').innerText(), /sent 2\.0 times as many tokens/);
  assert.equal(await page.getByRole('row', { name: /^(1|2)\b/ }).count(), 2);
  assert.equal(await page.locator('figure .chart svg').count(), 2, 'a chart of tokens and one of credits');
  await page.goto('/dashboard/conversations');
  assert.equal(await page.getByRole('link', { name: /^Conversation of/ }).count(), 2);
  assert.deepEqual(faults, []);
  await context.close();
});

test('the overview lives: numbers, latest responses and charts; and what is old is called so', async () => {
  const { page, key, faults, context } = await holder();
  assert.match(await page.getByTestId('trial').innerText(), /6 days 23 h left, 300\.00 of 300\.00 credits/);
  await page.locator('[data-live-state].live').waitFor();
  // The key was made elsewhere after the page was loaded.
  const steps = (done) => page.waitForFunction((count) => document.querySelectorAll('.checklist .done').length === count, done);
  await steps(1);
  const before = Number(await page.getByTestId('available').innerText());
  const { requestId, credits } = await turn(key, randomUUID(), 'input=2000 output=100');
  await page.locator(`a[href$="${requestId}"]`).waitFor();
  await page.waitForFunction((text) => Number(document.querySelector('[data-testid="today"]').innerText) === text, Number(credits));
  await steps(3);
  await page.waitForFunction(() => / credits per hour since [0-9:]+ UTC$/.test(document.querySelector('[data-testid="pace"]').innerText));
  assert.equal(Number(await page.getByTestId('available').innerText()), before - Number(credits));

  // The gateway is unreachable: nothing on the page may look live.
  await context.route('**/dashboard/live', (route) => route.abort());
  await page.evaluate(() => document.dispatchEvent(new Event('visibilitychange')));
  await page.locator('[data-live-state].stale').waitFor();
  assert.match(await page.locator('[data-live-state]').innerText(), /not live since .*reconnecting/);
  assert.equal(await page.locator('.old [data-testid="balance"]').count(), 1);
  await context.unroute('**/dashboard/live');
  await page.locator('[data-live-state].live').waitFor({ timeout: 60_000 });
  assert.equal(await page.locator('.old').count(), 0);

  await page.reload();
  assert.equal(await page.locator('figure .chart svg').count(), 1);
  assert.equal(await page.locator('.checklist').count(), 0, 'the steps are done');
  await page.getByText('Credits per day as a table').click();
  await page.locator('.chart').press('End');
  const tip = await page.locator('.tip').innerText();
  assert.ok(tip.startsWith(await page.locator('#days tbody tr').last().locator('th').innerText()), tip);
  await page.locator('.chart').press('Escape');
  assert.ok(!(await page.locator('.tip').isVisible()));
  assert.ok((await page.locator('#days tbody tr').count()) < 3, 'days before the first use');
  assert.equal(await exactCredits(page.locator('#days tbody tr').last().locator('td').first()), credits);
  const unexpected = faults.filter((fault) => !fault.includes('net::ERR_FAILED'));
  assert.deepEqual(unexpected, []);
  await context.close();
});

test('silence is not taken for life', async () => {
  const { page, context } = await holder();
  // A connection that stays open without data, as after a network cut.
  await page.addInitScript(() => {
    const Real = window.EventSource;
    window.EventSource = class {
      constructor(url) {
        window.opened = (window.opened ?? 0) + 1;
        if (window.opened > 1) return new Real(url);
        this.addEventListener = (name, listener) => name === 'balance' && listener({ data: '{}' });
        this.close = () => {};
      }
    };
  });
  await page.goto('/dashboard');
  await page.locator('[data-live-state].live').waitFor();
  await page.locator('[data-live-state].stale').waitFor({ timeout: 60_000 });
  await page.locator('[data-live-state].live').waitFor({ timeout: 60_000 });
  assert.equal(await page.evaluate(() => window.opened), 2);
  await context.close();
});

test('spending is divided by key, and its numbers and its chart follow the responses', async () => {
  const { page, key, email, faults, context } = await holder();
  const { key: other } = await command('key', 'create', '--account', email, '--name', 'server');
  const first = await turn(key, randomUUID(), 'input=200 output=10');
  await page.goto('/dashboard');
  await page.getByRole('link', { name: 'This month by key' }).click();
  const rows = page.getByTestId('groups').locator('tbody tr');
  await page.locator('[data-live-state].live').waitFor();
  assert.equal(await rows.count(), 1);
  assert.match(await rows.first().innerText(), /laptop/);
  const spent = async () => Number(await exactCredits(page.getByTestId('spent')));
  assert.equal(await spent(), Number(first.credits));
  await page.locator('figure .chart svg').first().waitFor();
  assert.deepEqual(await page.locator('figure .legend').allInnerTexts(), ['laptop']);

  // A dearer response with the other key: its row comes first, without a reload.
  await page.evaluate(() => { window.sameLoad = true; });
  const second = await turn(other, randomUUID(), 'input=2000 output=80');
  await eventually('the new key is shown', async () => (await rows.count()) === 2);
  assert.match(await rows.first().innerText(), /server/);
  await eventually('the sum follows', async () => Math.abs((await spent()) - Number(first.credits) - Number(second.credits)) < 1e-9);
  assert.deepEqual(await page.locator('figure .legend').allInnerTexts(), ['server', 'laptop']);
  assert.equal(await page.locator('figure .chart svg').count(), 1);
  assert.equal(await page.evaluate(() => window.sameLoad), true);

  // What the reader uses is not replaced.
  const link = rows.first().getByRole('link');
  await link.focus();
  await turn(other, randomUUID(), 'input=2000 output=80');
  await page.waitForResponse(/dashboard/, { timeout: 2_500 }).catch(() => {});
  assert.equal(await link.evaluate((element) => element === document.activeElement), true);
  await link.click();
  await page.waitForURL(/activity\?from=.*key=/);
  assert.equal(await page.getByRole('link', { name: /^Receipt of/ }).count(), 2);
  assert.deepEqual(faults, []);
  await context.close();
});

test('a statement shows what changed the balance, prints without its menu, and is a file', async () => {
  const { page, key, email, faults, context } = await holder();
  await turn(key, randomUUID(), 'input=1000 output=10');
  await command('account', 'top-up', email, '25', '--ref', '=1+1');
  await page.goto('/dashboard/statement');
  const lines = page.getByTestId('lines');
  assert.match(await lines.innerText(), /Top-up[\s\S]*\b25\b/);
  assert.match(await lines.innerText(), /1 response/);
  assert.equal(await page.getByRole('button', { name: 'Print' }).isVisible(), true);
  const [file] = await Promise.all([page.waitForEvent('download'), page.getByRole('link', { name: 'Download as CSV' }).click()]);
  assert.match(file.suggestedFilename(), /^statement-.*\.csv$/);
  assert.match(readFileSync(await file.path(), 'utf8'), /"'=1\+1"/);
  await page.emulateMedia({ media: 'print' });
  assert.equal(await page.getByRole('navigation').first().isVisible(), false);
  assert.match(await page.locator('main').innerText(), new RegExp(email));
  assert.deepEqual(faults, []);
  await context.close();
});

test('everything can be reached by keyboard and is seen to be', async () => {
  const { page, context } = await holder();
  await page.goto('/dashboard/activity');
  const seen = new Set();
  for (let i = 0; i < 60; i++) {
    await page.keyboard.press('Tab');
    const at = await page.evaluate(() => {
      const element = document.activeElement;
      if (!element || element === document.body) return null;
      const style = getComputedStyle(element);
      const name = element.getAttribute('aria-label') || element.innerText || element.id;
      return { name: name.trim(), seen: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 };
    });
    if (!at) break;
    assert.ok(at.seen, `${at.name} has no visible focus`);
    seen.add(at.name);
  }
  for (const name of ['Skip to content', 'Overview', 'Keys', 'Activity', 'Conversations', 'Docs', 'Sign out', 'Filter']) {
    assert.ok(seen.has(name), `${name} in ${[...seen]}`);
  }
  await context.close();
});

test('without JavaScript, and with no credit, everything is there to be read', async () => {
  const { page, email, key, context } = await holder({ javaScriptEnabled: false });
  await turn(key, randomUUID(), 'input=1000 output=10');
  const { balance } = await command('account', 'show', email);
  await command('ledger', 'adjust', email, `-${balance}`, '--reason', 'test', '--ref', randomUUID());
  await eventually('nothing is left', async () => {
    await page.goto('/dashboard');
    return (await page.getByTestId('balance').innerText()) === '0';
  });
  assert.match(await page.getByTestId('no-credit').innerText(), /You have no credits left/);
  const main = await page.locator('main').innerText();
  assert.match(main, /reload the page/);
  await page.getByText('Credits per day as a table').click();
  assert.ok((await page.locator('#days tbody tr').count()) < 3, 'days before the first use');
  for (const [path, text] of [
    ['/dashboard/activity', /alpha-opus-4-7/],
    ['/dashboard/activity?model=beta-5.2', /No responses match/],
    ['/dashboard/conversations', /Turns/i],
    ['/dashboard/keys', /laptop/],
    ['/dashboard/spending?by=key', /laptop/],
    ['/dashboard/statement', /Correction/],
  ]) {
    const answer = await page.goto(path);
    assert.equal(answer.status(), 200, path);
    assert.match(await page.locator('main').innerText(), text, path);
  }
  await page.goto('/dashboard/conversations');
  await page.getByRole('link', { name: /^Conversation of/ }).click();
  assert.equal(await page.getByTestId('turns').innerText(), '1');
  await context.close();
});

for (const javaScriptEnabled of [true, false]) {
  test(`on a narrow screen the menu opens ${javaScriptEnabled ? '' : 'without JavaScript'}`, async () => {
    const { page: signedIn, context: first } = await holder();
    const storageState = await first.storageState();
    await signedIn.close();
    const { page, faults, context } = await person(browser, { javaScriptEnabled, storageState });
    const menu = page.getByRole('navigation', { name: 'Main' });
    for (const width of [360, 768]) {
      await page.setViewportSize({ width, height: 800 });
      await page.goto('/docs');
      assert.ok(!(await menu.isVisible()), `the menu is open at ${width} px`);
      await page.getByText('Menu', { exact: true }).click();
      assert.ok(await page.getByRole('button', { name: 'Sign out' }).isVisible());
      await menu.getByRole('link', { name: 'Keys' }).click();
      await page.waitForURL((url) => url.pathname === '/dashboard/keys');
      assert.ok(!(await menu.isVisible()), 'the next page begins with a closed menu');
    }
    await page.setViewportSize({ width: 1440, height: 800 });
    assert.ok(await menu.isVisible(), 'a wide screen shows the menu');
    assert.deepEqual(faults, []);
    await Promise.all([first.close(), context.close()]);
  });
}

test('times are the reader\'s own, and the UTC time is in the title', async () => {
  const { page, key, faults, context } = await holder({ timezoneId: 'Asia/Kolkata' });
  await page.locator('[data-live-state].live').waitFor();
  await turn(key, randomUUID(), 'input=1000 output=10');
  const read = (place) => place.evaluate((it) => [it.textContent, it.title, it.dateTime]);
  const [shown, title, at] = await read(page.locator('[data-live-rows] time'));
  assert.match(shown, /^(just now|\d+ min ago)$/);
  assert.equal(title, at.replace('T', ' ').replace('Z', ' UTC'));
  await page.getByRole('link', { name: `Receipt of ${shown}`, exact: true }).click();
  // A document has the exact time.
  const [exact, , ended] = await read(page.locator('main time').first());
  assert.match(exact, /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d GMT\+5:30$/);
  assert.equal(Date.parse(exact.replace(' GMT+5:30', '+05:30').replace(' ', 'T')), Date.parse(ended));
  // What is older has its day.
  await page.evaluate((now) => showLocalTimes.call(null, Object.assign(document.body, { innerHTML: `<time datetime="${now}"></time>` })), new Date(Date.now() - 26 * 3_600_000).toISOString());
  assert.match(await page.locator('time').innerText(), /^\d{1,2} \w{3,4}, \d\d:\d\d$/);
  assert.deepEqual(faults, []);
  await context.close();
});

test('a model has an address of its own, and its id a button that copies it', async () => {
  const { page, faults, context } = await person(browser, { permissions: ['clipboard-read', 'clipboard-write'] });
  await page.goto('/docs/models#alpha-opus-4-7');
  assert.ok(await page.locator(':target').innerText().then((text) => text.includes('alpha-opus-4-7')));
  await page.getByRole('button', { name: 'Copy alpha-opus-4-7' }).click();
  await page.getByText('Copied').waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), 'alpha-opus-4-7');
  const json = await (await fetch(`${BASE_URL}/docs/models.json`)).json();
  for (const id of MODELS) {
    assert.equal(await page.locator(`[id="${id}"]`).count(), 1, id);
    const model = json.models.find((model) => model.id === id);
    const translated = model.surfaces.filter((surface) => !model.vendor_protocols.includes(surface));
    assert.deepEqual(model.lost_in_translation.map(({ surface }) => surface), translated, id);
    assert.ok(model.lost_in_translation.every(({ members }) => members.length > 0), id);
  }
  assert.deepEqual(faults, []);
  await context.close();
});

test('the documentation is searched, and has a request in three languages', async () => {
  const { page, faults, context } = await person(browser);
  await page.goto('/docs');
  await page.getByLabel('Search the documentation').fill('estimated cost');
  await page.locator('#docs-results').getByRole('link', { name: 'Estimated costs' }).click();
  await page.waitForURL(/\/docs\/billing#estimated$/);
  await page.getByRole('navigation', { name: 'Documentation' }).getByRole('link', { name: 'Start' }).click();
  await page.getByText('Python', { exact: true }).click();
  const code = page.locator('.panel pre');
  assert.ok(await code.filter({ hasText: 'from openai import OpenAI' }).first().isVisible());
  assert.ok(!(await code.filter({ hasText: 'curl "' }).first().isVisible()));
  assert.deepEqual(faults, []);
  await context.close();
});

test('an operator hands out a link; its holder sets a password and is signed in, with and without JavaScript', async () => {
  for (const javaScriptEnabled of [true, false]) {
    const root = await person(browser, { javaScriptEnabled });
    const guest = await person(browser, { javaScriptEnabled });
    const [admin, email] = [`${randomUUID()}@example.com`, `${randomUUID()}@example.com`];
    const first = await command('account', 'create', '--email', admin, '--admin', '--no-trial');
    const { account_id: account } = await command('account', 'create', '--email', email);

    // The link that the command printed opens the first administrator's dashboard.
    await root.page.goto(new URL(first.setup_link).pathname);
    await root.page.getByText(admin).waitFor();
    await root.page.getByLabel('New password', { exact: true }).fill(`a long password ${randomUUID()}`);
    await root.page.getByRole('button', { name: 'Set password and sign in', exact: true }).click();
    await root.page.waitForURL((url) => url.pathname === '/dashboard');

    await root.page.goto(`/dashboard/operator/accounts/${account}`);
    await root.page.getByRole('button', { name: 'Make reset link', exact: true }).click();
    const link = await root.page.getByTestId('new-link').innerText();
    if (javaScriptEnabled) {
      assert.deepEqual(await violations(root.page), []);
      await look(root.page, 'page-operator-link');
    }
    await root.page.goto(`/dashboard/operator/accounts/${account}`);
    assert.equal(await root.page.getByTestId('new-link').count(), 0, 'shown once');
    await guest.page.goto(new URL(link).pathname);
    await guest.page.getByLabel('New password', { exact: true }).fill(`a long password ${randomUUID()}`);
    await guest.page.getByRole('button', { name: 'Set password and sign in', exact: true }).click();
    await guest.page.waitForURL((url) => url.pathname === '/dashboard');
    await guest.page.goto(new URL(link).pathname);
    await guest.page.getByRole('heading', { name: 'This link does not work any more' }).waitFor();
    await root.context.close();
    await guest.context.close();
  }
});
