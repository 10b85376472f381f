// Each agent, set up with what its guide prints, completes a task: it calls its own shell tool and sends the result back to
// the model, with a model of each kind of vendor. The model is simulated; the agent and its changes to its folder are not.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { command, createAccount, credits, eventually, prompt } from '../world/client.mjs';
import { AGENTS, agentTest, work } from './agent.mjs';

test('every agent whose version the pages call tested is run here', async () => {
  const { clients } = await command('clients');
  const tested = clients.filter(({ kind, tried }) => kind !== 'library' && tried?.by === 'tests');
  const run = Object.values(AGENTS).flatMap(({ client }) => client ?? []);
  assert.deepEqual(run.sort(), tested.map(({ id }) => id).sort());
});

for (const [name, agent] of Object.entries(AGENTS)) {
  for (const model of agent.models) {
    agentTest(`${name} calls its tool and reads the result with ${model}`, async () => {
      const { accountId, key } = await createAccount();
      const args = JSON.stringify(agent.args('echo made by an agent > made.txt; echo it is made'));
      const task = prompt(`tool=${agent.tool} args=${args}`);

      const { status, text, made } = await work(agent, { model, key, prompt: task });

      assert.equal(status, 0, text);
      assert.equal(made, 'made by an agent\n', text);
      // The simulated model repeats the tool's output.
      assert.match(text, /it is made/);
      await eventually('all of it is paid', async () => Number((await credits(key)).held) === 0);
      const debits = (await command('ledger', 'show', accountId)).filter(({ kind }) => kind === 'debit');
      assert.ok(debits.length >= 2, 'the result went back to the model');
    });
  }
}

// The errors of a wrong key and of an account without credits reach the user.
for (const name of ['Claude Code', 'Codex', 'pi']) {
  agentTest(`${name} shows why a wrong key is refused`, async () => {
    const key = `gw-sk-${'0'.repeat(49)}`;
    const { text } = await work(AGENTS[name], { model: AGENTS[name].models[0], key, prompt: prompt() });
    assert.match(text, /The API key is not valid/);
  });

  agentTest(`${name} shows that the credits are used up`, async () => {
    const { key } = await createAccount({ trial: false });
    const { text } = await work(AGENTS[name], { model: AGENTS[name].models[0], key, prompt: prompt() });
    assert.match(text, /Insufficient credits/);
  });
}
