// Scripts of the pages: update an account live, show local times, copy a text, draw charts from tables.
// Everything works without this file: a reload or the tables show the same.
"use strict";

const RETRY_MS = 1000;
const RETRY_MS_MAX = 15000;
// The gateway sends an event every 5 s. After this time without one, the page marks its data as stale.
const SILENCE_MS = 12000;

const CHART_HEIGHT = 220;

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
      for (const [field, text] of Object.entries(JSON.parse(event.data))) {
        const element = section.querySelector(`[data-live-field="${field}"]`);
        if (element && element.textContent !== text) element.textContent = text;
      }
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

const LOCAL_TIME = new Intl.DateTimeFormat("en", {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  hourCycle: "h23", timeZoneName: "short",
});

/** Replaces each UTC time by the reader's own, in the same form: "2026-11-21 13:00:00 GMT+1". The title keeps the UTC time. */
function showLocalTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const parts = LOCAL_TIME.formatToParts(new Date(element.dateTime));
    const part = Object.fromEntries(parts.map(({ type, value }) => [type, value]));
    element.textContent = `${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second} ${part.timeZoneName}`;
    // A label names what is seen.
    const labelled = element.closest("[aria-label]");
    if (labelled) labelled.ariaLabel = labelled.ariaLabel.replace(element.title, element.textContent);
  }
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

/** Reads the columns of a table that belong together, in order of their `data-x`. */
function readTable(table, group) {
  const heads = [...table.tHead.rows[0].cells];
  const rows = [...table.tBodies[0].rows].sort((a, b) => a.dataset.x - b.dataset.x);
  const columns = heads.map((head, index) => ({ head, index })).filter(({ head }) => head.dataset.series === group);
  const number = (cell) => Number(cell.dataset.n ?? cell.querySelector("data")?.value ?? cell.textContent);
  return {
    x: rows.map((row) => Number(row.dataset.x)),
    labels: rows.map((row) => row.cells[0].textContent),
    series: columns.map(({ head, index }) => ({
      name: head.textContent,
      colour: head.dataset.colour,
      values: rows.map((row) => number(row.cells[index])),
    })),
  };
}

const HOUR_S = 3600;
const DAY_S = 86400;
// Distances between the times at an axis: hours, days, months of 30 days, years. A chart uses none that is below its own
// interval, or the same day would stand there twice.
const TICK_SECONDS = [
  ...[1, 2, 3, 4, 6, 8, 12].map((hours) => hours * HOUR_S),
  ...[1, 2, 3, 4, 5, 7, 10, 15, 30, 60, 90, 120, 180, 365, 730, 1825, 3650].map((days) => days * DAY_S),
];

/** The text below a bar that stands for `step` seconds. Charts are in UTC. */
function tickText(step, seconds) {
  const form = step <= HOUR_S
    ? { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }
    : step <= DAY_S ? { day: "numeric", month: "short" } : { month: "short", year: "numeric" };
  return new Date(seconds * 1000).toLocaleString("en", { ...form, timeZone: "UTC" });
}

/** Stacked bars, the first series at the bottom. The table beside it says the same. An event "redraw" draws the table's new contents. */
function drawChart(figure) {
  if (typeof uPlot === "undefined") return;
  const unit = figure.dataset.unit;
  // Seconds from one bar to the next. Without it, the bars are turns.
  const step = Number(figure.dataset.step ?? 0);
  const canvas = document.createElement("div");
  canvas.className = "chart";
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Chart of ${unit}. The table has the same data.`);
  const legend = document.createElement("figcaption");
  const readout = document.createElement("p");
  readout.className = "hint readout";
  figure.append(legend, canvas, readout);

  let [x, labels, series, swatches, plot] = [[], [], [], [], null];

  const write = (value) => value.toLocaleString("en", { maximumFractionDigits: 6 });
  const tell = (index) => {
    const at = index ?? x.length - 1;
    const parts = series.filter(({ values }) => values[at] > 0).map(({ name, values }) => `${name} ${write(values[at])}`);
    const sum = series.reduce((total, { values }) => total + values[at], 0);
    const all = parts.length > 1 ? `: ${parts.join(", ")}` : "";
    readout.textContent = `${step ? "" : "Turn "}${labels[at]}: ${write(sum)} ${unit}${all}`;
  };

  const build = () => {
    const sums = series.map((_, top) => x.map((_, i) => series.slice(0, top + 1).reduce((sum, one) => sum + one.values[i], 0)));
    const ink = getComputedStyle(figure);
    const axis = { stroke: ink.color, grid: { stroke: ink.borderTopColor, width: 1 }, ticks: { stroke: ink.borderTopColor } };
    const bars = uPlot.paths.bars({ size: [0.7, 36] });
    const margin = step ? step / 2 : 0.5;
    return new uPlot(
      {
        width: Math.max(figure.clientWidth, 200),
        height: CHART_HEIGHT,
        legend: { show: false },
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
        cursor: { y: false, drag: { setScale: false, x: false, y: false }, points: { show: false } },
        scales: {
          x: { time: step > 0, range: (_, low, high) => [low - margin, high + margin] },
          y: { range: (_, low, high) => [0, (high || 1) * 1.08] },
        },
        axes: [
          { ...axis, space: 60, ...(step ? { incrs: TICK_SECONDS.filter((seconds) => seconds >= step), values: (_, ticks) => ticks.map((tick) => tickText(step, tick)) } : { incrs: [1, 2, 5, 10, 20, 50, 100] }) },
          { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => tick.toLocaleString("en", { notation: "compact" })) },
        ],
        // The highest sum comes first: each later series covers its lower part.
        series: [
          {},
          ...series.map((one, i) => ({ label: one.name, paths: bars, points: { show: false }, width: 0, fill: getComputedStyle(swatches[i]).getPropertyValue("outline-color") })).reverse(),
        ],
        hooks: { setCursor: [(plot) => tell(plot.cursor.idx)] },
      },
      [x, ...sums.reverse()],
      canvas,
    );
  };

  const draw = () => {
    plot?.destroy();
    plot = null;
    const table = document.getElementById(figure.dataset.chart);
    if (table) ({ x, labels, series } = readTable(table, figure.dataset.group ?? ""));
    figure.hidden = x.length === 0 || series.length === 0;
    if (figure.hidden) return;
    swatches = series.map(({ name, colour }) => {
      const item = document.createElement("span");
      item.className = `legend colour-${colour}`;
      item.textContent = name;
      return item;
    });
    legend.replaceChildren(...swatches);
    plot = build();
    tell(null);
  };

  draw();
  figure.addEventListener("redraw", draw);
  new ResizeObserver(() => plot?.setSize({ width: Math.max(figure.clientWidth, 200), height: CHART_HEIGHT })).observe(figure);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

// By then, the page's other scripts have run: the one that draws charts is among them.
document.addEventListener("DOMContentLoaded", () => {
  showLocalTimes(document);
  document.querySelectorAll("[data-live]").forEach(showLive);
  document.querySelectorAll("pre").forEach((block) => {
    const code = block.querySelector("code");
    addCopyButton(block, () => code.textContent, code);
  });
  document.querySelectorAll("[data-copy]").forEach((place) => {
    const code = place.querySelector("code");
    addCopyButton(place, () => code.textContent, code, code.textContent);
  });
  document.querySelectorAll("[data-chart]").forEach(drawChart);
  document.querySelectorAll("[data-print]").forEach((button) => {
    button.hidden = false;
    button.addEventListener("click", () => print());
  });
});
