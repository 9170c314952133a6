// Each part of the page: what it is called, and how it shows the sections that it is made of.

import { clock, count, h, health, keyed, mark, milliseconds, moment, percent, plain, say, share, Table } from "./dom.js";
import { WorldMap } from "./map.js";
import { RowProblems } from "./problems.js";

export function panel(name, title, ...children) {
  const heading = h("h2", { id: `${name}-title` }, title);
  return h("section", { class: "panel", id: name, "aria-labelledby": `${name}-title` }, heading, children);
}

// Each has how it is told in large and in small.
export function totals() {
  const forwards = (all) => (all.forwards ?? []).reduce((sum, each) => sum + each.per_minute, 0);
  const tiles = [
    ["In-flight requests", (all) => count(all.totals.requests), (all) => `${count(all.totals.waiting)} queued`],
    ["Available replicas", (all) => `${count(all.totals.free)}/${count(all.totals.replicas)}`, () => "accept a request now"],
    ["Slots in use", (all) => share(all.totals.slots_used, all.totals.slots), (all) => (typeof all.totals.kv === "number" ? `KV cache ${percent(all.totals.kv)}` : "")],
    ["Forwards", (all) => count(Math.round(forwards(all))), () => "per minute"],
    ["Gateways", (all) => `${count(all.totals.gateways_up)}/${count(all.totals.gateways)}`, (all) => (all.who.kind === "controller" ? "attached" : "usable, this one included")],
  ];
  const made = tiles.map(([name]) => h("div", { class: "tile" }, h("dt", null, name), h("dd", null, h("b"), h("span"))));
  const element = h("section", { class: "totals", id: "totals", "aria-label": "Totals" }, h("dl", null, made));
  const show = (all) => {
    if (!all.totals || !all.who) return;
    made.forEach((tile, index) => {
      say(tile.lastChild.children[0], tiles[index][1](all));
      say(tile.lastChild.children[1], tiles[index][2](all));
    });
  };
  return { element, on: ["totals", "who", "forwards"], show };
}

const FREE = { name: "Available replicas", kind: "number", text: (row) => `${count(row.free)}/${count(row.replicas)}`, by: (row) => row.free };
const SLOTS = { name: "Slots in use", kind: "number", text: (row) => share(row.slots_used, row.slots), by: (row) => (row.slots ? row.slots_used / row.slots : null) };
const KV = { name: "KV cache", kind: "number", text: (row) => percent(row.kv), by: (row) => row.kv };
const figure = (name, of) => ({ name, kind: "number", text: (row) => count(of(row)), by: of });
const healthOf = (fill) => ({ name: "Health", cell: fill, text: (row) => `${row.health} ${(row.standing ?? "").replaceAll("_", " ")}`, by: (row) => RANKS.indexOf(row.health) });
const RANKS = ["down", "degraded", "closed", "unknown", "busy", "healthy"]; // worst first

export function regions() {
  const map = new WorldMap((name) => {
    const row = [...table.body.children].find((each) => each.dataset.region === name);
    if (!row) return;
    for (const each of table.body.children) mark(each, "chosen", each === row);
    row.tabIndex = -1;
    row.focus();
    row.scrollIntoView({ block: "nearest" });
  });
  const sum = (row, end) => (all.forwards ?? []).filter((each) => each[end] === row.region).reduce((total, each) => total + each.per_minute, 0);
  const rate = (name, end) => ({ name, kind: "number", text: (row) => { const found = sum(row, end); return found ? count(found < 10 ? Math.round(found * 10) / 10 : Math.round(found)) : ""; }, by: (row) => sum(row, end) });
  let all = {};
  const table = new Table("Regions", [
    { name: "Region", isHead: true, text: (row) => `${row.region} (${row.jurisdiction})${row.is_here ? ", this one" : ""}` },
    healthOf((cell, row) => health(cell, row.health, row.why)),
    FREE, SLOTS, KV,
    figure("Running", (row) => row.running),
    figure("Queued", (row) => row.waiting),
    rate("Out/min", "origin"),
    rate("In/min", "target"),
    { name: "Gateways", kind: "wide", text: (row) => row.gateways.join(", ") },
  ], (row) => row.region, "No regions yet.", (element, row) => mark(element, "region", row.region));
  const element = panel("regions", "Regions", map.element, table.element);
  const show = (sections) => {
    all = sections;
    if (!all.regions) return;
    map.show(all.regions, all.forwards ?? []);
    table.show(all.regions);
  };
  return { element, on: ["regions", "forwards"], show };
}

