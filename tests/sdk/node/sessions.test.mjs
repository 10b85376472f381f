// Conversations as agents hold them: tools, thinking and tool results over several turns. Each response is sent back exactly
// as the SDK returned it. The simulated vendors check a history as strictly as the real ones do, including the signatures of
// thinking. The tests also check the requests that the vendor received, since the gateway may retry a refused request without
// its thinking.

import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';

import {
  ALPHA, BETA, chatClient, createAccount, messagesClient, prompt, protocol, vendorRequests, warnings,
} from './harness.mjs';

const ADAPTIVE = 'alpha-opus-4-7'; // thinks as much as it likes, and returns it only on request
const SCHEMA = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
const LONG_ID = `toolu_${'x'.repeat(50)}`; // longer than the chat vendor accepts
const ODD_ID = 'functions.get_weather:0'; // has characters that the messages vendor does not accept

let account;
before(async () => {
  account = await createAccount();
});

/** A conversation on one surface. */
class Talk {
  messages = [];
  thoughts = []; // the signatures that the messages vendor issued, in order
  ids = [];

  constructor(streams) {
    this.streams = streams;
    Object.assign(this, this.open());
  }

  /** Runs one turn of the user, with all responses that it needs; returns the last one's text. */
  async say(model, text) {
    this.messages.push({ role: 'user', content: text });
    for (const sent of [1, 2]) {
      const expected = this.expected(model);
      const answer = await this.ask(model);
      assert.equal(warnings(this.sent), expected);
      const seen = await vendorRequests(text);
      assert.equal(seen.length, sent, 'the gateway asked once');
      this.check(model, seen.at(-1).body);
      this.remember(model, answer);
      const ids = this.calls(answer);
      if (ids.length === 0) return this.text(answer);
      assert.equal(ids.length, 2);
      this.ids.push(...ids);
      this.answer(ids);
    }
    throw new Error('the tool was called again');
  }

  /**
   * The chat vendor accepts no thinking in a request, not even its own, and the gateway warns the caller. The gateway adds
   * `reasoning_details` to thinking that it translated from another vendor; for such thinking there is no warning.
   */
  expected(model) {
    if (this.surface !== 'chat' || protocol(model) !== 'chat') return null;
    const tokens = this.messages.flatMap((message, index) =>
      message.reasoning_content && !message.reasoning_details ? [`dropped:messages[${index}].reasoning_content`] : [],
    );
    return tokens.length > 0 ? tokens.sort().join(', ') : null;
  }

  /** Checks that the vendor received everything that was said, and its own thinking with its own signature. */
  check(model, body) {
    if (protocol(model) === 'messages') {
      const blocks = body.messages.flatMap(({ content }) => (Array.isArray(content) ? content : []));
      const sealed = blocks.filter(({ type }) => type === 'thinking').map(({ signature }) => signature);
      assert.deepEqual(sealed, this.thoughts);
      assert.equal(blocks.filter(({ type }) => type === 'tool_use').length, this.ids.length);
    } else {
      assert.doesNotMatch(JSON.stringify(body), /signature/);
      assert.equal(body.messages.flatMap((message) => message.tool_calls ?? []).length, this.ids.length);
    }
  }
}

class ChatTalk extends Talk {
  surface = 'chat';

  open() {
    return chatClient(account.key, { maxRetries: 0 });
  }

  async ask(model) {
    const tools = [{ type: 'function', function: { name: 'get_weather', parameters: SCHEMA } }];
    const request = { model, max_completion_tokens: 6000, reasoning_effort: 'low', tools, messages: this.messages };
    const completions = this.client.chat.completions;
    const answer = this.streams ? completions.stream(request).finalChatCompletion() : completions.create(request);
    return (await answer).choices[0].message;
  }

  remember(model, message) {
    if (protocol(model) === 'messages') {
      this.thoughts.push(...message.reasoning_details.map(({ signature }) => signature));
    }
    this.messages.push(message);
  }

  calls(message) {
    return (message.tool_calls ?? []).map(({ id }) => id);
  }

  answer(ids) {
    this.messages.push(...ids.map((id) => ({ role: 'tool', tool_call_id: id, content: '{"celsius": 7}' })));
  }

  text(message) {
    return message.content;
  }
}

class MessagesTalk extends Talk {
  surface = 'messages';

  open() {
    return messagesClient(account.key, { maxRetries: 0 });
  }

  ask(model) {
    const manual = { type: 'enabled', budget_tokens: 1024 };
    const thinking = model === ADAPTIVE ? { type: 'adaptive', display: 'summarized' } : manual;
    const tools = [{ name: 'get_weather', input_schema: SCHEMA }];
    const request = { model, max_tokens: 6000, thinking, tools, messages: this.messages };
    return this.streams ? this.client.messages.stream(request).finalMessage() : this.client.messages.create(request);
  }

  remember(model, { role, content }) {
    const thoughts = content.filter(({ type }) => type === 'thinking');
    assert.deepEqual(thoughts.map(({ thinking }) => thinking), ['Rain, I think.']);
    if (protocol(model) === 'messages') this.thoughts.push(...thoughts.map(({ signature }) => signature));
    this.messages.push({ role, content });
  }

  calls({ content }) {
    return content.filter(({ type }) => type === 'tool_use').map(({ id }) => id);
  }

  answer(ids) {
    const content = ids.map((id) => ({ type: 'tool_result', tool_use_id: id, content: '{"celsius": 7}' }));
    this.messages.push({ role: 'user', content });
  }

  text({ content }) {
    return content.filter(({ type }) => type === 'text').map(({ text }) => text).join('');
  }
}

/** The model thinks, writes a text and calls the tool twice; after the results it thinks and writes the text again. */
const question = (text, more = '') =>
  prompt(`thinking="Rain, I think." text="${text}" tool=get_weather args={"city":"Oslo"} tools=2 ${more}`);

for (const Surface of [ChatTalk, MessagesTalk]) {
  for (const streams of [false, true]) {
    describe(`${Surface === ChatTalk ? 'chat' : 'messages'}, ${streams ? 'streamed' : 'whole'}`, () => {
      for (const model of [ALPHA, ADAPTIVE, BETA]) {
        test(`three turns with tools and thinking (${model})`, async () => {
          const talk = new Surface(streams);
          for (const text of ['One.', 'Grüße 🎈, two.', 'Three.']) {
            assert.equal(await talk.say(model, question(text)), text);
          }
          assert.equal(talk.sent.length, 6);
          assert.equal(talk.thoughts.length, protocol(model) === 'messages' ? 6 : 0);
        });
      }

      for (const alpha of [ALPHA, ADAPTIVE]) {
        test(`the model is changed in the middle and changed back (${alpha})`, async () => {
          const talk = new Surface(streams);
          const turns = [
            [alpha, 'One.', `tool_id=${LONG_ID}`],
            [BETA, 'Two.', `tool_id=${ODD_ID}`],
            [alpha, 'Three.', ''],
            [BETA, 'Four.', ''],
          ];
          for (const [model, text, marker] of turns) assert.equal(await talk.say(model, question(text, marker)), text);
          // The caller sees the original ids.
          assert.deepEqual(talk.ids.slice(0, 4), [LONG_ID, `${LONG_ID}_2`, ODD_ID, `${ODD_ID}_2`]);
          assert.equal(talk.thoughts.length, 4);
        });
      }
    });
  }
}
