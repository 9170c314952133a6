// The regions on a map: how each fares, what is sent from where to where, and where it is night.

import { count, h, keyed, mark, plain, s, say } from "./dom.js";
import { placeOf } from "./places.js";
import { WORLD } from "./world.js";

const NORTH = 80;
const SOUTH = -57;
const NARROW = 620; // below so many pixels only the part of the world is drawn that has regions
const RING = 2 * Math.PI * 11;
const SIGNS = new Map(Object.entries({ healthy: "", busy: "", degraded: "!", closed: "=", down: "×", unknown: "?" }));

export class WorldMap {
  constructor(onChosen) {
    this.regions = [];
    this.forwards = [];
    this.onChosen = onChosen;
    this.world = s("g", { class: "world" }, s("path", { d: WORLD }), s("path", { d: WORLD, transform: "translate(360 0)" }));
    this.night = s("path", { class: "night" });
    this.arrows = s("g");
    this.svg = s(
      "svg", { "aria-hidden": "true" },
      s("defs", null, s("marker", { id: "tip", viewBox: "0 0 10 10", refX: "8", refY: "5", markerWidth: "9", markerHeight: "9", markerUnits: "userSpaceOnUse", orient: "auto-start-reverse" }, s("path", { d: "M0 0L10 5L0 10z", class: "tip" }))),
      this.world, this.night, this.arrows,
    );
    this.rates = h("div", { "aria-hidden": "true" });
    this.spots = h("ul", { class: "spots", "aria-label": "Regions on the map" });
    this.plane = h("div", { class: "plane" }, this.svg, this.rates, this.spots);
    this.beside = h("ul", { class: "beside", "aria-label": "Regions that are not on the map" });
    this.element = h("div", { class: "map" }, this.plane, this.beside, legend());
    new ResizeObserver(() => this.draw()).observe(this.plane);
    setInterval(() => this.draw(), 60000);
  }

  show(regions, forwards) {
    this.regions = regions;
    this.forwards = forwards;
    this.draw();
  }

  draw() {
    const width = this.plane.clientWidth;
    if (!width) return;
    const placed = this.regions.map((region) => ({ region, at: placeOf(region) }));
    const on = placed.filter((each) => each.at);
    const view = viewOf(width, on.map((each) => each.at));
    this.plane.style.height = `${view.height}px`;
    this.svg.setAttribute("viewBox", `0 0 ${view.width} ${view.height}`);
    this.world.setAttribute("transform", `translate(${-view.west * view.scale} ${view.north * view.scale}) scale(${view.scale} ${-view.scale})`);
    this.night.setAttribute("d", nightOf(new Date(), view));
    const points = new Map(apart(on.map((each) => ({ name: each.region.region, ...view.point(each.at) }))).map((each) => [each.name, each]));
    const { sides, boxes } = labelled(on.map((each) => points.get(each.region.region)), view);
    this.drawArrows(points, boxes);
    keyed(this.spots, on.map((each) => each.region), (row) => row.region, () => this.spot(), (element, row) => {
      const point = points.get(row.region);
      this.fillSpot(element, row);
      element.style.left = `${point.x}px`;
      element.style.top = `${point.y}px`;
      mark(element, "side", sides.get(row.region));
    });
    const off = placed.filter((each) => !each.at).map((each) => each.region);
    keyed(this.beside, off, (row) => row.region, () => this.spot(), (element, row) => this.fillSpot(element, row));
    this.beside.hidden = off.length === 0;
  }

  spot() {
    const ring = s("svg", { viewBox: "0 0 30 30", width: "30", height: "30", "aria-hidden": "true" },
      s("circle", { class: "halo", cx: 15, cy: 15, r: 14 }),
      s("circle", { class: "track", cx: 15, cy: 15, r: 11 }),
      s("circle", { class: "busy", cx: 15, cy: 15, r: 11, transform: "rotate(-90 15 15)" }),
      s("circle", { class: "heart", cx: 15, cy: 15, r: 6 }),
      s("text", { x: 15, y: 15, class: "sign" }));
    const label = h("span", { class: "label" }, h("b"), " ", h("span"));
    const button = h("button", { type: "button", class: "spot" }, ring, label);
    button.addEventListener("click", () => this.onChosen(button.parentElement.dataset.region));
    return h("li", null, button);
  }

  fillSpot(element, row) {
    mark(element, "region", row.region);
    mark(element, "health", row.health);
    mark(element, "here", row.is_here);
    const button = element.firstElementChild;
    const [ring, label] = button.children;
    const isThere = row.replicas > 0 && row.health !== "down" && row.health !== "unknown";
    const full = isThere ? Math.max(0, 1 - (row.free + row.down) / row.replicas) : 0;
    ring.children[2].setAttribute("stroke-dasharray", `${full * RING} ${RING}`);
    say(ring.children[4], SIGNS.get(row.health) ?? "?");
    say(label.children[0], row.region);
    say(label.children[1], inShort(row));
    button.setAttribute("aria-label", plain(`${row.region} ${inShort(row)}, ${row.health}`));
  }

