// Search in the documentation: its pages are loaded once, and their sections searched for all words. Without this file, the
// navigation leads to the same pages.
"use strict";

const MAX_RESULTS = 12;
const MIN_QUERY_CHARS = 2;

/** The sections of a page: what stands below each heading, with the nearest address. */
function sectionsOf(page, path) {
  const found = [];
  let anchor = "";
  for (const part of page.querySelectorAll("main h2, main h3, main p, main li, main td, main th, main dd")) {
    anchor = part.closest("[id]:not(main)")?.id ?? anchor;
    if (/^H[23]$/.test(part.tagName)) {
      if (part.id) anchor = part.id;
      found.push({ title: part.textContent.trim(), url: `${path}#${anchor}`, text: part.textContent });
    } else if (found.length > 0) {
      found.at(-1).text += ` ${part.textContent}`;
    }
  }
  return found.map((section) => ({ ...section, text: section.text.replace(/\s+/g, " ").toLowerCase() }));
}

function searchDocs(form) {
  const [field, list] = [form.querySelector("input"), document.getElementById("docs-results")];
  const links = [...document.querySelectorAll("[data-docs-nav] a")];
  let index = null;
  const load = async () => {
    const pages = await Promise.all(links.map(async (link) => {
      const response = await fetch(link.href, { headers: { accept: "text/html" } });
      if (!response.ok) return [];
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      return sectionsOf(page, link.pathname).map((section) => ({ ...section, page: link.textContent }));
    }));
    return pages.flat();
  };
  const show = async () => {
    const words = field.value.trim().toLowerCase().split(/\s+/);
    const isShort = field.value.trim().length < MIN_QUERY_CHARS;
    index ??= load().catch(() => []);
    const found = isShort ? [] : (await index).filter(({ text }) => words.every((word) => text.includes(word)));
    // A word in the heading counts most.
    const rank = ({ title }) => words.filter((word) => title.toLowerCase().includes(word)).length;
    found.sort((a, b) => rank(b) - rank(a));
    const items = found.slice(0, MAX_RESULTS).map(({ title, page, url }) => {
      const [item, link] = [document.createElement("li"), document.createElement("a")];
      [link.href, link.textContent] = [url, title];
      item.append(link, ` · ${page}`);
      return item;
    });
    if (items.length === 0 && !isShort) {
      items.push(Object.assign(document.createElement("li"), { textContent: "Nothing found. Try another word." }));
    }
    list.replaceChildren(...items);
    list.hidden = items.length === 0;
  };
  field.addEventListener("input", show);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    list.querySelector("a")?.click();
  });
}

document.querySelectorAll("[data-docs-search]").forEach(searchDocs);
