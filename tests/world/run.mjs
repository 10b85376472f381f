// Starts one whole world for a test suite, runs the suite inside it, and takes it down again.
//
//   node tests/world/run.mjs COMMAND ARGS...
//
// A world is a simulated vendor and a gateway, on ports that no other test gets, with data in a
// temporary directory of their own. The command finds them by the environment variables that
// `environment()` sets. When the command has ended, the world must end well too: both processes
// leave with status 0 on SIGTERM, the ledger verifies without a finding, and no file of the
// gateway holds a key in the clear. Otherwise this program fails, even if every test passed.
//
// The binary is $MODEL_GATEWAY_BIN, else the one in the dev profile's target directory. With
// GATEWAY_TEST_VENDORS=h2 the simulated vendor speaks TLS and HTTP/2, as the real ones do. With
// GATEWAY_TEST_VENDORS=dialects the gateway also has a model `as-NAME` of each vendor that the simulator plays. With
// GATEWAY_TEST_SHOP=stripe it sells credits through the Stripe of another simulator, which never speaks TLS. With
// GATEWAY_TEST_ENDPOINTS=all it also has the models of models.json for the endpoints beyond chat. With GATEWAY_TEST_SERVERS=FILE it
// starts the servers of FILE (like tests/servers/servers.json), each a vendor with the models that FILE names.

