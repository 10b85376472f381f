// The two things that pages do by themselves: show the balance live, and copy a block of text.
// Everything works without this file; it adds nothing that cannot be had by reloading.
"use strict";

const RETRY_MS = 1000;
const RETRY_MS_MAX = 15000;

function showLive(section) {
  const mark = section.querySelector("[data-live-state]");
  let source = null;
  let waitMs = RETRY_MS;
  let timer = 0;

  const say = (state) => {
    mark.hidden = false;
    mark.className = `mark ${state}`;
    mark.textContent = state === "live" ? "live" : "not live, reconnecting…";
  };

  const stop = () => {
    clearTimeout(timer);
    if (source) source.close();
    source = null;
  };

  const again = () => {
    stop();
    say("stale");
    timer = setTimeout(start, waitMs);
    waitMs = Math.min(waitMs * 2, RETRY_MS_MAX);
  };

  const start = () => {
    stop();
    source = new EventSource(section.dataset.live);
    source.addEventListener("open", () => say("live"));
    source.addEventListener("error", again);
    source.addEventListener("balance", (event) => {
      waitMs = RETRY_MS;
      for (const [field, text] of Object.entries(JSON.parse(event.data))) {
        const element = section.querySelector(`[data-live-field="${field}"]`);
        if (element && element.textContent !== text) element.textContent = text;
      }
    });
  };

  // A browser opens few connections to one host: a tab that nobody sees does not keep one.
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  addEventListener("pagehide", stop);
  addEventListener("pageshow", (event) => event.persisted && start());
  if (!document.hidden) start();
}

function addCopyButton(block) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy quiet";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const text = block.querySelector("code").textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      // Over plain HTTP there is no clipboard: mark the text, so that one keystroke copies it.
      getSelection().selectAllChildren(block.querySelector("code"));
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  block.append(button);
}

document.querySelectorAll("[data-live]").forEach(showLive);
document.querySelectorAll("pre").forEach(addCopyButton);
