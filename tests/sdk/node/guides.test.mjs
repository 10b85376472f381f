// The programs of the guides for libraries run as `model-gateway clients` prints them, with the packages of this suite.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { ALPHA, BETA, command, createAccount } from './harness.mjs';

const PACKAGES = fileURLToPath(new URL('node_modules', import.meta.url));
const execute = promisify(execFile);

/** The guides whose programs this suite must run: those with a version that the pages call tested. */
const guides = [];
for (const { id, kind, tried } of (await command('clients')).clients) {
  if (kind !== 'library' || tried?.by !== 'tests') continue;
  const { files } = await command('clients', id);
  if (files.every(({ format }) => format === 'javascript')) guides.push(id);
}

test('there are guides to test', () => assert.ok(guides.length > 0));

for (const id of guides) {
  for (const model of [ALPHA, BETA]) {
    test(`the program of ${id} prints the response of ${model}`, async (t) => {
      const dir = await mkdtemp(join(tmpdir(), 'model-gateway-guide-'));
      t.after(() => rm(dir, { recursive: true, force: true }));
      await symlink(PACKAGES, join(dir, 'node_modules'));
      const { files, environment, key_environment: names } = await command('clients', id, '--model', model);
      const { key } = await createAccount();
      const keys = Object.fromEntries(['GATEWAY_KEY', ...names].map((name) => [name, key]));
      const env = { PATH: process.env.PATH, HOME: dir, ...environment, ...keys };
      for (const { path, text } of files) {
        await writeFile(join(dir, path), text);
        const { stdout } = await execute(process.execPath, [path], { cwd: dir, env, timeout: 300_000 });
        assert.match(stdout, /Say hello/, 'the simulated vendor repeats the prompt');
      }
    });
  }
}
