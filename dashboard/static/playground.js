// The playground: sends a conversation to a model, and shows the answer, its cost and its receipt.
// The key is in the memory of this page only. Texts are written as text, never as markup.
// Without this file, the page shows the request as a curl line.
"use strict";

{
  /** Maximum number of questions in a conversation: each sends all turns before it again. */
  const MAX_TURNS = 20;
  /** Maximum size of one event of a stream, in characters. */
  const MAX_EVENT_CHARS = 1 << 20;
  /** An answer that was stopped is billed a little later. */
  const MAX_RECEIPT_LOOKUPS = 20;
  const RECEIPT_LOOKUP_MS = 500;
  /** A new key can take a moment until every edge knows it. */
  const MAX_KEY_TRIES = 5;
  const KEY_TRY_MS = 500;
  /** A key is replaced this long before it expires. */
  const KEY_MARGIN_MS = 60_000;
  const MICRO = 1_000_000;

  const byId = (id) => document.getElementById(id);
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));

  /** Its text is for the user. */
  class PlaygroundError extends Error {}

  const surfaces = {
    chat: {
      path: "/v1/chat/completions",
      body: ({ system, turns, outputTokens }) => ({
        messages: [...(system ? [{ role: "system", content: system }] : []), ...turns],
        max_completion_tokens: outputTokens,
        stream_options: { include_usage: true },
      }),
      read: (event) => {
        const [choice] = event.choices ?? [];
        return {
          text: choice?.delta?.content ?? choice?.delta?.refusal,
          isCut: choice?.finish_reason === "length",
          fault: event.error?.message,
        };
      },
    },
    messages: {
      path: "/v1/messages",
      body: ({ system, turns, outputTokens }) => ({ ...(system && { system }), messages: turns, max_tokens: outputTokens }),
      read: (event) => ({
        text: event.type === "content_block_delta" ? event.delta.text : undefined,
        isCut: event.delta?.stop_reason === "max_tokens",
        fault: event.type === "error" ? event.error?.message : undefined,
      }),
    },
    responses: {
      path: "/v1/responses",
      body: ({ system, turns, outputTokens }) => ({
        ...(system && { instructions: system }),
        input: turns,
        max_output_tokens: outputTokens,
        store: false,
      }),
      read: (event) => ({
        text: ["response.output_text.delta", "response.refusal.delta"].includes(event.type) ? event.delta : undefined,
        isCut: event.type === "response.incomplete",
        fault: event.type === "error" ? (event.message ?? event.error?.message) : event.response?.error?.message,
      }),
    },
  };

  /** The events of a stream, parsed, one at a time. */
  async function* readEvents(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      if (rest.length > MAX_EVENT_CHARS) throw new PlaygroundError("An event of the answer is too long to be shown.");
      for (const line of lines) {
        const data = line.startsWith("data:") ? line.slice(5).trim() : "";
        if (data && data !== "[DONE]") yield JSON.parse(data);
      }
    }
  }

  /** The text of a refusal: that of the gateway if there is one. */
  async function describeRefusal(response) {
    const text = await response.text().catch(() => "");
    let message = "";
    try {
      message = JSON.parse(text).error.message;
    } catch {
      // Of a proxy in front of the gateway.
    }
    const pause = response.headers.get("retry-after");
    const again = pause ? ` Try again in ${pause} s.` : "";
    return `${message || "The answer is not one of the gateway."} (status ${response.status})${again}`;
  }

  function start() {
    const [form, model, turnList] = [byId("ask"), byId("model"), byId("turns")];
    const field = (name) => form.elements[name];
    let turns = [];
    let spent = 0;
    let key = null;
    let running = null;

    const say = (text) => { byId("state").textContent = text; };
    const showFault = (text) => {
      byId("fault").textContent = text;
      byId("fault").hidden = !text;
    };

    const toEnd = () => { turnList.scrollTop = turnList.scrollHeight; };
    const chosen = () => model.selectedOptions[0].dataset;
    const showModel = () => {
      const { about, maxOutput, maxTemperature } = chosen();
      byId("about").firstChild.textContent = `${about} `;
      field("output_tokens").max = maxOutput;
      field("output_tokens").value = Math.min(field("output_tokens").value, maxOutput);
      field("temperature").disabled = !maxTemperature;
      field("temperature").max = maxTemperature ?? "";
      byId("temperature-rule").textContent = maxTemperature
        ? `0 to ${maxTemperature}. Empty: the model's own default.`
        : "This model takes no temperature.";
    };

    /** The key of this page, or a new one if it ends soon or the user changed its limit. */
    const getKey = async () => {
      const credits = field("credits").value;
      if (key && key.credits === credits && Date.now() < key.expiresAt - KEY_MARGIN_MS) return key;
      const response = await fetch("/dashboard/playground/key", {
        method: "POST",
        body: new URLSearchParams({ csrf: field("csrf").value, credits }),
        redirect: "manual",
      });
      if (response.type === "opaqueredirect" || response.status === 403) {
        throw new PlaygroundError("Your session has ended. Reload the page and sign in again.");
      }
      if (response.status !== 201) throw new PlaygroundError(await describeRefusal(response));
      const made = await response.json();
      key = { text: made.key, expiresAt: made.expires_at_ms, credits };
      return key;
    };

    /** Sends a request with the key; gets a new one if the gateway no longer takes it. */
    const send = async (path, options) => {
      for (let tries = 1; ; tries += 1) {
        const isNew = !key;
        const { text } = await getKey();
        const response = await fetch(path, {
          ...options,
          credentials: "omit",
          headers: { authorization: `Bearer ${text}`, "content-type": "application/json" },
        });
        if (response.status !== 401 || tries === MAX_KEY_TRIES) return response;
        if (isNew || tries > 1) await wait(KEY_TRY_MS);
        else key = null;
      }
    };

    const showReceipt = async (requestId, place) => {
      const link = document.createElement("a");
      link.href = `/dashboard/activity/${encodeURIComponent(requestId)}`;
      link.textContent = "Receipt";
      place.textContent = "The receipt comes when the answer is billed.";
      for (let lookup = 0; lookup < MAX_RECEIPT_LOOKUPS; lookup += 1) {
        const response = await send(`/v1/receipts/${encodeURIComponent(requestId)}`, {});
        if (response.ok) {
          const { credits, usage, estimated } = await response.json();
          const count = (...names) => names.reduce((sum, name) => sum + (usage[name] ?? 0), 0);
          const input = count("input", "cache_read", "cache_write_5m", "cache_write_1h");
          spent += Math.round(Number(credits) * MICRO);
          byId("spent").textContent = String(spent / MICRO);
          place.textContent = `${credits} credits${estimated ? ", estimated" : ""} · input ${input} tokens, output ${count("output")} tokens · `;
          place.append(link);
          toEnd();
          return;
        }
        if (response.status !== 404) break;
        await wait(RECEIPT_LOOKUP_MS);
      }
      place.textContent = "There is no receipt yet. Activity has it later.";
    };

    const addTurn = (who, text) => {
      const [turn, head, words] = ["div", "h3", "p"].map((tag) => document.createElement(tag));
      head.textContent = who;
      words.textContent = text;
      turn.append(head, words);
      turnList.append(turn);
      turnList.hidden = false;
      toEnd();
      return { turn, words };
    };

    /** Shows an answer while it comes; returns its text. */
    const showAnswer = async (response, surface, words) => {
      let answer = "";
      for await (const event of readEvents(response.body)) {
        const { text, isCut, fault } = surface.read(event);
        if (fault) throw new PlaygroundError(fault);
        if (isCut) say("The answer was cut at its longest length.");
        if (!text) continue;
        if (!answer) say("Answering…");
        answer += text;
        words.append(text);
        toEnd();
      }
      return answer;
    };

    const ask = async () => {
      const surface = surfaces[chosen().surface];
      const question = { role: "user", content: field("message").value };
      const temperature = field("temperature");
      const body = JSON.stringify({
        model: model.value,
        stream: true,
        ...surface.body({
          system: field("system").value,
          turns: [...turns, question],
          outputTokens: Number(field("output_tokens").value),
        }),
        ...(!temperature.disabled && temperature.value && { temperature: Number(temperature.value) }),
      });
      say("Waiting for the model…");
      const response = await send(surface.path, { method: "POST", body, signal: running.signal });
      if (!response.ok) throw new PlaygroundError(await describeRefusal(response));
      field("message").value = "";
      addTurn("You", question.content);
      const { turn, words } = addTurn(model.value, "");
      const notes = document.createElement("p");
      notes.className = "hint";
      const warnings = response.headers.get("x-gateway-warnings");
      if (warnings) notes.textContent = `The gateway changed the request: ${warnings}`;
      let answer = "";
      try {
        answer = await showAnswer(response, surface, words);
      } catch (error) {
        if (error.name !== "AbortError") throw error;
        say("Stopped. You pay for what the model wrote until then.");
      } finally {
        // Of a stopped answer, too.
        answer ||= words.textContent;
        if (answer) turns.push(question, { role: "assistant", content: answer });
        const cost = document.createElement("p");
        cost.className = "hint";
        cost.dataset.testid = "cost";
        turn.append(notes, cost);
        toEnd();
        showReceipt(response.headers.get("x-request-id"), cost).catch(() => {
          cost.textContent = "The receipt cannot be read. Activity has it.";
        });
      }
    };

    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (running) return;
      if (turns.length >= 2 * MAX_TURNS) {
        showFault(`A conversation has at most ${MAX_TURNS} questions here. Start a new one.`);
        return;
      }
      showFault("");
      say("");
      running = new AbortController();
      byId("send").disabled = true;
      byId("clear").disabled = true;
      byId("stop").hidden = false;
      turnList.ariaBusy = "true";
      try {
        await ask();
        if (/…$/.test(byId("state").textContent)) say("");
      } catch (error) {
        say("");
        if (error.name === "AbortError") say("Stopped before an answer.");
        else showFault(error instanceof PlaygroundError ? error.message : "The connection to the gateway broke.");
      } finally {
        running = null;
        byId("send").disabled = false;
        byId("clear").disabled = false;
        byId("stop").hidden = true;
        turnList.ariaBusy = "false";
      }
    });
    byId("stop").addEventListener("click", () => running?.abort());
    byId("clear").addEventListener("click", () => {
      turns = [];
      spent = 0;
      turnList.replaceChildren();
      turnList.hidden = true;
      byId("spent").textContent = "0";
      showFault("");
      say("");
    });
    model.addEventListener("change", showModel);
    byId("choose").addEventListener("submit", (event) => event.preventDefault());
    byId("choose").querySelector("button").hidden = true;
    byId("without-script").hidden = true;
    byId("talk").hidden = false;
    showModel();
  }

  // Without models, the page has no conversation.
  if (byId("talk")) start();
}