function rows(name, title, section, columns, keyOf, empty, problems = null) {
  const table = new Table(title, columns, keyOf, empty);
  const show = (all) => {
    problems?.learn(all);
    const held = all[section];
    if (Array.isArray(held)) table.show(held);
    else if (held) table.show(held.rows, held.left_out);
  };
  return { element: panel(name, title, table.element), on: problems ? [section, "problems"] : [section], show };
}

export function replicas() {
  const problems = new RowProblems("replica_unusable", "no_replica_usable");
  return rows("replicas", "Replicas", "replicas", [
    { name: "Replica", isHead: true, text: (row) => row.id },
    healthOf((cell, row) => { standing(cell, row); problems.show(cell, row.id); }),
    { name: "Slots in use", kind: "number", text: (row) => (row.slots ? share(Math.min(row.running, row.slots), row.slots) : count(row.running)), by: (row) => row.running },
    figure("Queued in engine", (row) => row.pending),
    figure("From this gateway", (row) => row.in_flight),
    { name: "KV cache", cell: meter, text: (row) => percent(row.kv), by: (row) => row.kv },
    { name: "Pool", text: (row) => (row.role === "unified" ? row.pool : `${row.pool}, ${row.role}`) },
    { name: "Models", kind: "wide", text: (row) => row.models.join(", ") + (row.identities?.length ? ` (${row.identities.join(", ")})` : "") },
  ], (row) => row.id, "This gateway has no replicas of its own.", problems);
}

// With the first thing that stands against it.
function standing(cell, row) {
  health(cell, row.health, row.detail, row.health === "healthy" || row.standing === row.health ? "" : row.standing.replaceAll("_", " "));
}

function meter(cell, row) {
  if (!cell.firstElementChild) cell.append(h("meter", { min: 0, max: 1 }), h("span", { class: "number" }));
  cell.firstElementChild.value = row.kv;
  cell.firstElementChild.setAttribute("aria-label", "share of the KV cache in use");
  say(cell.lastElementChild, percent(row.kv));
}

export function peers() {
  const problems = new RowProblems("peer_unusable");
  return rows("peers", "Peer gateways", "peers", [
    { name: "Gateway", isHead: true, text: (row) => row.id },
    { name: "Region", kind: "wrap", text: (row) => `${row.region} (${row.jurisdiction})` },
    healthOf((cell, row) => { standing(cell, row); problems.show(cell, row.id); }),
    { name: "Round trip", kind: "number", text: (row) => milliseconds(row.rtt_ms), by: (row) => row.rtt_ms },
    figure("Available replicas", (row) => row.free),
    figure("Queued", (row) => row.waiting),
    figure("In-flight forwards", (row) => row.in_flight),
  ], (row) => row.id, "This gateway knows no peers.", problems);
}

export function queue() {
  return rows("queue", "Queue by model", "queue", [
    { name: "Model", isHead: true, text: (row) => row[0] },
    figure("Queued", (row) => row[1]),
  ], (row) => row[0], "No request is queued.");
}

export function tenants() {
  return rows("tenants", "Tenants and classes", "tenants", [
    { name: "Tenant", isHead: true, text: (row) => row.tenant },
    { name: "Class", text: (row) => row.class },
    figure("Running", (row) => row.running),
    figure("Queued", (row) => row.waiting),
    { name: "Oldest queued (UTC)", text: (row) => (row.oldest_ms === null ? "" : clock(row.oldest_ms)), title: (row) => (row.oldest_ms === null ? "" : moment(row.oldest_ms)), by: (row) => row.oldest_ms },
  ], (row) => `${row.tenant}\u0000${row.class}`, "No request is open.");
}

