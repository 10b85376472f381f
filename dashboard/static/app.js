// Scripts of all pages: update an account live, show times, open rows, copy a text.
// Everything works without this file: a reload or the tables show the same.
"use strict";

const RETRY_MS = 1000;
const RETRY_MS_MAX = 15000;
// The gateway sends an event every 5 s. After this time without one, the page marks its data as stale.
const SILENCE_MS = 12000;

/** Puts a number or a text into an element. An amount is complete as text; the style shows its first decimals (`LiveAmount`). */
function showText(element, text) {
  if (!element.dataset.decimals) {
    element.textContent = text;
    return;
  }
  const decimals = Number(element.dataset.decimals);
  const part = (name, content) => Object.assign(document.createElement("span"), { className: name, textContent: content });
  const [whole, fraction = ""] = text.split(".");
  const parts = [...whole].map((digit, index) => {
    const left = whole.length - index;
    return left > 1 && left % 3 === 1 && digit !== "-" ? part("thousands", digit) : digit;
  });
  const shown = fraction.slice(0, decimals);
  if (shown) parts.push(`.${shown}`);
  if (fraction.length > decimals) parts.push(part("rest", fraction.slice(decimals)));
  if (shown.length < decimals) {
    const pad = part("", "");
    pad.dataset.pad = `${shown ? "" : "."}${"0".repeat(decimals - shown.length)}`;
    parts.push(pad);
  }
  element.replaceChildren(...parts);
}

/** Ticks the steps of a new account; `done` has one digit for each. */
function showSteps(list, done) {
  [...(list?.children ?? [])].forEach((step, index) => {
    const isDone = done[index] === "1";
    step.classList.toggle("done", isDone);
    step.querySelector("[data-done]").textContent = isDone ? ", done" : "";
  });
}

function showLive(section) {
  const mark = section.querySelector("[data-live-state]");
  let source = null;
  let waitMs = RETRY_MS;
  let timer = 0;
  let silence = 0;
  let heardAt = new Date();

  const say = (state) => {
    mark.hidden = false;
    mark.className = `mark ${state}`;
    section.classList.toggle("old", state === "stale");
    const text = state === "live" ? "live" : `not live since ${heardAt.toLocaleTimeString()}, reconnecting…`;
    if (mark.textContent !== text) mark.textContent = text;
  };

  const stop = () => {
    clearTimeout(timer);
    clearTimeout(silence);
    if (source) source.close();
    source = null;
  };

  const again = () => {
    stop();
    say("stale");
    timer = setTimeout(start, waitMs);
    waitMs = Math.min(waitMs * 2, RETRY_MS_MAX);
  };

  // Only data that has just arrived is live.
  const heard = () => {
    heardAt = new Date();
    waitMs = RETRY_MS;
    clearTimeout(silence);
    silence = setTimeout(again, SILENCE_MS);
    say("live");
  };

  const start = () => {
    stop();
    source = new EventSource(section.dataset.live);
    silence = setTimeout(again, SILENCE_MS);
    source.addEventListener("error", again);
    source.addEventListener("beat", heard);
    source.addEventListener("balance", (event) => {
      const fields = JSON.parse(event.data);
      for (const [field, text] of Object.entries(fields)) {
        const element = section.querySelector(`[data-live-field="${field}"]`);
        if (element && element.textContent !== text) showText(element, text);
        const bar = section.querySelector(`[data-live-value="${field}"]`);
        if (bar) bar.value = text;
      }
      showSteps(section.querySelector("[data-live-steps]"), fields.steps ?? "");
      heard();
    });
    source.addEventListener("responses", (event) => {
      // The page's own markup; the gateway has rendered and escaped it.
      const rows = section.querySelector("[data-live-rows]");
      if (rows) {
        rows.innerHTML = JSON.parse(event.data);
        showLocalTimes(rows);
      }
      section.dispatchEvent(new Event("responses"));
      heard();
    });
  };

  // A browser opens only a few connections to one host, so a hidden tab closes its own, and is stale when it is shown again.
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) return start();
    stop();
    say("stale");
  });
  addEventListener("pagehide", stop);
  addEventListener("pageshow", (event) => event.persisted && start());
  if (!document.hidden) start();
}

