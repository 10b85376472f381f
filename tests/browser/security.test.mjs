// Writes an attacker's payloads into every free-text field, and checks how the pages of account holders and operators show
// them. Also checks those pages: by keyboard, on a phone, in both themes, without JavaScript.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { after, before, test } from 'node:test';

import { BASE_URL, command, createAccount, eventually } from '../world/client.mjs';
import { judge, launch, person } from './browser.mjs';

const PASSWORD = 'a long password of theirs';

// None is longer than a key's name may be.
const PAYLOADS = [
  '<script>alert(1)</script>',
  '<img src=x onerror=alert(1)>',
  '<svg onload=alert(1)>',
  '<svg><script>alert(1)</script></svg>',
  '"><script>alert(1)</script>',
  "'><script>alert(1)</script>",
  '"><img src=x onerror=alert(1)>',
  '" autofocus onfocus=alert(1) x="',
  "' autofocus onfocus=alert(1) x='",
  '" onmouseover="alert(1)',
  '</title><script>alert(1)</script>',
  '</textarea><script>alert(1)</script>',
  '</code></pre><script>alert(1)</script>',
  '</option></select><script>alert(1)</script>',
  '<iframe src=javascript:alert(1)>',
  '<iframe srcdoc="<script>alert(1)</script>">',
  '<a href=javascript:alert(1) autofocus>x</a>',
  '<details open ontoggle=alert(1)>',
  '<body onload=alert(1)>',
  '<input autofocus onfocus=alert(1)>',
  '<video><source onerror=alert(1)></video>',
  '<object data=javascript:alert(1)>',
  '<embed src=javascript:alert(1)>',
  '<meta http-equiv=refresh content="0;javascript:alert(1)">',
  '<base href=https://evil.example/>',
  '<link rel=stylesheet href=https://evil.example/x.css>',
  '<style>@import "https://evil.example/x.css";</style>',
  '<math><mtext><img src=x onerror=alert(1)></mtext></math>',
  '{{constructor.constructor("alert(1)")()}}',
  '&lt;script&gt;alert(1)&lt;/script&gt;&#60;img src=x&#62;',
];

/** Every payload on every page takes minutes. So each payload is always on some page, and on all pages in the long run. */
const SOME = process.env.GATEWAY_LONG === '1' ? PAYLOADS : PAYLOADS.filter((_, index) => index % 10 === 1);

let browser;
before(async () => {
  assert.equal(PAYLOADS.length, 30);
  assert.ok(PAYLOADS.every((payload) => payload.length <= 64));
  browser = await launch();
});
after(() => browser?.close());

/** A signed-in user; `admin` makes them an operator, `viewer` an operator with read-only access. */
async function holder({ admin = false, viewer = false, email = `${randomUUID()}@example.com`, ...options } = {}) {
  const args = ['account', 'create', '--email', email, '--password-stdin', ...(admin ? ['--admin'] : []), ...(viewer ? ['--viewer'] : [])];
  const made = spawnSync(process.env.MODEL_GATEWAY_BIN, [...args, '--json'], { input: PASSWORD, encoding: 'utf8' });
  assert.equal(made.status, 0, made.stderr);
  const who = await person(browser, options);
  const dialogs = [];
  who.page.on('dialog', (dialog) => dialogs.push(dialog.message()));
  await signIn(who.page, email);
  return { ...who, email, accountId: JSON.parse(made.stdout).account_id, dialogs };
}

async function signIn(page, email) {
  await page.goto('/dashboard/sign-in');
  // The browser's check of e-mail addresses is stricter than the gateway's.
  await page.locator('form[action="/dashboard/sign-in"]').evaluate((form) => { form.noValidate = true; });
  await page.getByLabel('Email', { exact: true }).fill(email);
  await page.getByLabel('Password', { exact: true }).fill(PASSWORD);
  await page.getByRole('button', { name: 'Sign in', exact: true }).click();
  await page.waitForURL((url) => !url.pathname.includes('sign-in'));
}

/** The browser itself logs refused requests to the console; those are expected. */
const unexpected = (faults) => faults.filter((fault) => !/Failed to load resource: .* status of 4\d\d/.test(fault));