const CELLS = {
  number: (at) => ({ kind: "number", text: (row) => count(row[at]), by: (row) => row[at] }),
  time: (at) => ({ text: (row) => (row[at] === null ? "" : clock(row[at])), title: (row) => (row[at] === null ? "" : moment(row[at])), by: (row) => row[at] }),
  text: (at) => ({ text: (row) => String(row[at]) }),
};

// Tables of features: each says itself what its columns are.
export function features() {
  const element = h("div", { class: "features" });
  const tables = new Map();
  const add = ({ name, title, empty, columns }) => {
    const cells = columns.map((each, at) => ({ name: each.name, isHead: at === 0, ...(CELLS[each.kind] ?? CELLS.text)(at) }));
    const table = new Table(title, cells, (row) => String(row[0]), empty);
    element.append(panel(name, title, table.element));
    return table;
  };
  const show = (all) => {
    for (const each of all.tables ?? []) {
      if (!tables.has(each.name)) tables.set(each.name, add(each));
      tables.get(each.name).show(each.rows, each.left_out);
    }
  };
  return { element, on: ["tables"], show };
}

const MARKS = new Map([["failed", "Failed"], ["slow", "Slow (over 2 s)"], ["refused", "Refused"], ["resumed", "Resumed"], ["forwarded", "Forwarded"]]);

export function decisions(look) {
  const table = new Table("Recent decisions", [
    { name: "Arrived (UTC)", text: (row) => clock(row.at_ms), title: (row) => moment(row.at_ms), by: (row) => row.at_ms },
    { name: "Request", cell: (cell, row) => looked(cell, row.request, look), text: (row) => row.request },
    { name: "Model", kind: "wrap", text: (row) => row.model },
    { name: "Outcome", cell: (cell, row) => { say(cell, row.outcome.replaceAll("_", " ")); mark(cell, "level", row.marks.includes("failed") || row.marks.includes("refused") ? "error" : ""); }, text: (row) => row.outcome.replaceAll("_", " ") },
    { name: "Route", kind: "wrap route", cell: routed, text: routeOf },
    { name: "Queued", kind: "number", text: (row) => milliseconds(row.waited_ms), by: (row) => row.waited_ms },
    { name: "First token", kind: "number", text: (row) => milliseconds(row.first_token_ms), by: (row) => row.first_token_ms },
    { name: "Reason", kind: "words", cell: (cell, row) => sentences(cell, row), text: (row) => [row.words, ...row.hops.map((each) => each.words)].join(" ") },
  ], (row) => `${row.gateway}\u0000${row.request}\u0000${row.at_ms}`, "No decisions yet.");
  let chosen = "";
  const button = ([name, words]) => h("button", { type: "button", class: "chip", "aria-pressed": String(name === chosen), data: { mark: name }, onclick: () => choose(name) }, h("span", null, words), h("span", { class: "count" }));
  const chips = h("div", { class: "chips", role: "group", "aria-label": "Show decisions that are" }, [["", "All"], ...MARKS].map(button));
  const choose = (name) => {
    chosen = name;
    table.choose = name ? (row) => row.marks.includes(name) : null;
    for (const each of chips.children) each.setAttribute("aria-pressed", String(each.dataset.mark === name));
    table.draw();
  };
  const show = (all) => {
    if (!all.decisions) return;
    for (const each of chips.children) {
      const name = each.dataset.mark;
      say(each.lastChild, ` ${count(all.decisions.filter((row) => !name || row.marks.includes(name)).length)}`);
    }
    table.show(all.decisions);
  };
  table.tools.prepend(chips);
  return { element: panel("decisions", "Recent decisions", table.element), on: ["decisions"], show };
}

