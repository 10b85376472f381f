// Runs unmodified terminal coding agents without a terminal, each with its own home and folder. Only a base address and a
// key point them at the world of tests/world/run.mjs.

import { spawn } from 'node:child_process';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { BASE_URL } from '../world/client.mjs';

const PATIENCE_SECONDS = 180; // an agent of 200 MB starts slowly on a busy machine
const PACKAGES = fileURLToPath(new URL('node_modules/', import.meta.url));

/** The packages contain programs for this platform only. */
export const HAS_PROGRAMS = process.platform === 'linux' && process.arch === 'x64';

/** For each agent: its program, the models to test it with, its own shell tool, its command line and its settings. */
export const AGENTS = {
  'Claude Code': {
    program: '@anthropic-ai/claude-code-linux-x64/claude',
    models: ['alpha-opus-4-7', 'beta-5.2'],
    tool: 'Bash',
    args: (command) => ({ command, description: 'Do it' }),
    start: ({ model, prompt }) => ['-p', prompt, '--model', model, '--allowedTools', 'Bash', '--output-format', 'json'],
    env: ({ key }) => ({
      ANTHROPIC_BASE_URL: BASE_URL,
      ANTHROPIC_API_KEY: key,
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
    }),
  },
  Codex: {
    program: '@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex',
    models: ['alpha-opus-4-7', 'beta-5.2'],
    tool: 'exec_command',
    args: (command) => ({ cmd: command }),
    start: ({ model, prompt }) => [
      'exec', '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox', '-m', model, prompt,
    ],
    settings: () => ({
      '../home/.codex/config.toml': `
        model_provider = "gateway"
        [model_providers.gateway]
        name = "gateway"
        base_url = "${BASE_URL}/v1"
        env_key = "GATEWAY_KEY"
        wire_api = "responses"
        `,
    }),
    env: ({ key }) => ({ GATEWAY_KEY: key }),
  },
  // opencode starts slowly, so it runs only once per surface, with a model whose vendor speaks the other protocol.
  'opencode, chat': opencode('@ai-sdk/openai-compatible', ['alpha-opus-4-7']),
  'opencode, messages': opencode('@ai-sdk/anthropic', ['beta-5.2']),
};

function opencode(sdk, models) {
  return {
    program: 'opencode-linux-x64-baseline/bin/opencode',
    models,
    tool: 'bash',
    args: (command) => ({ command, description: 'Do it' }),
    // opencode quotes arguments again before the model reads them, so the prompt is on standard input.
    stdin: ({ prompt }) => prompt,
    start: ({ model }) => ['run', '-m', `gateway/${model}`],
    settings: ({ model, key }) => ({
      'opencode.json': JSON.stringify({
        autoupdate: false,
        share: 'disabled',
        permission: { bash: 'allow' },
        provider: {
          gateway: {
            npm: sdk,
            name: 'gateway',
            options: { baseURL: `${BASE_URL}/v1`, apiKey: key },
            models: { [model]: { name: model } },
          },
        },
      }),
    }),
    env: () => ({ OPENCODE_DISABLE_AUTOUPDATE: '1', OPENCODE_DISABLE_MODELS_FETCH: '1' }),
  };
}

/**
 * Runs an agent on `prompt` with `model` until it ends, in an empty folder.
 *
 * Returns its status, its output, and `made`: the text of `made.txt`, or null if there is no such file.
 */
export async function work(agent, { model, key, prompt }) {
  const dir = await mkdtemp(join(tmpdir(), 'model-gateway-agent-'));
  const told = { model, key, prompt, home: join(dir, 'home') };
  const folder = join(dir, 'work');
  await Promise.all([mkdir(told.home), mkdir(folder)]);
  for (const [name, text] of Object.entries(agent.settings?.(told) ?? {})) {
    await mkdir(dirname(join(folder, name)), { recursive: true });
    await writeFile(join(folder, name), text);
  }
  try {
    const ended = await run(agent, told, folder);
    return { ...ended, made: await readFile(join(folder, 'made.txt'), 'utf8').catch(() => null) };
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
}

function run(agent, told, folder) {
  const env = {
    PATH: process.env.PATH,
    HOME: told.home,
    XDG_CONFIG_HOME: join(told.home, 'config'),
    XDG_DATA_HOME: join(told.home, 'data'),
    XDG_CACHE_HOME: join(told.home, 'cache'),
    ...agent.env(told),
  };
  return new Promise((done, failed) => {
    // The agent has its own process group: everything that it has started ends with it.
    const child = spawn(join(PACKAGES, agent.program), agent.start(told), { cwd: folder, env, detached: true });
    let text = '';
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (bytes) => (text += bytes));
    const end = () => {
      try {
        process.kill(-child.pid, 'SIGKILL');
      } catch {
        // The group has ended already.
      }
    };
    const late = setTimeout(end, PATIENCE_SECONDS * 1000);
    child.once('error', failed);
    child.once('close', (code, signal) => {
      clearTimeout(late);
      end();
      done({ status: code ?? signal, text });
    });
    child.stdin.end(agent.stdin?.(told) ?? '');
  });
}
