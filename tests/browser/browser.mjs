// Chromium as the system has it, and a watch over everything that a page does wrong unseen.

import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';

import { chromium } from 'playwright-core';

import { BASE_URL } from '../world/client.mjs';

const WAIT_MS = 10_000;
const NARROW = { width: 360, height: 780 };
const WIDE = { width: 1440, height: 900 };

/** A browser with a new profile of its own, which talks to nobody by itself. */
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
 * A person at a browser: a context of their own (cookies), one page, and `faults`, to which each
 * console error, page error, CSP violation and request to another origin is added.
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

/** Looks at the page at two widths: it must not be wider than a phone; pictures are kept if wanted. */
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