/** Submits a form once for each of `rows`, from the page's session, or without a session if `asStranger` is set. */
async function submit(page, path, rows, status, { asStranger = false } = {}) {
  await page.goto('/dashboard/account');
  const csrf = await page.locator('input[name="csrf"]').first().getAttribute('value');
  for (const row of rows) {
    const body = new URLSearchParams({ csrf, ...row }).toString();
    const cookies = await page.context().cookies();
    const cookie = asStranger ? '' : cookies.map(({ name, value }) => `${name}=${value}`).join('; ');
    const answer = await fetch(BASE_URL + path, {
      method: 'POST',
      headers: { cookie, origin: BASE_URL, 'content-type': 'application/x-www-form-urlencoded' },
      body,
      redirect: 'manual',
    });
    const text = await answer.text();
    assert.equal(answer.status, status, text);
  }
}

/** Opens each page, lets it run, and triggers the elements that could run a payload. */
async function browse(page, paths) {
  for (const path of paths) {
    assert.equal((await page.goto(path)).status(), 200, path);
    for (const summary of await page.locator('main summary').all()) await summary.click();
    await page.keyboard.press('Tab');
    await page.mouse.move(300, 300);
  }
}

test('what is written into the fields of an account is shown and never run', async () => {
  const { page, faults, dialogs, context } = await holder();
  for (const payload of SOME) {
    await page.goto('/dashboard/keys');
    await page.getByLabel('Key name', { exact: true }).fill(payload);
    await page.getByRole('button', { name: 'Create key', exact: true }).click();
    await page.getByRole('heading', { name: `Your new key: ${payload}`, exact: true }).waitFor();
  }
  await submit(page, '/dashboard/keys', PAYLOADS.filter((payload) => !SOME.includes(payload)).map((name) => ({ name })), 303);
  await page.goto('/dashboard/keys');
  const names = await page.locator('tbody th.name').allInnerTexts();
  assert.deepEqual(names.toSorted(), PAYLOADS.toSorted(), 'each is shown as it was written');
  const actions = await page
    .locator('form[action^="/dashboard/keys/key_"]')
    .evaluateAll((forms) => forms.map((form) => form.getAttribute('action')));
  assert.equal(actions.length, 2 * PAYLOADS.length);
  await browse(page, [...actions.slice(0, 2 * SOME.length), '/dashboard', '/dashboard/account', '/dashboard/activity', '/dashboard/spending?by=key', '/dashboard/statement']);
  // A page with a refused value shows that value again.
  for (const payload of SOME) {
    await page.goto(actions[0]);
    await page.getByLabel('Spend limit, in credits').fill(payload.slice(0, 30));
    await page.getByRole('button', { name: 'Save' }).click();
    await page.getByRole('alert').waitFor();
  }
  const stranger = await person(browser);
  stranger.page.on('dialog', (dialog) => dialogs.push(dialog.message()));
  for (let index = 0; index < PAYLOADS.length; index += 5) {
    const payload = PAYLOADS.slice(index, index + 5).join('');
    await stranger.page.goto(`/dashboard/sign-in?next=${encodeURIComponent(payload)}`);
    await stranger.page.locator('form[action="/dashboard/sign-in"]').evaluate((form) => { form.noValidate = true; });
    await stranger.page.getByLabel('Email', { exact: true }).evaluate((field) => { field.type = 'text'; field.maxLength = 2000; });
    await stranger.page.getByLabel('Email', { exact: true }).fill(payload);
    await stranger.page.getByLabel('Password', { exact: true }).fill('wrong password');
    await stranger.page.getByRole('button', { name: 'Sign in', exact: true }).click();
    await stranger.page.getByRole('alert').waitFor();
    assert.equal(await stranger.page.getByLabel('Email', { exact: true }).getAttribute('value'), payload);
  }
  assert.deepEqual(unexpected([...faults, ...stranger.faults]), []);
  assert.deepEqual(dialogs, [], 'something was run');
  await Promise.all([context.close(), stranger.context.close()]);
});