  drawArrows(points, boxes) {
    const taken = [...boxes];
    const keyOf = (each) => `${each.origin}\u0000${each.target}`;
    const shown = this.forwards.filter((each) => points.has(each.origin) && points.has(each.target));
    const ways = new Set(shown.map(keyOf));
    const drawn = shown.map((each) => {
      const bends = ways.has(`${each.target}\u0000${each.origin}`) ? [0.3, 0.42] : [0.3, 0.42, -0.3, -0.42];
      return { ...each, ...curve(points.get(each.origin), points.get(each.target), bends, taken) };
    });
    keyed(this.arrows, drawn, keyOf, () => s("path", { class: "arrow", "marker-end": "url(#tip)" }), (element, each) => {
      element.setAttribute("d", each.d);
      element.setAttribute("stroke-width", String(Math.min(1.5 + Math.sqrt(each.per_minute) / 5, 5)));
    });
    keyed(this.rates, drawn, keyOf, () => h("span", { class: "rate" }), (element, each) => {
      say(element, rateOf(each));
      element.hidden = each.isHidden;
      element.style.left = `${each.x}px`;
      element.style.top = `${each.y}px`;
    });
  }
}

export function rateOf(forward) {
  const rate = forward.per_minute;
  return rate > 0 ? `${count(rate < 10 ? rate : Math.round(rate))}/min` : `${count(forward.running)} now`;
}

function inShort(row) {
  if (!row.replicas) return row.waiting ? `${count(row.waiting)} queued` : row.health;
  return `${count(row.free)}/${count(row.replicas)} available${row.waiting ? ` · ${count(row.waiting)} queued` : ""}`;
}

function legend() {
  const signs = ["healthy", "busy", "degraded", "closed", "down", "unknown"];
  return h("p", { class: "legend" }, signs.map((each) => h("span", { class: "health", "data-health": each }, each)),
    h("span", { class: "muted" }, "ring: share of replicas without capacity · arrow: forwards per minute · shade: night"));
}

// All of the world, or on small screens what has regions: pixels for degrees.
function viewOf(width, places) {
  let west = -168, east = 190, north = NORTH, south = SOUTH;
  if (width < NARROW && places.length) {
    const lats = places.map((each) => each[0]), lons = places.map((each) => each[1]);
    west = Math.min(...lons) - 38;
    east = Math.max(...lons) + 38;
    const span = Math.max(east - west, 90), middle = (east + west) / 2;
    west = middle - span / 2;
    east = middle + span / 2;
    const tall = span * 0.62, centre = (Math.max(...lats) + Math.min(...lats)) / 2;
    north = Math.min(NORTH, centre + tall / 2);
    south = Math.max(SOUTH, north - tall);
  }
  const scale = width / (east - west);
  const height = Math.round((north - south) * scale);
  const wrap = (lon) => (lon < west ? lon + 360 : lon);
  return { west, north, scale, width, height, point: ([lat, lon]) => ({ x: (wrap(lon) - west) * scale, y: (north - lat) * scale }) };
}

// Where the sun does not shine: the sun's declination by the day of the year, its longitude by the hour.
function nightOf(now, view) {
  const day = (now - Date.UTC(now.getUTCFullYear(), 0, 0)) / 86400000;
  const declination = (-23.44 * Math.PI / 180) * Math.cos((2 * Math.PI / 365.25) * (day + 10)) || 0.0001;
  const noon = (12 - now.getUTCHours() - now.getUTCMinutes() / 60) * 15;
  const points = [];
  for (let lon = -180; lon <= 200; lon += 3) {
    const lat = Math.atan(-Math.cos((lon - noon) * Math.PI / 180) / Math.tan(declination)) * 180 / Math.PI;
    points.push(`${((lon - view.west) * view.scale).toFixed(1)} ${((view.north - lat) * view.scale).toFixed(1)}`);
  }
  const pole = declination > 0 ? view.height + 400 : -400;
  const right = (200 - view.west) * view.scale, left = (-180 - view.west) * view.scale;
  return `M${points.join("L")}L${right.toFixed(1)} ${pole}L${left.toFixed(1)} ${pole}z`;
}

