// The agents that most people use finish a tool loop of three steps with each vendor that the simulator plays as strictly as
// the real one. A part of the long run: it starts large programs some forty times.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

import { createAccount, credits, eventually, prompt } from '../world/client.mjs';
import { AGENTS, agentTest, work } from './agent.mjs';

const DIALECTS = new URL('../../crates/vendor-simulator/dialects/dialects.json', import.meta.url);
const NAMES = ['Claude Code', 'Codex', 'opencode'];

for (const vendor of Object.keys(JSON.parse(readFileSync(DIALECTS, 'utf8')))) {
  for (const name of NAMES) {
    agentTest(`${name} finishes a tool loop with ${vendor}`, async () => {
      const { key } = await createAccount();
      const agent = AGENTS[name];
      const args = JSON.stringify(agent.args('echo a step >> made.txt; cat made.txt'));
      const task = prompt(`tool=${agent.tool} args=${args} steps=3 text=finished`);

      const { status, text, made } = await work(agent, { model: `as-${vendor}`, key, prompt: task });

      assert.equal(status, 0, text);
      assert.equal(made, 'a step\n'.repeat(3), text);
      assert.match(text, /finished/);
      await eventually('all of it is paid', async () => Number((await credits(key)).held) === 0);
    });
  }
}
