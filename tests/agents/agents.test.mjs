// Each agent completes a task: it calls its own shell tool and sends the result back to the model, with a model of each
// kind of vendor. The model is simulated; the agent and its changes to its folder are not.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { createAccount, credits, eventually, prompt, SIMULATOR_URL } from '../world/client.mjs';
import { AGENTS, HAS_PROGRAMS, work } from './agent.mjs';

/** Number of requests that the simulated vendors have answered. */
const answered = async () => (await (await fetch(`${SIMULATOR_URL}/_sim/stats`)).json()).completed;

for (const [name, agent] of Object.entries(AGENTS)) {
  for (const model of agent.models) {
    test(`${name} calls its tool and reads the result with ${model}`, async (t) => {
      if (!HAS_PROGRAMS) return t.skip(`no programs for ${process.platform} on ${process.arch}`);
      const { key } = await createAccount();
      const before = await answered();
      const args = JSON.stringify(agent.args('echo made by an agent > made.txt; echo it is made'));
      const task = prompt(`tool=${agent.tool} args=${args}`);

      const { status, text, made } = await work(agent, { model, key, prompt: task });

      assert.equal(status, 0, text);
      assert.equal(made, 'made by an agent\n', text);
      // The simulated model repeats the tool's output.
      assert.match(text, /it is made/);
      assert.ok((await answered()) >= before + 2, 'the result went back to the model');
      await eventually('all of it is paid', async () => {
        const { balance, held } = await credits(key);
        return Number(held) === 0 && Number(balance) < 300;
      });
    });
  }
}