import { spawn, spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { mkdtemp, open, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

import { freePorts } from './ports.mjs';

const REPOSITORY = resolve(dirname(fileURLToPath(import.meta.url)), '../..');
const START_SECONDS = 120;
const STOP_SECONDS = 120;
const OVER_H2 = process.env.GATEWAY_TEST_VENDORS === 'h2';
const HAS_SHOP = process.env.GATEWAY_TEST_SHOP === 'stripe';
const HAS_ALL_ENDPOINTS = process.env.GATEWAY_TEST_ENDPOINTS === 'all';
const SERVERS_FILE = process.env.GATEWAY_TEST_SERVERS && resolve(process.env.GATEWAY_TEST_SERVERS);
const SERVERS = SERVERS_FILE ? JSON.parse(readFileSync(SERVERS_FILE, 'utf8')) : {};
const HAS_DIALECTS = process.env.GATEWAY_TEST_VENDORS === 'dialects';

/** The addresses in conf/local.yaml. Each world replaces all of them by its own. */
const SHIPPED_PORTS = { edge: 8080, sidecar: 8081, admin: 9090, simulator: 9100 };

async function main(command) {
  if (command.length === 0) throw new Error('usage: run.mjs COMMAND ARGS...');
  const dir = await mkdtemp(join(tmpdir(), 'model-gateway-world-'));
  const binary = await countStarts(findBinary(), dir);
  const processes = [];
  const faults = [];
  const interruption = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) {
    process.on(signal, () => interruption.abort(new Error(`interrupted by ${signal}`)));
  }
  try {
    const ports = await freePorts([...Object.keys(SHIPPED_PORTS), ...(HAS_SHOP ? ['stripe'] : []), ...Object.keys(SERVERS)]);
    const config = join(dir, 'gateway.yaml');
    await writeFile(config, worldConfig(ports, join(dir, 'data')));

    const tls = OVER_H2 ? ['--tls-dir', join(dir, 'tls')] : [];
    const simulator = ['simulate', '--listen', `127.0.0.1:${ports.simulator}`, ...tls];
    processes.push(await start('simulator', binary, simulator, dir));
    await answers(`http://127.0.0.1:${ports.simulator}/_sim/stats`, processes.at(-1), interruption.signal);
    if (HAS_SHOP) {
      processes.push(await start('stripe', binary, ['simulate', '--listen', `127.0.0.1:${ports.stripe}`], dir));
      await answers(`http://127.0.0.1:${ports.stripe}/_sim/stats`, processes.at(-1), interruption.signal);
    }
    for (const [name, server] of Object.entries(SERVERS)) {
      const settings = { PORT: ports[name], SERVERS: dirname(SERVERS_FILE) };
      processes.push({ ...(await start(name, 'sh', ['-c', server.start], dir, settings)), isOurs: false });
      await answers(`http://127.0.0.1:${ports[name]}/health`, processes.at(-1), interruption.signal);
    }
    const trust = OVER_H2 ? { SSL_CERT_FILE: join(dir, 'tls/ca.pem') } : {};
    processes.push(await start('gateway', binary, ['run', '-c', config], dir, trust));
    await answers(`http://127.0.0.1:${ports.admin}/readyz`, processes.at(-1), interruption.signal);

    const status = await runSuite(command, environment({ binary, config, ports, dir }), interruption.signal);
    if (status !== 0) faults.push(`the suite ended with ${status}`);
    if (OVER_H2) faults.push(...(await overH1(ports.simulator)));
    faults.push(...(await stop(processes)), ...ledgerFaults(binary, config), ...(await clearKeys(dir)));
  } catch (error) {
    faults.push(error.message);
  } finally {
    await stop(processes);
  }
  if (faults.length > 0) await showLogs(dir);
  for (const fault of faults) console.error(`world: ${fault}`);
  await rm(dir, { recursive: true, force: true });
  return faults.length === 0 ? 0 : 1;
}

function findBinary() {
  const target = process.env.CARGO_TARGET_DIR || join(REPOSITORY, 'target');
  const binary = process.env.MODEL_GATEWAY_BIN || join(target, 'debug/model-gateway');
  if (!existsSync(binary)) throw new Error(`no binary at ${binary}: build it, or set MODEL_GATEWAY_BIN`);
  return binary;
}

/** Returns a program that runs `binary` and adds a line to the file $PROGRAMS_LOG: scripts/test has a budget of programs. */
async function countStarts(binary, dir) {
  const log = process.env.PROGRAMS_LOG;
  if (!log) return binary;
  const counted = join(dir, 'model-gateway');
  await writeFile(counted, `#!/bin/sh\necho 1 >>'${log}'\nexec '${binary}' "$@"\n`, { mode: 0o755 });
  return counted;
}

/** conf/local.yaml with other addresses, another data directory, and one model that its vendor serves at /v1/responses. */
function worldConfig(ports, dataDir) {
  let text = readFileSync(join(REPOSITORY, 'conf/local.yaml'), 'utf8');
  for (const [name, shipped] of Object.entries(SHIPPED_PORTS)) {
    const pattern = new RegExp(`(127\\.0\\.0\\.1|localhost):${shipped}\\b`, 'g');
    if (!pattern.test(text)) throw new Error(`conf/local.yaml no longer names port ${shipped} (${name})`);
    text = text.replace(pattern, `127.0.0.1:${ports[name]}`);
  }
  // The simulator still serves its own pages without TLS.
  if (OVER_H2) text = text.replaceAll(`http://127.0.0.1:${ports.simulator}`, `https://127.0.0.1:${ports.simulator}`);
  if (!/^data_dir:.*$/m.test(text)) throw new Error('conf/local.yaml has no data_dir');
  const model = /^( +)upstream_model: gpt-5\.5$/m;
  if (!model.test(text)) throw new Error('conf/local.yaml no longer has the model gpt-5.5');
  text = text.replace(model, '$&\n$1upstream_protocol: responses');
  if (HAS_DIALECTS) text = withDialects(text, `http://127.0.0.1:${ports.simulator}`);
  if (HAS_ALL_ENDPOINTS) text = withModels(text, meteredModels());
  for (const [name, { models }] of Object.entries(SERVERS)) {
    text = withVendor(text, name, { protocol: 'chat', auth: 'none', endpoints: [{ url: `http://127.0.0.1:${ports[name]}` }] });
    text = withModels(text, Object.fromEntries(Object.entries(models).map(([id, model]) => [id, { vendor: name, ...model }])));
  }
  if (HAS_SHOP) text += shop(`http://127.0.0.1:${ports.stripe}`);
  // A vendor's retry-after in one test must not affect the next test. Short keep-alives shorten the tests.
  text += 'limits:\n  cool_down_max_seconds: 0\n  stream_keep_alive_seconds: 1\n';
  return text.replace(/^data_dir:.*$/m, `data_dir: ${JSON.stringify(dataDir)}`);
}

/** The section with which credits are sold. The tests of payments have its secrets too. */
function shop(stripe) {
  const secrets = { secret_key: 'sk_test_sdk', webhook_secret: 'whsec_sdk' };
  const payments = { provider: 'stripe', ...secrets, currency: 'usd', credit_price: '0.01', api_base: stripe };
  return `payments: ${JSON.stringify(payments)}\n`;
}

/** Adds the vendors that the simulator plays, each by its preset alone. */
function withDialects(text, simulator) {
  const dialects = JSON.parse(readFileSync(join(REPOSITORY, 'crates/vendor-simulator/dialects/dialects.json'), 'utf8'));
  const models = {};
  for (const [name, { model, keyless }] of Object.entries(dialects)) {
    const vendor = { preset: name, ...(keyless ? {} : { api_key: 'sim-key' }), endpoints: [{ url: `${simulator}/as/${name}` }] };
    const price = { input: '100', cache_read: '10', output: '200' };
    const limits = { context_tokens: 200_000, max_output_tokens: 8_192 };
    text = withVendor(text, `as-${name}`, vendor);
    models[`as-${name}`] = { vendor: `as-${name}`, upstream_model: model, ...limits, price };
  }
  return withModels(text, models);
}

function withVendor(text, name, vendor) {
  return text.replace(/^models:\n/m, () => `  ${name}: ${JSON.stringify(vendor)}\nmodels:\n`);
}

/** The models for endpoints beyond chat. */
function meteredModels() {
  const { metered } = JSON.parse(readFileSync(join(REPOSITORY, 'tests/world/models.json'), 'utf8'));
  return Object.fromEntries(Object.entries(metered).map(([id, model]) => [id, { vendor: 'beta', ...model }]));
}

function withModels(text, models) {
  const lines = Object.entries(models).map(([id, model]) => `  - ${JSON.stringify({ id, ...model })}\n`);
  return text.replace(/^models:\n/m, () => `models:\n${lines.join('')}`);
}

function environment({ binary, config, ports, dir }) {
  const inherited = Object.fromEntries(
    // The SDKs must not see a proxy or a key of the person who runs the tests.
    Object.entries(process.env).filter(
      ([name]) => !/^(https?|all|no)_proxy$|^(OPENAI|ANTHROPIC|ALPHA|BETA)_/i.test(name),
    ),
  );
  return {
    ...inherited,
    MODEL_GATEWAY_BIN: binary,
    GATEWAY_CONFIG: config,
    GATEWAY_DATA_DIR: join(dir, 'data'),
    GATEWAY_BASE_URL: `http://127.0.0.1:${ports.edge}`,
    GATEWAY_ADMIN_URL: `http://127.0.0.1:${ports.admin}`,
    GATEWAY_SIMULATOR_URL: `http://127.0.0.1:${ports.simulator}`,
    ...(HAS_SHOP ? { GATEWAY_STRIPE_URL: `http://127.0.0.1:${ports.stripe}` } : {}),
    GATEWAY_SERVER_URLS: JSON.stringify(
      Object.fromEntries(Object.keys(SERVERS).map((name) => [name, `http://127.0.0.1:${ports[name]}`])),
    ),
  };
}

async function start(name, binary, args, dir, more = {}) {
  const log = await open(join(dir, `${name}.log`), 'w');
  // The process has its own group: Ctrl-C reaches only this program, which then ends its processes in order.
  const child = spawn(binary, args, { cwd: dir, stdio: ['ignore', log.fd, log.fd], detached: true, env: { ...process.env, ...more } });
  const exited = new Promise((done) => {
    child.once('exit', (code, signal) => done(code ?? signal));
    child.once('error', (error) => done(error.message));
  }).finally(() => log.close());
  return { name, child, exited, isOurs: true };
}

/** Waits until `url` answers 200; fails at once if the process behind it ends. */
async function answers(url, { name, exited }, interruption) {
  let ended;
  exited.then((status) => (ended = status));
  const deadline = Date.now() + START_SECONDS * 1000;
  for (;;) {
    const answer = await fetch(url).catch(() => null);
    await answer?.arrayBuffer();
    if (answer?.status === 200) return;
    interruption.throwIfAborted();
    if (ended !== undefined) throw new Error(`the ${name} ended with ${ended} before it was ready`);
    if (Date.now() > deadline) throw new Error(`the ${name} was not ready after ${START_SECONDS} s`);
    await new Promise((done) => setTimeout(done, 50));
  }
}

/** Runs the suite and returns its status. */
function runSuite([program, ...args], env, interruption) {
  interruption.throwIfAborted();
  return new Promise((done, failed) => {
    const child = spawn(program, args, { stdio: ['ignore', 'inherit', 'inherit'], env });
    interruption.addEventListener('abort', () => child.kill('SIGTERM'));
    child.once('error', failed);
    child.once('exit', (code) => done(code ?? 1));
  });
}

/** Ends the processes, the last one first. Returns what went wrong; safe to call twice. */
async function stop(processes) {
  const faults = [];
  for (const { name, child, exited, isOurs } of processes.splice(0).reverse()) {
    child.kill('SIGTERM');
    const late = setTimeout(() => child.kill('SIGKILL'), STOP_SECONDS * 1000);
    const status = await exited;
    clearTimeout(late);
    if (isOurs && status !== 0) faults.push(`the ${name} left with ${status} instead of 0 after SIGTERM`);
  }
  return faults;
}

/** Every suite leaves a ledger in which each debit recomputes and each invariant holds. */
function ledgerFaults(binary, config) {
  const run = spawnSync(binary, ['ledger', 'verify', '-c', config, '--json'], { encoding: 'utf8' });
  if (run.status !== 0) return [`ledger verify ended with ${run.status}: ${run.stdout}${run.stderr}`];
  const { findings } = JSON.parse(run.stdout);
  return findings.map((finding) => `ledger verify found ${JSON.stringify(finding)}`);
}

/** Returns those of the last requests that did not come over HTTP/2. */
async function overH1(port) {
  const requests = await (await fetch(`http://127.0.0.1:${port}/_sim/requests`)).json();
  const others = requests.filter(({ http }) => http !== '2');
  return others.map(({ method, target, http }) => `${method} ${target} came over HTTP/${http}`);
}

/** Reports the files that contain a whole key, of the gateway or of a vendor. */
async function clearKeys(dir) {
  const faults = [];
  for (const entry of await readdir(dir, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile() || entry.name === 'gateway.yaml') continue;
    const text = await readFile(join(entry.parentPath ?? entry.path, entry.name), 'latin1');
    if (/gw-sk-[0-9A-Za-z]{49}|sim-(alpha|beta)-key/.test(text)) faults.push(`${entry.name} holds a key in the clear`);
  }
  return faults;
}

async function showLogs(dir) {
  for (const name of ['simulator', 'gateway', ...Object.keys(SERVERS)]) {
    const text = await readFile(join(dir, `${name}.log`), 'utf8').catch(() => '');
    console.error(`--- the last lines of the ${name}'s log`);
    console.error(text.split('\n').slice(-60).join('\n'));
  }
}

main(process.argv.slice(2)).then(
  (status) => process.exit(status),
  (error) => {
    console.error(`world: ${error.message}`);
    process.exit(1);
  },
);