test('what is written into the fields that operators see is shown and never run', async () => {
  const tag = randomUUID().slice(0, 8);
  const { page, faults, dialogs, context } = await holder({ admin: true });
  const { accountId } = await createAccount();
  const account = `/dashboard/operator/accounts/${accountId}`;
  for (const payload of SOME) {
    await page.goto(account);
    await page.locator('#credits summary').first().click();
    await page.getByLabel('Kind').selectOption('adjustment');
    await page.getByLabel('Credits', { exact: true }).fill('1');
    await page.getByLabel('Reference', { exact: true }).fill(`${payload} ${tag}`);
    await page.getByLabel('Reason', { exact: true }).fill(payload);
    await page.locator('#credits').getByRole('button', { name: 'Add credits', exact: true }).click();
    await page.getByRole('status').waitFor();
  }
  const others = PAYLOADS.filter((payload) => !SOME.includes(payload));
  const orders = others.map((payload) => ({ kind: 'adjustment', credits: '1', ref: `${payload} ${tag}`, reason: payload }));
  await submit(page, `${account}/post`, orders, 201);
  // The part before the @ has at most 64 of these characters.
  const emails = PAYLOADS.map((payload, index) => {
    const local = `${tag}${index}${payload.replaceAll(/[^\w!#$%&'*+\-/=?^`{|}~]/g, '/')}`;
    return `${local.slice(0, 64)}@example.com`;
  });
  const strangers = emails.map((email) => ({ email, password: PASSWORD }));
  await submit(page, '/dashboard/sign-up', strangers, 303, { asStranger: true });
  await page.goto(`/dashboard/operator/accounts?q=${tag}`);
  const shown = await page.locator('tbody th.name a').allInnerTexts();
  assert.deepEqual(shown.toSorted(), emails.map((email) => email.toLowerCase()).toSorted());
  const ids = await page.locator('tbody th.name a').evaluateAll((links) => links.map((link) => link.getAttribute('href')));
  const views = ['', '/accounts', '/service', '/models', '/invites', '/audit'].map((view) => `/dashboard/operator${view}`);
  const searches = SOME.map((payload) => `/dashboard/operator/accounts?q=${encodeURIComponent(payload)}`);
  await browse(page, [...ids, ...views, account, ...searches]);
  assert.deepEqual(unexpected(faults), []);
  assert.deepEqual(dialogs, [], 'something was run');
  await context.close();

  // A holder with the worst of those e-mail addresses opens their own pages.
  const worst = await holder({ email: `${tag}x'/onerror=alert\`1\`/&lt&quot&#39@example.com` });
  await browse(worst.page, ['/dashboard', '/dashboard/keys', '/dashboard/account', '/dashboard/activity', '/dashboard/spending?by=key', '/dashboard/statement']);
  assert.deepEqual(unexpected(worst.faults), []);
  assert.deepEqual(worst.dialogs, [], 'something was run');
  await worst.context.close();
});

// As src/sidecar/operator/list.rs has it.
const MAX_SEARCH_CHARS = 254;

test('what is asked for by an address, or refused and shown again, is never run', async () => {
  const { page, faults, dialogs, context, email } = await holder({ admin: true });
  const { accountId } = await createAccount();
  const { key_id: keyId } = await command('key', 'create', '--account', email, '--name', 'laptop');
  // All payloads are in one text. The long run uses groups of five, so that no payload is hidden by markup that another opens.
  const many = process.env.GATEWAY_LONG === '1' ? 5 : PAYLOADS.length;
  for (let index = 0; index < PAYLOADS.length; index += many) {
    const payload = PAYLOADS.slice(index, index + many).join('');
    const asked = encodeURIComponent(payload);
    // The edge refuses a path with encoded separators, so the payload has none.
    const part = encodeURIComponent(payload.replaceAll(/[/;]/g, ' '));
    const fields = ['model', 'outcome', 'from', 'to'].map((name) => `${name}=${asked}`).join('&');
    const addresses = [
      [`/dashboard/activity?${fields}`, 422],
      [`/dashboard/activity?model=${asked}`, 200],
      [`/dashboard/activity?key=${asked}`, 404],
      [`/dashboard/activity/${part}`, 404],
      [`/dashboard/conversations/${part}`, 404],
      [`/dashboard/keys/${part}`, 404],
      [`/dashboard/account?done=${asked}`, 200],
      [`/dashboard?trial=${asked}`, 200],
      [`/dashboard/operator/accounts?q=${asked}`, payload.length > MAX_SEARCH_CHARS ? 422 : 200],
      [`/dashboard/operator/accounts/${part}`, 404],
    ];
    for (const [address, status] of addresses) {
      assert.equal((await page.goto(address)).status(), status, address);
      await page.keyboard.press('Tab');
    }
    // Free-text fields whose value is refused and shown again for correction.
    for (const [path, labels, button] of [
      [`/dashboard/operator/accounts/${accountId}`, ['Credits', 'Reference', 'Reason'], 'Add credits'],
      [`/dashboard/keys/${keyId}`, ['Spend limit, in credits'], 'Save'],
      ['/dashboard/account', ['Type your e-mail to confirm'], 'Delete account'],
    ]) {
      await page.goto(path);
      for (const summary of await page.locator('main summary').all()) await summary.click();
      for (const label of labels) {
        const field = page.getByLabel(label, { exact: true });
        await field.evaluate((element) => { element.type = 'text'; element.removeAttribute('maxlength'); });
        await field.fill(payload);
      }
      if (path === '/dashboard/account') await page.locator('#delete_password').fill('wrong');
      await page.getByRole('button', { name: button, exact: true }).click();
      await page.getByRole('alert').waitFor();
      await page.keyboard.press('Tab');
    }
  }
  assert.deepEqual(unexpected(faults), []);
  assert.deepEqual(dialogs, [], 'something was run');
  await context.close();
});

