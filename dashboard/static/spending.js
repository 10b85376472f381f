// The spending page: renews its numbers and its chart while responses end. A reload shows the same.
"use strict";

// The page is loaded again at most this often.
const REFRESH_MS = 1000;

/** Replaces the parts of the page by those of a new load of it, unless the reader is using one of them. */
function keepFresh(section) {
  let timer = 0;
  let isLoading = false;
  const parts = (root) => [...root.querySelectorAll("[data-part]")];
  const isInUse = () => {
    const selection = getSelection();
    return parts(section).some((part) => part.contains(document.activeElement) || (!selection.isCollapsed && selection.containsNode(part, true)));
  };

  const later = () => {
    if (!timer) timer = setTimeout(refresh, REFRESH_MS);
  };

  const refresh = async () => {
    timer = 0;
    if (document.hidden) return;
    if (isLoading || isInUse()) return later();
    isLoading = true;
    try {
      const response = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "error" });
      if (!response.ok || isInUse()) return;
      const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
      const [old, renewed] = [parts(section), parts(fresh)];
      // The first response in this time brings a table that the page does not have yet.
      if (old.length !== renewed.length) return location.reload();
      old.forEach((part, index) => {
        const scrolled = part.querySelector(".scroll")?.scrollLeft ?? 0;
        const next = document.adoptNode(renewed[index]);
        part.replaceWith(next);
        if (scrolled) next.querySelector(".scroll").scrollLeft = scrolled;
      });
      section.querySelectorAll("[data-chart]").forEach((figure) => figure.dispatchEvent(new Event("redraw")));
    } catch {
      // The live mark shows that the gateway cannot be reached; the next response tries again.
    } finally {
      isLoading = false;
    }
  };

  section.addEventListener("responses", later);
}

document.querySelectorAll("[data-refresh]").forEach(keepFresh);
