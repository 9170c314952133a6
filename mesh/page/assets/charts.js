// The last hour, a line for each region, drawn by uPlot (uplot.js), which is kept here as it was published.

import { count, h, keyed, mark, plain, say } from "./dom.js";
import { panel } from "./panels.js";

/* global uPlot */

const WINDOW_MIN_S = 300;
const HEIGHT = 124;
const LINES_MAX = 8; // as many as can be told apart
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
const NAMES = new Map([
  ["requests", ["Requests", "/s"]],
  ["errors", ["Errors", "/s"]],
  ["waiting", ["Queued requests", ""]],
  ["first_token_p50", ["Time to first token, p50", " s"]],
  ["first_token_p99", ["Time to first token, p99", " s"]],
  ["forwards", ["Forwarded requests", "/s"]],
]);

export function charts() {
  const legend = h("ul", { class: "lines" });
  const note = h("p", { class: "muted" });
  const made = [...NAMES].map(([name, [title, unit]]) => new Chart(name, title, unit));
  const element = panel("charts", "Last hour", legend, h("div", { class: "charts" }, made.map((each) => each.element)), note);
  let hour = null;
  const draw = () => {
    if (!hour) return;
    const all = Object.keys(hour.regions).sort();
    const regions = all.slice(0, LINES_MAX).map((name, index) => ({ name, index }));
    keyed(legend, regions, (each) => each.name, () => h("li", null, h("span", { class: "swatch", "aria-hidden": "true" }), h("span")), (item, each) => {
      mark(item.firstChild, "line", each.index);
      say(item.lastChild, each.name);
    });
    const isEmpty = hour.times_ms.length === 0;
    const left = all.length - regions.length;
    say(note, isEmpty ? "The first values come after half a minute." : `One value in 15 s, of requests that clients sent to a region's gateways. Times are in UTC.${left > 0 ? ` ${count(left)} more regions are not drawn.` : ""}`);
    for (const chart of made) chart.show(hour, regions);
  };
  const again = () => {
    for (const chart of made) chart.forget();
    draw();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  new MutationObserver(again).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  const show = (sections) => {
    hour = sections.hour ?? hour;
    draw();
  };
  return { element, on: ["hour"], show };
}

class Chart {
  constructor(name, title, unit) {
    this.name = name;
    this.title = title;
    this.unit = unit;
    this.plot = null;
    this.lines = "";
    this.canvas = h("div", { class: "plot", role: "img" });
    this.now = h("p", { class: "now" });
    this.element = h("section", { class: "chart", "aria-labelledby": `chart-${name}` }, h("h3", { id: `chart-${name}` }, title), this.now, this.canvas);
    new ResizeObserver(() => this.plot?.setSize({ width: this.canvas.clientWidth, height: HEIGHT })).observe(this.canvas);
  }

  forget() {
    this.plot?.destroy();
    this.plot = null;
  }

  show(hour, regions) {
    const newest = regions.map(({ name }) => `${name} ${this.told(lastOf(hour.regions[name][this.name]))}`);
    say(this.now, regions.length === 1 ? newest[0].slice(regions[0].name.length + 1) : newest.join(" · "));
    this.canvas.setAttribute("aria-label", plain(`${this.title} of the last hour. Now: ${newest.join(", ") || "nothing yet"}`));
    const lines = regions.map((each) => each.name).join("\u0000");
    if (lines !== this.lines) this.forget();
    this.lines = lines;
    if (!regions.length || !this.canvas.clientWidth) return;
    const data = [hour.times_ms.map((each) => each / 1000), ...regions.map(({ name }) => hour.regions[name][this.name])];
    if (this.plot) this.plot.setData(data);
    else this.plot = new uPlot(this.options(regions), data, this.canvas);
  }

  told(value) {
    return value === null || value === undefined ? "–" : `${rounded(value)}${this.unit}`;
  }

  options(regions) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--muted"), font: "11px system-ui, sans-serif", grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1, size: 4 } };
    const times = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", timeZone: "UTC" });
    return {
      width: this.canvas.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      padding: [6, 8, 0, 0],
      scales: {
        x: { time: true, range: (_, oldest, newest) => windowOf(oldest, newest) },
        y: { range: (_, __, most) => [0, most > 0 ? most * 1.08 : 1] },
      },
      axes: [
        { ...axis, size: 26, space: 60, values: (_, splits) => splits.map((each) => times.format(new Date(each * 1000))) },
        { ...axis, size: 48, space: 28, values: (_, splits) => splits.map(rounded) },
      ],
      series: [
        {},
        ...regions.map(({ name, index }) => ({ label: plain(name), stroke: colour(`--line-${index}`), width: 1.5, points: { size: 4, fill: colour(`--line-${index}`) }, dash: DASHES[index % DASHES.length], spanGaps: false })),
      ],
    };
  }
}

// All that is kept, and five minutes at least.
function windowOf(oldest, newest) {
  const end = newest ?? Date.now() / 1000;
  return [Math.min(oldest ?? end, end - WINDOW_MIN_S), end];
}

function lastOf(values) {
  return values[values.length - 1];
}

function rounded(value) {
  if (value === 0) return "0";
  return count(Number(value.toPrecision(value >= 100 ? Math.ceil(Math.log10(value + 1)) : 2)));
}