// From gateway to gateway, with the region where it ran.
function stepsOf(row) {
  const target = row.target || row.hops.map((each) => each.gateway).join(", ");
  const steps = [row.origin, row.gateway, target].filter(Boolean).map((each, index) => (index ? `→ ${each}` : each));
  return row.region ? [...steps, `(${row.region})`] : steps;
}

function routeOf(row) {
  return stepsOf(row).join(" ");
}

// Lines break between steps only, not at the hyphens of a name.
function routed(cell, row) {
  if (cell.textContent === plain(`${routeOf(row)} `)) return;
  cell.replaceChildren(...stepsOf(row).flatMap((each) => [h("span", null, each), " "]));
}

// Why, as the gateway says that the client asked, and as each says that it was forwarded to.
function sentences(cell, row) {
  const told = [{ at: "", words: row.words }, ...row.hops.map((each) => ({ at: each.gateway, words: each.words }))];
  keyed(cell, told, (each) => each.at, () => h("p"), (element, each) => say(element, each.at ? `At ${each.at}: ${each.words}` : each.words));
}

function looked(cell, id, look) {
  if (!cell.firstElementChild) {
    const button = h("button", { type: "button", class: "link" });
    button.addEventListener("click", () => look(button.dataset.id));
    cell.append(button);
  }
  const button = cell.firstElementChild;
  button.dataset.id = id;
  button.title = plain(id);
  const letters = Array.from(id.slice(0, 1000));
  say(button, letters.length > 22 ? `${letters.slice(0, 10).join("")}…${letters.slice(-8).join("")}` : id);
}

export function names() {
  const zone = h("p", { class: "muted" });
  const table = new Table("DNS answers", [
    { name: "Client region", isHead: true, text: (row) => row.region },
    { name: "Gateways", text: (row) => (row.gateways.length ? row.gateways.join(", ") : `none: ${row.why}`) },
    { name: "Addresses", kind: "wide", text: (row) => row.addresses.join(", ") },
  ], (row) => row.region, "There are no DNS records.");
  const show = (all) => {
    if (!all.names) return;
    say(zone, all.names.zone ? `${all.names.zone}, TTL ${all.names.ttl_s} s` : "");
    zone.hidden = !all.names.zone;
    table.show(all.names.areas);
  };
  return { element: panel("names", "DNS answers", zone, table.element), on: ["names"], show };
}

export function policies() {
  const list = h("div", { class: "policies" });
  const make = () => h("article", null, h("h3"), h("p", { class: "muted mono" }), h("ul"));
  const show = (all) => {
    if (!all.policies) return;
    keyed(list, all.policies, (row) => row.region, make, (element, row) => {
      const [title, digest, sentences] = element.children;
      say(title, `${row.region} (${row.jurisdiction})`);
      say(digest, row.closed_reason ? `closed: ${row.closed_reason}` : row.digest);
      keyed(sentences, row.words.map((words, index) => ({ words, index })), (each) => String(each.index), () => h("li"), (item, each) => spoken(item, each.words));
    });
  };
  return { element: panel("policies", "Residency policies", list), on: ["policies"], show };
}

// What a sentence has between backticks is a key of a file.
function spoken(element, sentence) {
  const told = plain(sentence);
  if (element.textContent === told.replaceAll("`", "")) return;
  element.replaceChildren(...told.split("`").map((each, index) => (index % 2 ? h("code", null, each) : each)));
}

// Of a controller

