// Draws charts as SVG from the tables of a page. Without this file, the tables say the same. It uses names of `app.js`.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const CHART_HEIGHT = 220;
const PLOT = { left: 46, right: 6, top: 12, bottom: 24 };
const MAX_BAR_WIDTH = 40;
/** Least distance between two labels below the chart, in pixels. */
const LABEL_WIDTH = 72;

/** Reads the columns of a table that belong together, in order of their `data-x`. */
function readTable(table, group) {
  const heads = [...table.tHead.rows[0].cells];
  const rows = [...table.tBodies[0].rows].sort((a, b) => a.dataset.x - b.dataset.x);
  const columns = heads.map((head, index) => ({ head, index })).filter(({ head }) => head.dataset.series === group);
  const number = (cell) => Number(cell.dataset.n ?? cell.querySelector("data")?.value ?? cell.textContent);
  return {
    x: rows.map((row) => Number(row.dataset.x)),
    labels: rows.map((row) => row.cells[0].textContent.trim()),
    series: columns.map(({ head, index }) => ({
      name: head.textContent,
      colour: head.dataset.colour,
      values: rows.map((row) => number(row.cells[index])),
    })),
  };
}

/** Leaves out the times before the first value: an account has no past before its first day. */
function fromFirstUse({ x, labels, series }) {
  const first = x.findIndex((_, index) => series.some(({ values }) => values[index] !== 0));
  const cut = (list) => list.slice(Math.max(first, 0));
  return { x: cut(x), labels: cut(labels), series: series.map((one) => ({ ...one, values: cut(one.values) })) };
}

/** The text below a bar that stands for `step` seconds. Charts are in UTC. */
function tickText(step, seconds) {
  const form = step <= HOUR_S
    ? { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }
    : step <= DAY_S ? { day: "numeric", month: "short" } : { month: "short", year: "numeric" };
  return new Date(seconds * 1000).toLocaleString("en", { ...form, timeZone: "UTC" });
}

/** Round numbers from 0 to at least `max`, about four. */
function roundTicks(max) {
  const rough = max / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough) * power;
  return Array.from({ length: Math.ceil(max / step - 1e-9) + 1 }, (_, index) => index * step);
}

