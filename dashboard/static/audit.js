// The service page: shows how far the ledger audit is, and its result. Without this file, the page reloads itself while one runs.
"use strict";

const AUDIT_INTERVAL_MS = 2000;

/** Loads the page again while an audit runs, and renews the bar and its text; at the end the whole section. */
async function renewAudit() {
  const section = document.querySelector("[data-audit]");
  try {
    if (document.hidden) return;
    const response = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "error" });
    if (!response.ok) return;
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    const renewed = fresh.querySelector("[data-audit]");
    const bar = renewed.querySelector("progress");
    if (!bar) {
      const next = document.adoptNode(renewed);
      section.replaceWith(next);
      showLocalTimes(next);
      return;
    }
    const old = section.querySelector("progress");
    [old.max, old.value] = [bar.max, bar.value];
    const text = '[data-testid="audit-progress"]';
    section.querySelector(text).textContent = renewed.querySelector(text).textContent;
  } catch {
    // The gateway cannot be reached: the next attempt shows where the audit is.
  } finally {
    followAudit();
  }
}

function followAudit() {
  if (document.querySelector("[data-audit] progress")) setTimeout(renewAudit, AUDIT_INTERVAL_MS);
}

followAudit();
