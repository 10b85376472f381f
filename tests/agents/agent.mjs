// Runs unmodified terminal coding agents without a terminal, each with its own home and folder. Their settings are what
// `model-gateway clients ID --json` prints for the world of tests/world/run.mjs: the files, variables and commands that the
// set-up pages show. An agent adds only what a run without a person needs.

import { spawn } from 'node:child_process';
import { mkdir, mkdtemp, readFile, readdir, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { BASE_URL, command, skip } from '../world/client.mjs';

const TIMEOUT_SECONDS = 180; // an agent of 200 MB starts slowly on a busy machine
const PACKAGES = fileURLToPath(new URL('node_modules/', import.meta.url));
const MODELS = ['alpha-opus-4-7', 'beta-5.2']; // one for each kind of vendor

/** Defines a test that runs an agent. The packages contain programs for one platform only. */
export function agentTest(name, run) {
  test(name, async (t) => {
    if (process.platform !== 'linux' || process.arch !== 'x64') {
      return skip(t, `the packages have no programs for ${process.platform} on ${process.arch}`);
    }
    await run(t);
  });
}

/**
 * For each agent: the id of its guide, its program, the models to test it with, its own shell tool, and the arguments and
 * variables that are not in the guide. An agent with `settings` has those instead of the files of a guide.
 */
export const AGENTS = {
  'Claude Code': {
    client: 'claude-code',
    program: '@anthropic-ai/claude-code-linux-x64/claude',
    models: MODELS,
    tool: 'Bash',
    args: (line) => ({ command: line, description: 'Do it' }),
    start: ({ prompt }) => ['-p', prompt, '--allowedTools', 'Bash', '--output-format', 'json'],
  },
  Codex: {
    client: 'codex',
    program: '@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex',
    models: MODELS,
    tool: 'exec_command',
    args: (line) => ({ cmd: line }),
    start: ({ prompt }) => ['exec', '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox', prompt],
  },
  opencode: { client: 'opencode', ...opencode(MODELS) },
  // opencode starts slowly, so it runs only once per surface with a model whose vendor has the other protocol.
  'opencode, chat': translated('@ai-sdk/openai-compatible', 'alpha-opus-4-7'),
  'opencode, messages': translated('@ai-sdk/anthropic', 'beta-5.2'),
  Cline: {
    client: 'cline',
    program: '@cline/cli-linux-x64/bin/cline',
    models: MODELS,
    tool: 'run_commands',
    args: (line) => ({ commands: [line] }),
    start: ({ prompt }) => [prompt],
  },
  Continue: {
    client: 'continue',
    program: '@continuedev/cli/dist/cn.js',
    models: MODELS,
    tool: 'Bash',
    args: (line) => ({ command: line }),
    start: ({ prompt }) => ['--auto', '-p', prompt],
  },
  'Copilot CLI': {
    client: 'copilot-cli',
    program: '@github/copilot-linux-x64/copilot',
    models: MODELS,
    tool: 'bash',
    args: (line) => ({ command: line, description: 'Do it' }),
    start: ({ prompt }) => ['--allow-all-tools', '-p', prompt],
  },
  pi: {
    client: 'pi',
    program: '@mariozechner/pi-coding-agent/dist/cli.js',
    models: MODELS,
    tool: 'bash',
    args: (line) => ({ command: line }),
    start: ({ prompt }) => ['-p', prompt],
  },
};

function opencode(models) {
  return {
    program: 'opencode-linux-x64-baseline/bin/opencode',
    models,
    tool: 'bash',
    args: (line) => ({ command: line, description: 'Do it' }),
    // opencode quotes arguments again before the model reads them, so the prompt is on standard input.
    stdin: ({ prompt }) => prompt,
    start: () => ['run'],
    env: { OPENCODE_DISABLE_AUTOUPDATE: '1', OPENCODE_DISABLE_MODELS_FETCH: '1' },
  };
}

/** opencode on the surface that its guide does not use for the model. */
function translated(sdk, model) {
  const provider = {
    npm: sdk,
    name: 'gateway',
    options: { baseURL: `${BASE_URL}/v1`, apiKey: '{env:GATEWAY_KEY}' },
    models: { [model]: { name: model } },
  };
  const settings = { model: `gateway/${model}`, provider: { gateway: provider } };
  return { ...opencode([model]), settings: () => ({ '~/.config/opencode/opencode.json': JSON.stringify(settings) }) };
}

/** What the agent needs to use the gateway: the document of its guide, or its own settings in the same form. */
async function setupFor(agent, { model }) {
  const name = agent.program.split('/').at(-1);
  if (agent.settings) {
    const files = Object.entries(agent.settings()).map(([path, text]) => ({ path, text }));
    return { files, environment: {}, key_environment: [], commands: [], run: name };
  }
  return command('clients', agent.client, '--model', model);
}

/**
 * Runs an agent on `prompt` with `model` until it ends, in an empty folder.
 *
 * Returns its status, its output, and `made`: the text of `made.txt`, or null if there is no such file.
 */
export async function work(agent, { model, key, prompt }) {
  const dir = await mkdtemp(join(tmpdir(), 'model-gateway-agent-'));
  const [home, folder, bin] = ['home', 'work', 'bin'].map((name) => join(dir, name));
  await Promise.all([mkdir(home), mkdir(folder), mkdir(bin)]);
  try {
    const setup = await setupFor(agent, { model });
    for (const { path, text } of setup.files) {
      const file = path.replace(/^~/, home);
      await mkdir(dirname(file), { recursive: true });
      await writeFile(file, text);
    }
    await symlink(join(PACKAGES, agent.program), join(bin, setup.run.split(' ')[0]));
    const env = {
      PATH: `${bin}:${process.env.PATH}`,
      HOME: home,
      GATEWAY_KEY: key,
      ...setup.environment,
      ...Object.fromEntries(setup.key_environment.map((name) => [name, key])),
      ...agent.env,
    };
    for (const line of setup.commands) {
      const { status, text } = await run(line, [], { cwd: folder, env });
      if (status !== 0) throw new Error(`${line} ended with ${status}: ${text}`);
    }
    const ended = await run(setup.run, agent.start({ prompt }), { cwd: folder, env, stdin: agent.stdin?.({ prompt }) });
    return { ...ended, made: await readFile(join(folder, 'made.txt'), 'utf8').catch(() => null) };
  } finally {
    await endProcesses(home);
    await rm(dir, { recursive: true, force: true, maxRetries: 3 });
  }
}

/** Runs a line of the shell, with more arguments, until it ends. */
function run(line, args, { cwd, env, stdin = '' }) {
  return new Promise((done, failed) => {
    // The agent has its own process group: everything that it has started ends with it.
    const child = spawn('sh', ['-c', `${line} "$@"`, 'sh', ...args], { cwd, env, detached: true });
    let text = '';
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (bytes) => (text += bytes));
    const end = () => {
      try {
        process.kill(-child.pid, 'SIGKILL');
      } catch {
        // The group has ended already.
      }
    };
    const late = setTimeout(end, TIMEOUT_SECONDS * 1000);
    child.once('error', failed);
    child.once('close', (code, signal) => {
      clearTimeout(late);
      end();
      done({ status: code ?? signal, text });
    });
    child.stdin.end(stdin);
  });
}

/** Ends what an agent has left behind in another process group, such as a daemon: the processes with this home. */
async function endProcesses(home) {
  for (const pid of (await readdir('/proc')).filter((name) => /^\d+$/.test(name))) {
    // A process that has ended, or that belongs to someone else, has no readable environment.
    const variables = await readFile(`/proc/${pid}/environ`, 'utf8').catch(() => '');
    if (!variables.split('\0').includes(`HOME=${home}`)) continue;
    try {
      process.kill(Number(pid), 'SIGKILL');
    } catch {
      // It has ended meanwhile.
    }
  }
}