function element(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function html(name, className, ...children) {
  const made = document.createElement(name);
  made.className = className;
  made.append(...children);
  return made;
}

const write = (value) => value.toLocaleString("en", { maximumFractionDigits: 4 }).replaceAll(",", "\u202f");

/**
 * A chart: an area for one series over time, else stacked bars, the first series at the bottom. The pointer and the arrow keys
 * show the numbers of one time. An event "redraw" draws the table's new contents.
 */
function drawChart(figure) {
  const unit = figure.dataset.unit;
  // Seconds from one bar to the next. Without it, the bars are turns.
  const step = Number(figure.dataset.step ?? 0);
  const legend = document.createElement("figcaption");
  const plot = html("div", "chart");
  plot.tabIndex = 0;
  plot.setAttribute("role", "img");
  const tip = html("div", "tip");
  tip.hidden = true;
  const spoken = html("p", "hidden");
  spoken.setAttribute("aria-live", "polite");
  figure.append(legend, plot, spoken);

  let data = { x: [], labels: [], series: [] };
  let [marker, at, band] = [null, null, 0];

  const show = (index, isSpoken) => {
    at = Math.min(Math.max(index, 0), data.x.length - 1);
    const rows = data.series.filter(({ values }) => values[at] > 0);
    const sum = data.series.reduce((total, { values }) => total + values[at], 0);
    const title = `${step ? "" : "Turn "}${data.labels[at]}`;
    tip.replaceChildren(
      html("strong", "", title),
      html("span", "tip-sum", `${write(sum)} ${unit}`),
      ...(data.series.length > 1 ? rows.toReversed().map(({ name, colour, values }) => html("span", `legend colour-${colour}`, name, html("b", "", write(values[at])))) : []),
    );
    tip.hidden = false;
    const middle = PLOT.left + band * (at + 0.5);
    marker.setAttribute("x", middle - band / 2);
    marker.setAttribute("visibility", "visible");
    // Beside the bar, on the side that has room. A single bar is much narrower than its band.
    const isRight = middle > plot.clientWidth / 2;
    const away = Math.min(band, MAX_BAR_WIDTH) / 2 + 8;
    tip.style.left = isRight ? "" : `${middle + away}px`;
    tip.style.right = isRight ? `${plot.clientWidth - middle + away}px` : "";
    if (isSpoken) spoken.textContent = `${title}: ${write(sum)} ${unit}`;
  };
  const hide = () => {
    at = null;
    tip.hidden = true;
    marker?.setAttribute("visibility", "hidden");
  };

  const build = () => {
    const width = Math.max(plot.clientWidth, 200);
    const [inner, bottom] = [width - PLOT.left - PLOT.right, CHART_HEIGHT - PLOT.bottom];
    const { x, labels, series } = data;
    band = inner / x.length;
    const sums = x.map((_, index) => series.reduce((sum, { values }) => sum + Math.max(values[index], 0), 0));
    const ticks = roundTicks(Math.max(...sums) || 1);
    const y = (value) => bottom - ((bottom - PLOT.top) * value) / ticks.at(-1);
    const parts = [];
    for (const tick of ticks) {
      parts.push(element("line", { class: "grid", x1: PLOT.left, x2: width - PLOT.right, y1: y(tick), y2: y(tick) }));
      parts.push(element("text", { x: PLOT.left - 8, y: y(tick) + 4, "text-anchor": "end" }, tick.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 3 })));
    }
    const every = Math.ceil(LABEL_WIDTH / band);
    x.forEach((seconds, index) => {
      // From the right: the newest time always has its label.
      if ((x.length - 1 - index) % every) return;
      const middle = PLOT.left + band * (index + 0.5);
      const text = step ? tickText(step, seconds) : labels[index];
      const isLast = middle > width - LABEL_WIDTH / 2;
      parts.push(element("text", { x: isLast ? width - PLOT.right : middle, y: CHART_HEIGHT - 6, "text-anchor": isLast ? "end" : "middle" }, text));
    });
    marker = element("rect", { class: "marker", y: PLOT.top, width: band, height: bottom - PLOT.top, visibility: "hidden" });
    parts.push(marker);
    if (series.length === 1 && step && x.length > 1) {
      const points = sums.map((sum, index) => `${PLOT.left + band * (index + 0.5)} ${y(sum)}`).join("L");
      const [start, end] = [PLOT.left + band / 2, PLOT.left + band * (x.length - 0.5)];
      parts.push(element("path", { class: `area colour-${series[0].colour}`, d: `M${start} ${bottom}L${points}L${end} ${bottom}Z` }));
      parts.push(element("path", { class: `curve colour-${series[0].colour}`, d: `M${points}` }));
    } else {
      const bar = Math.min(band * 0.72, MAX_BAR_WIDTH);
      const below = x.map(() => 0);
      for (const { colour, values } of series) {
        // One path for all bars of a series: ten years have thousands.
        const d = values.map((value, index) => {
          if (value <= 0) return "";
          const [low, high] = [y(below[index]), y(below[index] + value)];
          below[index] += value;
          return `M${PLOT.left + band * (index + 0.5) - bar / 2} ${low}V${high}h${bar}V${low}Z`;
        });
        parts.push(element("path", { class: `bars colour-${colour}`, d: d.join("") }));
      }
    }
    const image = element("svg", { viewBox: `0 0 ${width} ${CHART_HEIGHT}`, width, height: CHART_HEIGHT, "aria-hidden": "true", focusable: "false" }, ...parts);
    plot.replaceChildren(image, tip);
  };

  const draw = () => {
    const table = document.getElementById(figure.dataset.chart);
    if (table) data = readTable(table, figure.dataset.group ?? "");
    if (step) data = fromFirstUse(data);
    figure.hidden = data.x.length === 0 || data.series.length === 0;
    if (figure.hidden) return;
    legend.replaceChildren(...data.series.map(({ name, colour }) => html("span", `legend colour-${colour}`, name)));
    legend.hidden = data.series.length === 1 && step > 0 && data.series[0].name.toLowerCase() === unit;
    const sum = data.series.flatMap(({ values }) => values).reduce((total, value) => total + value, 0);
    const span = data.x.length > 1 ? `${data.labels[0]} to ${data.labels.at(-1)}` : data.labels[0];
    plot.setAttribute("aria-label", `Chart of ${unit}, ${span}: ${write(sum)} in all. The table has the same data; arrow keys show one bar after the other.`);
    const shown = at;
    build();
    if (shown !== null) show(shown, false);
  };

  plot.addEventListener("pointermove", (event) => {
    const left = event.clientX - plot.getBoundingClientRect().left - PLOT.left;
    show(Math.floor(left / band), false);
  });
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const last = data.x.length - 1;
    const to = { ArrowLeft: (at ?? last + 1) - 1, ArrowRight: (at ?? -1) + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") hide();
    if (to === undefined) return;
    event.preventDefault();
    show(to, true);
  });
  draw();
  figure.addEventListener("redraw", draw);
  let drawn = plot.clientWidth;
  new ResizeObserver(() => {
    if (figure.hidden || plot.clientWidth === drawn) return;
    drawn = plot.clientWidth;
    draw();
  }).observe(figure);
}

document.querySelectorAll("[data-chart]").forEach(drawChart);