const [MINUTE_S, HOUR_S, DAY_S] = [60, 3600, 86400];
const RENEW_MS = 30000;
const LOCAL_TIME = new Intl.DateTimeFormat("en", {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  hourCycle: "h23", timeZoneName: "short",
});
const LOCAL_DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const LOCAL_YEAR = new Intl.DateTimeFormat("en-GB", { year: "numeric", month: "short", day: "numeric" });

/** The reader's own time, exactly: "2026-11-21 13:00:00 GMT+1". */
function exactTime(date) {
  const part = Object.fromEntries(LOCAL_TIME.formatToParts(date).map(({ type, value }) => [type, value]));
  return `${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second} ${part.timeZoneName}`;
}

/** "5 min ago" on the same day, "21 Nov, 13:00" in the same year, else "21 Nov 2025". */
function shortTime(date, now) {
  const seconds = (now - date) / 1000;
  if (seconds >= 0 && seconds < DAY_S) {
    if (seconds < MINUTE_S) return "just now";
    return seconds < HOUR_S ? `${Math.floor(seconds / MINUTE_S)} min ago` : `${Math.floor(seconds / HOUR_S)} h ago`;
  }
  const isNear = date.getFullYear() === now.getFullYear() || Math.abs(seconds) < 90 * DAY_S;
  return (isNear ? LOCAL_DAY : LOCAL_YEAR).format(date);
}

/** How far the gateway's clock is ahead of the reader's, in ms, when the page came. */
const CLOCK_OFFSET_MS = Number(document.documentElement.dataset.now || Date.now()) - Date.now();

/** Replaces each UTC time by the reader's own. The title keeps the UTC time. On documents (`data-exact`) it has seconds. */
function showLocalTimes(root) {
  const now = new Date(Date.now() + CLOCK_OFFSET_MS);
  for (const element of root.querySelectorAll("time[datetime]")) {
    const date = new Date(element.dateTime);
    const text = element.closest("[data-exact]") ? exactTime(date) : shortTime(date, now);
    if (element.textContent !== text) element.textContent = text;
  }
}

/** On paper, a time is read later, and elsewhere. */
function showPrintedTimes() {
  for (const element of document.querySelectorAll("time[title]")) element.textContent = element.title;
}

/** Opens the link of a row that was clicked beside it. */
function openRow(event) {
  const link = event.target.closest("tr")?.querySelector("a.row-link");
  if (!link || event.target.closest("a, button, input, select, label, summary") || !getSelection().isCollapsed) return;
  link.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true, ctrlKey: event.ctrlKey, metaKey: event.metaKey, shiftKey: event.shiftKey }));
}

function addCopyButton(place, text, mark, what) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy quiet";
  const word = document.createElement("span");
  word.setAttribute("aria-live", "polite");
  word.textContent = "Copy";
  button.append(word);
  if (what) {
    const rest = document.createElement("span");
    rest.className = "hidden";
    rest.textContent = ` ${what}`;
    button.append(rest);
  }
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      word.textContent = "Copied";
    } catch {
      // Over plain HTTP there is no clipboard: select the text, so that one keystroke copies it.
      getSelection().selectAllChildren(mark);
      word.textContent = "Selected";
    }
    setTimeout(() => { word.textContent = "Copy"; }, 2000);
  });
  place.append(button);
}

document.addEventListener("DOMContentLoaded", () => {
  showLocalTimes(document);
  setInterval(() => showLocalTimes(document), RENEW_MS);
  addEventListener("beforeprint", showPrintedTimes);
  addEventListener("afterprint", () => showLocalTimes(document));
  document.addEventListener("click", openRow);
  document.querySelectorAll("[data-live]").forEach(showLive);
  document.querySelectorAll("pre").forEach((block) => {
    const code = block.querySelector("code");
    addCopyButton(block, () => code.textContent, code);
  });
  document.querySelectorAll("[data-copy]").forEach((place) => {
    const code = place.querySelector("code");
    addCopyButton(place, () => code.textContent, code, code.textContent);
  });
  document.querySelectorAll("[data-print]").forEach((button) => {
    button.hidden = false;
    button.addEventListener("click", () => print());
  });
});