test('the watch over the pages sees a script that is run', async () => {
  // The control of the two tests above: the same checks must find a script on a page that does run one.
  const { page, faults, dialogs, context } = await holder();
  await page.route('**/dashboard/account', async (route) => {
    const answer = await route.fetch();
    const body = (await answer.text()).replace('</main>', `${PAYLOADS[1]}</main>`);
    await route.fulfill({ response: answer, body });
  });
  await page.goto('/dashboard/account');
  await page.waitForFunction(() => document.querySelector('img[src="x"]'));
  await page.waitForTimeout(0);
  assert.ok(faults.some((fault) => fault.startsWith('content security policy')), faults.join('\n'));
  assert.deepEqual(dialogs, [], 'the policy let it run');
  await context.close();
});

test('the pages that forms of accounts, keys and operators return keep the rules of accessibility, fit a phone, and are light', async () => {
  const { page, faults, accountId, email, context } = await holder({ admin: true });
  await command('key', 'create', '--account', accountId, '--name', 'laptop', '--spend-limit', '5/day');
  await command('account', 'invite', '--count', '2');
  await command('account', 'grant', accountId, '12.5', '--ref', `a reference of some length ${randomUUID()}`);
  await command('ledger', 'adjust', accountId, '-2.5', '--ref', randomUUID(), '--reason', 'it was granted twice by mistake');
  const account = `/dashboard/operator/accounts/${accountId}`;

  // look.test.mjs checks the pages with these forms.
  const press = (button) => () => Promise.all([page.waitForNavigation(), page.getByRole('button', { name: button, exact: true }).click()]);
  await page.goto('/dashboard/keys');
  await page.getByLabel('Key name', { exact: true }).fill('another');
  await judge(page, 'keys-set-up', press('Create key'));
  await page.getByTestId('new-key').waitFor();
  await page.goto('/dashboard/operator/invites');
  await judge(page, 'operator-invites-made', press('Create invitations'));
  await page.getByTestId('new-invites').waitFor();
  await page.goto(account);
  await page.locator('#credits summary').first().click();
  await page.getByLabel('Credits', { exact: true }).fill('many');
  await page.getByLabel('Reference', { exact: true }).fill('r');
  await judge(page, 'operator-account-fault', press('Add credits'));
  await page.getByRole('alert').waitFor();
  await page.goto('/dashboard/operator/service');
  await press('Verify the ledger')();
  await eventually('the ledger is verified', async () => {
    await page.goto('/dashboard/operator/service');
    return (await page.getByTestId('audit').count()) === 1;
  });
  await judge(page, 'operator-service-verified', '/dashboard/operator/service');
  await page.goto('/dashboard/account');
  await page.getByLabel('Type your e-mail to confirm').fill('somebody@example.com');
  await page.locator('#delete_password').fill(PASSWORD);
  await judge(page, 'account-fault', press('Delete account'));
  await page.getByRole('alert').waitFor();

  // A second browser of the same person, whose session is ended only after a confirmation.
  const elsewhere = await person(browser, { javaScriptEnabled: false });
  await elsewhere.page.goto('/dashboard/sign-in');
  await elsewhere.page.getByLabel('Email', { exact: true }).fill(email);
  await elsewhere.page.getByLabel('Password', { exact: true }).fill(PASSWORD);
  await elsewhere.page.getByRole('button', { name: 'Sign in', exact: true }).click();
  // Operators begin in their mode.
  await elsewhere.page.getByTestId('balances').waitFor();
  await page.goto('/dashboard/account');
  await judge(page, 'confirm', press('End all other sessions'));
  await page.getByRole('heading', { name: 'End all other sessions?' }).waitFor();
  await elsewhere.page.reload();
  assert.equal(new URL(elsewhere.page.url()).pathname, '/dashboard/operator');
  await press('End all other sessions')();
  await page.getByText('All your other sessions have ended.').waitFor();
  await elsewhere.page.reload();
  assert.equal(new URL(elsewhere.page.url()).pathname, '/dashboard/sign-in');
  await elsewhere.context.close();

  const viewer = await holder({ viewer: true });
  await judge(viewer.page, 'operator-viewer', account);
  assert.equal(await viewer.page.locator('main form[method="post"]').count(), 0, 'a viewer is offered no act');
  await viewer.page.goto('/dashboard/account');
  await viewer.page.getByLabel('Type your e-mail to confirm').fill(viewer.email);
  await viewer.page.locator('#delete_password').fill(PASSWORD);
  await judge(viewer.page, 'farewell', () =>
    Promise.all([viewer.page.waitForNavigation(), viewer.page.getByRole('button', { name: 'Delete account' }).click()]),
  );
  await viewer.page.getByRole('heading', { name: 'Your account was deleted' }).waitFor();
  // The mailbox gets no second trial, and the page says so.
  await viewer.page.goto('/dashboard/sign-up');
  await viewer.page.getByLabel('Email', { exact: true }).fill(viewer.email);
  await viewer.page.getByLabel('Password', { exact: true }).fill(PASSWORD);
  await judge(viewer.page, 'overview-no-trial', () =>
    Promise.all([
      viewer.page.waitForURL((url) => url.pathname === '/dashboard'),
      viewer.page.getByRole('button', { name: 'Sign up', exact: true }).click(),
    ]),
  );
  assert.match(await viewer.page.getByTestId('had-trial').innerText(), /without trial credits/);
  assert.equal(await viewer.page.getByTestId('balance').innerText(), '0');

  assert.deepEqual(unexpected([...faults, ...viewer.faults]), []);
  await Promise.all([context.close(), viewer.context.close()]);
});