export function gateways(orders) {
  const problems = new RowProblems("gateway_down", "gateway_not_attached", "all_replicas_down");
  const act = (cell, row) => {
    if (!cell.firstElementChild) {
      const button = h("button", { type: "button" });
      button.addEventListener("click", () => orders.drainOf(button.dataset.gateway, button.dataset.drained === "true"));
      cell.append(button);
    }
    const button = cell.firstElementChild;
    button.hidden = !orders.may("drain");
    mark(button, "gateway", row.id);
    mark(button, "drained", row.drained);
    say(button, row.drained ? "Undrain" : "Drain");
    button.setAttribute("aria-label", plain(`${row.drained ? "Undrain" : "Drain"} ${row.id}`));
  };
  return rows("gateways", "Gateways", "gateways", [
    { name: "Gateway", isHead: true, text: (row) => row.id },
    { name: "Region", kind: "wrap", text: (row) => `${row.region} (${row.jurisdiction})` },
    healthOf((cell, row) => { health(cell, row.health, row.detail); problems.show(cell, row.id); }),
    { name: "Reason", kind: "words", text: because },
    figure("In-flight", (row) => row.requests),
    figure("Queued", (row) => row.waiting),
    FREE, SLOTS, KV,
    { name: "Actions", isAction: true, cell: act },
  ], (row) => row.id, "No gateway has registered.", problems);
}

function because(row) {
  const said = [];
  if (row.drained) said.push("drained by order");
  if (row.draining) said.push("draining");
  if (row.locked_down) said.push("locked down");
  if (!row.attached) said.push("not attached");
  if (row.detail) said.push(row.detail);
  if (row.down) said.push(row.down === row.replicas ? "no replica answers" : `${count(row.down)} of ${count(row.replicas)} replicas down`);
  if (row.rejected) said.push(`rejected a snapshot: ${row.rejected}`);
  return said.join("; ");
}

export function owners() {
  const server = (row) => row.owner || `unassigned: ${row.why}`;
  return rows("owners", "Replica assignment", "owners", [
    { name: "Home gateway", isHead: true, text: (row) => row.home },
    { name: "Serving gateway", cell: (cell, row) => { say(cell, server(row)); mark(cell, "away", Boolean(row.owner) && row.owner !== row.home); }, text: server },
    figure("Count", (row) => row.count),
    { name: "Replicas", kind: "wide", text: (row) => row.names.join(", ") + (row.count > row.names.length ? ", …" : "") },
  ], (row) => `${row.home}\u0000${row.owner}`, "No replicas are registered.");
}

function details(held) {
  return Object.entries(held).map(([name, each]) => `${name.replaceAll("_", " ")}: ${inWords(each)}`).join(" · ");
}

function inWords(held) {
  if (held === null || typeof held !== "object") return String(held);
  if (Array.isArray(held)) return held.length ? held.map(inWords).join(", ") : "none";
  return Object.entries(held).map(([name, each]) => `${name} → ${inWords(each)}`).join("; ") || "none";
}

export function events() {
  return rows("events", "Controller events", "events", [
    { name: "Time (UTC)", text: (row) => clock(row.time), title: (row) => moment(row.time), by: (row) => row.time },
    { name: "Event", kind: "words", cell: happened, text: (row) => `${row.event} ${details(row.details)} ${row.meaning}`, by: (row) => row.event },
  ], (row) => `${row.time}${row.event}`, "No events since the controller started.");
}

// The event as the log names it, with its fields; what it means is in the tooltip.
function happened(cell, row) {
  if (!cell.firstElementChild) cell.append(h("p", { class: "mono" }), h("p"));
  const [name, told] = cell.children;
  say(name, row.event);
  mark(name, "level", row.level);
  say(told, details(row.details));
  const title = plain(row.meaning);
  if (cell.title !== title) cell.title = title;
}

export function ordersGiven() {
  return rows("orders", "Operator audit log", "orders", [
    { name: "Time (UTC)", text: (row) => clock(row.time), title: (row) => moment(row.time), by: (row) => row.time },
    { name: "Action", text: (row) => String(row.order.order ?? "") },
    { name: "Target", kind: "wide", text: (row) => String(row.order.gateway ?? row.order.replica ?? row.order.region ?? "") },
    { name: "Operator", text: (row) => row.by || row.address },
    { name: "Result", kind: "words", text: (row) => row.result },
  ], (row) => `${row.time}${row.order.order}`, "No actions yet.");
}
