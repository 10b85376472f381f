import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { freePorts, reserve } from './ports.mjs';

const MODULE = fileURLToPath(new URL('ports.mjs', import.meta.url));
const IN_RUST = readFileSync(new URL('../../crates/test-world/src/ports.rs', import.meta.url), 'utf8');

/** What a new process prints that runs `code` with the exports of ports.mjs. */
const inAnotherProcess = (code) =>
  execFileSync(process.execPath, ['--input-type=module', '-e', `import * as ports from ${JSON.stringify(MODULE)}; ${code}`], {
    encoding: 'utf8',
  }).trim();

/** A block of its own, which no process reserves for its ports. */
const FIRST = 100_000 + process.pid;

test('a block is reserved by exactly the name that the Rust tests reserve it by', async () => {
  const socket = await reserve(FIRST);
  const name = `model-gateway-test-ports-${FIRST}`;
  // The kernel lists an abstract name with `@` for each zero byte, so padding would be seen.
  const reserved = readFileSync('/proc/net/unix', 'utf8').split('\n').map((line) => line.split(' ').at(-1));
  assert.ok(reserved.includes(`@${name}`), reserved.filter((other) => other.includes(name)).join());
  await new Promise((closed) => socket.close(closed));
  assert.match(IN_RUST, /format!\("model-gateway-test-ports-\{first\}"\)/);
  const constant = (rust) => Number(new RegExp(`const ${rust}: u16 = ([\\d_]+);`).exec(IN_RUST)[1].replaceAll('_', ''));
  assert.deepEqual([constant('FIRST_PORT'), constant('PORTS_PER_BLOCK'), constant('BLOCKS')], [20_000, 100, 100]);
});

test('a block that one process has is refused to another, and free again when its process has ended', async () => {
  const tryIt = `console.log(await ports.reserve(${FIRST}) ? 'reserved' : 'refused')`;
  assert.equal(inAnotherProcess(tryIt), 'reserved');
  const socket = await reserve(FIRST);
  assert.ok(socket);
  assert.equal(await reserve(FIRST), null);
  assert.equal(inAnotherProcess(tryIt), 'refused');
  await new Promise((closed) => socket.close(closed));
  assert.equal(inAnotherProcess(tryIt), 'reserved');
});

test('ports are different, of one block, and without a listener', async () => {
  const ports = Object.values(await freePorts(['one', 'two', 'three']));
  assert.equal(new Set(ports).size, 3);
  assert.equal(new Set(ports.map((port) => Math.floor(port / 100))).size, 1);
  const [taken] = ports;
  const server = createServer();
  await new Promise((listens) => server.listen(taken, '127.0.0.1', listens));
  assert.equal(server.address().port, taken);
  await new Promise((closed) => server.close(closed));
});