// Regions that are near each other are pushed apart, so that each can be seen and hit.
function apart(points) {
  const least = 32;
  for (let round = 0; round < 12; round += 1) {
    for (let i = 0; i < points.length; i += 1) {
      for (let j = i + 1; j < points.length; j += 1) {
        const one = points[i], other = points[j];
        const dx = other.x - one.x || 0.5, dy = other.y - one.y, far = Math.hypot(dx, dy);
        if (far >= least) continue;
        const push = (least - far) / 2 / far;
        one.x -= dx * push; one.y -= dy * push;
        other.x += dx * push; other.y += dy * push;
      }
    }
  }
  return points;
}

// On which side of each its label hides least; where it would hide much wherever it stood, it is left to the table.
function labelled(points, view) {
  const isNarrow = view.width < NARROW;
  const sides = new Map();
  const spots = points.map((each) => [each.x - 15, each.y - 15, each.x + 15, each.y + 15]);
  const boxes = [];
  for (const point of points) {
    const wide = 16 + (isNarrow ? 6 : 7) * Math.max(point.name.length, isNarrow ? 0 : 15), high = isNarrow ? 16 : 36;
    const at = (x, y) => [point.x + x, point.y + y, point.x + x + wide, point.y + y + high];
    const choices = {
      right: at(17, -high / 2), left: at(-17 - wide, -high / 2), below: at(-wide / 2, 17), above: at(-wide / 2, -17 - high),
      "below-right": at(8, 12), "below-left": at(-8 - wide, 12), "above-right": at(8, -12 - high), "above-left": at(-8 - wide, -12 - high),
    };
    let best = "right", least = Infinity;
    for (const [side, box] of Object.entries(choices)) {
      const out = Math.max(0, -box[0]) + Math.max(0, box[2] - view.width) + Math.max(0, -box[1]) + Math.max(0, box[3] - view.height);
      const hidden = spots.reduce((sum, each) => sum + 3 * shared(box, each), 0) + boxes.reduce((sum, each) => sum + shared(box, each), 0);
      if (out * 40 + hidden < least) { least = out * 40 + hidden; best = side; }
    }
    if (least > (isNarrow ? 250 : 1500)) best = "none";
    else boxes.push(choices[best]);
    sides.set(point.name, best);
  }
  return { sides, boxes: [...spots, ...boxes] };
}

function shared(one, other) {
  const wide = Math.min(one[2], other[2]) - Math.max(one[0], other[0]);
  const high = Math.min(one[3], other[3]) - Math.max(one[1], other[1]);
  return wide > 0 && high > 0 ? wide * high : 0;
}

// From the rim of one ring to that of the other, bent to the left of its way, so that both ways can be told apart; where
// there is no way back, to either side, so that it passes others by. The rate stands where it hides least.
function curve(from, to, bends, taken) {
  const lines = bends.map((each) => bent(from, to, each));
  const others = taken.filter((box) => !within(from, box) && !within(to, box));
  const hit = (line) => line.points.filter((point) => others.some((box) => within(point, box))).length;
  const line = lines.reduce((best, each) => (hit(each) < hit(best) ? each : best));
  const boxOf = ({ x, y }) => [x - 28, y - 10, x + 28, y + 10];
  const hidden = (box) => taken.reduce((sum, each) => sum + shared(box, each), 0);
  const places = [10, 8, 12, 6, 14, 4, 16].map((index) => line.points[index]);
  const place = places.reduce((best, each) => (hidden(boxOf(each)) < hidden(boxOf(best)) ? each : best));
  const isHidden = hidden(boxOf(place)) > 200; // between two that are near each other: the table has it
  if (!isHidden) taken.push(boxOf(place));
  return { d: line.d, x: place.x, y: place.y, isHidden };
}

function bent(from, to, by) {
  const dx = to.x - from.x, dy = to.y - from.y, far = Math.hypot(dx, dy) || 1;
  const bend = Math.sign(by) * Math.min(far * Math.abs(by), 190);
  const control = { x: (from.x + to.x) / 2 + (dy / far) * bend, y: Math.max(4, (from.y + to.y) / 2 - (dx / far) * bend) };
  const start = towards(from, control, 17), end = towards(to, control, 19);
  const points = Array.from({ length: 21 }, (_, index) => {
    const t = index / 20;
    return { x: (1 - t) ** 2 * start.x + 2 * t * (1 - t) * control.x + t * t * end.x, y: (1 - t) ** 2 * start.y + 2 * t * (1 - t) * control.y + t * t * end.y };
  });
  const told = [start, control, end].map((each) => `${each.x.toFixed(1)} ${each.y.toFixed(1)}`);
  return { d: `M${told[0]}Q${told[1]} ${told[2]}`, points };
}

function within(point, box) {
  return point.x >= box[0] && point.x <= box[2] && point.y >= box[1] && point.y <= box[3];
}

function towards(from, to, by) {
  const far = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  return { x: from.x + ((to.x - from.x) / far) * by, y: from.y + ((to.y - from.y) / far) * by };
}