for (const javaScriptEnabled of [true, false]) {
  test(`by keyboard alone a key is made, paused and an account deleted ${javaScriptEnabled ? '' : 'without JavaScript'}`, async () => {
    const { page, faults, email, context } = await holder({ javaScriptEnabled });
    /** Presses Tab until `locator` has the focus. */
    const reach = async (locator) => {
      for (let step = 0; step < 80; step += 1) {
        if (await locator.evaluate((element) => element === document.activeElement)) return;
        await page.keyboard.press('Tab');
      }
      assert.fail(`not reached by keyboard: ${locator}`);
    };
    const press = async (locator) => {
      await reach(locator);
      await Promise.all([page.waitForNavigation(), page.keyboard.press('Enter')]);
    };
    await page.goto('/dashboard/keys');
    await reach(page.getByLabel('Key name', { exact: true }));
    await page.keyboard.type('by keyboard');
    await press(page.getByRole('button', { name: 'Create key', exact: true }));
    const key = /gw-sk-[0-9A-Za-z]{49}/.exec(await page.getByTestId('new-key').innerText())[0];
    const status = async () => {
      const answer = await fetch(`${BASE_URL}/v1/credits`, { headers: { 'x-api-key': key } });
      await answer.arrayBuffer();
      return answer.status;
    };
    assert.equal(await status(), 200);
    await press(page.getByRole('row', { name: /by keyboard/ }).getByRole('button', { name: 'Settings' }));
    await press(page.getByRole('button', { name: 'Disable key' }));
    await page.getByRole('heading', { name: 'Disable this key?' }).waitFor();
    assert.equal(await status(), 200);
    await press(page.getByRole('button', { name: 'Disable key' }));
    assert.equal(await page.getByTestId('key-status').innerText(), 'disabled');
    assert.equal(await status(), 403);
    await press(page.getByRole('button', { name: 'Enable key' }));
    assert.equal(await status(), 200);

    await page.goto('/dashboard/account');
    await reach(page.getByLabel('Type your e-mail to confirm'));
    await page.keyboard.type(email);
    await reach(page.locator('#delete_password'));
    await page.keyboard.type(PASSWORD);
    await press(page.getByRole('button', { name: 'Delete account' }));
    await page.getByRole('heading', { name: 'Your account was deleted' }).waitFor();
    assert.equal(await status(), 401);
    await page.goto('/dashboard');
    assert.equal(new URL(page.url()).pathname, '/dashboard/sign-in');
    assert.deepEqual(faults, []);
    await context.close();
  });
}
