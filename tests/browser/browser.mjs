// The system's Chromium, with checks for errors on a page that a user would not see.

import assert from 'node:assert/strict';
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';

import { chromium } from 'playwright-core';

import { BASE_URL } from '../world/client.mjs';

const WAIT_MS = 60_000; // for a busy machine
const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const RULES = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];
const NARROW = { width: 360, height: 780 };
const WIDE = { width: 1440, height: 900 };

/** A browser with a new profile, which makes no requests of its own. */
export function launch() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM || '/usr/bin/chromium',
    args: [
      '--no-sandbox', // the tests may run as root
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
    ],
  });
}

/**
 * A user of the browser: a context of their own (cookies), one page, and `faults`, which collects
 * console errors, page errors, CSP violations and requests to other origins.
 */
export async function person(browser, options = {}) {
  const context = await browser.newContext({ baseURL: BASE_URL, viewport: WIDE, ...options });
  context.setDefaultTimeout(WAIT_MS);
  const page = await context.newPage();
  const faults = [];
  page.on('console', (message) => {
    if (message.type() === 'error') faults.push(`console: ${message.text()} (${message.location().url})`);
  });
  page.on('pageerror', (error) => faults.push(`page error: ${error.message}`));
  page.on('request', (request) => {
    const { protocol, origin } = new URL(request.url());
    if (!['data:', 'blob:'].includes(protocol) && origin !== BASE_URL) faults.push(`request to ${request.url()}`);
  });
  await page.exposeFunction('reportViolation', (text) => faults.push(`content security policy: ${text}`));
  await page.addInitScript(() => {
    document.addEventListener('securitypolicyviolation', (event) => {
      window.reportViolation(`${event.violatedDirective} ${event.blockedURI}`);
    });
  });
  page.on('dialog', (dialog) => dialog.accept());
  return { context, page, faults };
}

/** The exact amount of credits in an element, which may show it rounded. */
export const exactCredits = (place) =>
  place.evaluate((element) => element.querySelector('data')?.value ?? element.innerText.trim());

/** Checks at two widths that the page is not wider than the screen; saves screenshots if SCREENSHOT_DIR is set. */
export async function look(page, name) {
  for (const [size, viewport] of Object.entries({ wide: WIDE, narrow: NARROW })) {
    await page.setViewportSize(viewport);
    if (process.env.SCREENSHOT_DIR) {
      mkdirSync(process.env.SCREENSHOT_DIR, { recursive: true });
      await page.screenshot({ path: join(process.env.SCREENSHOT_DIR, `${name}-${size}.png`), fullPage: true });
    }
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(width <= viewport.width, `${name} is ${width} px wide on a screen of ${viewport.width} px`);
  }
  await page.setViewportSize(WIDE);
}

/** Rules that the theme can break. */
const COLOUR_RULES = ['color-contrast', 'link-in-text-block'];

/** Returns the page's violations of the accessibility rules, as text, in the theme and at the width that it has. */
export async function ruleFaults(page, { coloursOnly = false } = {}) {
  // The page's script policy refuses a script element, so the debugger evaluates the script.
  await page.evaluate(`window.axe || (() => {${AXE}})(); undefined`);
  const runOnly = coloursOnly ? { type: 'rule', values: COLOUR_RULES } : { type: 'tag', values: RULES };
  const { violations } = await page.evaluate((rules) => axe.run(document, { runOnly: rules, resultTypes: ['violations'], preload: false }), runOnly);
  return violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.target.join(' ')}: ${node.failureSummary}`));
}

/** Returns the page's violations of the accessibility rules, as text: of all in light mode, and of those for colours in dark mode. */
export async function violations(page) {
  const found = [];
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
    found.push(...(await ruleFaults(page, { coloursOnly: colorScheme === 'dark' })).map((fault) => `${colorScheme} ${fault}`));
  }
  await page.emulateMedia({ colorScheme: null, reducedMotion: null });
  return found;
}

/** Maximum size of one page with everything that it loads, compressed, in bytes. */
export const PAGE_BYTES_MAX = 80 * 1024;

/** Opens a page with `open` (default: its address) and checks that it is not larger than PAGE_BYTES_MAX. */
export async function weigh(page, name, open) {
  const weights = [];
  const listener = (response) => {
    if (response.url().includes('/live')) return;
    weights.push(response.body().then((body) => gzipSync(body).length, () => 0));
  };
  page.on('response', listener);
  await (typeof open === 'string' ? page.goto(open, { waitUntil: 'load' }) : open());
  page.off('response', listener);
  const weight = (await Promise.all(weights)).reduce((sum, one) => sum + one, 0);
  assert.ok(weights.length >= 1 && weight < PAGE_BYTES_MAX, `${name} weighs ${weight} bytes`);
}

/** Checks all rules for a page: its size, its accessibility in both themes, and its width on a phone. */
export async function judge(page, name, open) {
  await weigh(page, name, open);
  await page.evaluate(() => document.querySelectorAll('details').forEach((part) => { part.open = true; }));
  assert.deepEqual(await violations(page), [], name);
  await look(page, `page-${name}`);
  if (!process.env.SCREENSHOT_DIR) return;
  // The themes differ in colours only.
  await page.emulateMedia({ colorScheme: 'dark' });
  await look(page, `page-${name}-dark`);
  await page.emulateMedia({ colorScheme: null });
}
