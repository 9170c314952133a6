// Each part of the page: what it is called, and how it shows the sections that it is made of.

import { clock, count, h, health, keyed, mark, milliseconds, plain, say, Table } from "./dom.js";
import { WorldMap } from "./map.js";

export function panel(name, title, ...children) {
  const heading = h("h2", { id: `${name}-title` }, title);
  return h("section", { class: "panel", id: name, "aria-labelledby": `${name}-title` }, heading, children);
}

// `take` gives how a section is shown: {name of section: function of all sections}.
export function totals() {
  const tiles = [
    ["Requests", (all) => count(all.totals.requests), () => "wait or run"],
    ["Waiting", (all) => count(all.totals.waiting), () => "in queues"],
    ["Replicas free", (all) => `${count(all.totals.free)}/${count(all.totals.replicas)}`, () => "would take one now"],
    ["Gateways", (all) => `${count(all.totals.gateways_up)}/${count(all.totals.gateways)}`, (all) => (all.who.kind === "controller" ? "attached" : "usable, with this one")],
    ["Forwards", (all) => count(Math.round((all.forwards ?? []).reduce((sum, each) => sum + each.per_minute, 0))), () => "a minute"],
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

export function regions() {
  const map = new WorldMap((name) => {
    const row = [...table.body.children].find((each) => each.dataset.region === name);
    if (!row) return;
    for (const each of table.body.children) mark(each, "chosen", each === row);
    row.tabIndex = -1;
    row.focus();
    row.scrollIntoView({ block: "nearest" });
  });
  const rate = (all, row, end) => {
    const sum = (all.forwards ?? []).filter((each) => each[end] === row.region).reduce((total, each) => total + each.per_minute, 0);
    return sum ? count(sum < 10 ? Math.round(sum * 10) / 10 : Math.round(sum)) : "";
  };
  let all = {};
  const table = new Table("Regions", [
    { name: "Region", isHead: true, text: (row) => `${row.region} (${row.jurisdiction})${row.is_here ? ", here" : ""}` },
    { name: "Health", cell: (cell, row) => health(cell, row.health, row.why) },
    { name: "Free", kind: "number", text: (row) => `${count(row.free)}/${count(row.replicas)}` },
    { name: "Running", kind: "number", text: (row) => count(row.running) },
    { name: "Waiting", kind: "number", text: (row) => count(row.waiting) },
    { name: "Out/min", kind: "number", text: (row) => rate(all, row, "origin") },
    { name: "In/min", kind: "number", text: (row) => rate(all, row, "target") },
    { name: "Gateways", kind: "wide", text: (row) => row.gateways.join(", ") },
  ], (row) => row.region, "No regions yet.");
  const element = panel("regions", "Regions", map.element, table.element);
  const show = (sections) => {
    all = sections;
    if (!all.regions) return;
    map.show(all.regions, all.forwards ?? []);
    table.show(all.regions);
    all.regions.forEach((row, index) => mark(table.body.children[index], "region", row.region));
  };
  return { element, on: ["regions", "forwards"], show };
}

function rows(name, title, section, columns, keyOf, empty) {
  const table = new Table(title, columns, keyOf, empty);
  const show = (all) => {
    const held = all[section];
    if (Array.isArray(held)) table.show(held);
    else if (held) table.show(held.rows, held.left_out);
  };
  return { element: panel(name, title, table.element), on: [section], show };
}

export function replicas() {
  return rows("replicas", "Replicas", "replicas", [
    { name: "Replica", isHead: true, text: (row) => row.id },
    { name: "Health", cell: standing },
    { name: "Running", kind: "number", text: (row) => count(row.running) },
    { name: "Pending", kind: "number", text: (row) => count(row.pending) },
    { name: "Ours", kind: "number", text: (row) => count(row.in_flight) },
    { name: "KV", cell: meter },
    { name: "Pool", text: (row) => (row.role === "unified" ? row.pool : `${row.pool}, ${row.role}`) },
    { name: "Models", kind: "wide", text: (row) => row.models.join(", ") },
  ], (row) => row.id, "This gateway has no replicas of its own.");
}

// With the first thing that stands against it.
function standing(cell, row) {
  health(cell, row.health, row.detail, row.health === "well" ? "" : row.standing.replaceAll("_", " "));
}

function meter(cell, row) {
  if (!cell.firstElementChild) cell.append(h("meter", { min: 0, max: 1 }), h("span", { class: "number" }));
  cell.firstElementChild.value = row.kv;
  cell.firstElementChild.setAttribute("aria-label", "share of the KV cache in use");
  say(cell.lastElementChild, `${Math.round(row.kv * 100)} %`);
}

export function peers() {
  return rows("peers", "Other gateways", "peers", [
    { name: "Gateway", isHead: true, text: (row) => row.id },
    { name: "Region", text: (row) => `${row.region} (${row.jurisdiction})` },
    { name: "Health", cell: standing },
    { name: "Round trip", kind: "number", text: (row) => milliseconds(row.rtt_ms) },
    { name: "Free", kind: "number", text: (row) => count(row.free) },
    { name: "Waiting", kind: "number", text: (row) => count(row.waiting) },
    { name: "Forwards now", kind: "number", text: (row) => count(row.in_flight) },
  ], (row) => row.id, "This gateway knows no others.");
}

export function queue() {
  return rows("queue", "Queue", "queue", [
    { name: "Model", isHead: true, text: (row) => row[0] },
    { name: "Waiting", kind: "number", text: (row) => count(row[1]) },
  ], (row) => row[0], "Nobody waits.");
}

export function decisions(look) {
  return rows("decisions", "Last decisions", "decisions", [
    { name: "Arrived", text: (row) => clock(row.at_ms) },
    { name: "Gateway", text: (row) => row.gateway },
    { name: "Request", cell: (cell, row) => looked(cell, row.request, look) },
    { name: "Model", text: (row) => row.model },
    { name: "Ended as", text: (row) => row.outcome.replaceAll("_", " ") },
    { name: "Ran in", cell: (cell, row) => { say(cell, row.region); mark(cell, "forwarded", row.forwarded); } },
    { name: "Waited", kind: "number", text: (row) => milliseconds(row.waited_ms) },
    { name: "First token", kind: "number", text: (row) => milliseconds(row.first_token_ms) },
    { name: "Why", kind: "words", text: (row) => row.words },
  ], (row) => `${row.gateway}\u0000${row.request}\u0000${row.at_ms}`, "Nothing was decided yet.");
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
  const table = new Table("What the name says", [
    { name: "Clients in", isHead: true, text: (row) => row.region },
    { name: "Are led to", text: (row) => (row.gateways.length ? row.gateways.join(", ") : `nobody: ${row.why}`) },
    { name: "Addresses", kind: "wide", text: (row) => row.addresses.join(", ") },
  ], (row) => row.region, "There are no records: nobody is led anywhere by name.");
  const show = (all) => {
    if (!all.names) return;
    say(zone, all.names.zone ? `${all.names.zone} for ${all.names.ttl_s} s` : "");
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
  return { element: panel("policies", "Policies", list), on: ["policies"], show };
}

// What a sentence has between backticks is a key of a file.
function spoken(element, sentence) {
  const told = plain(sentence);
  if (element.textContent === told.replaceAll("`", "")) return;
  element.replaceChildren(...told.split("`").map((each, index) => (index % 2 ? h("code", null, each) : each)));
}

// Of a controller

export function gateways(orders) {
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
    { name: "Region", text: (row) => `${row.region} (${row.jurisdiction})` },
    { name: "Health", cell: (cell, row) => health(cell, row.health, row.detail) },
    { name: "Because", kind: "words", text: because },
    { name: "Requests", kind: "number", text: (row) => count(row.requests) },
    { name: "Waiting", kind: "number", text: (row) => count(row.waiting) },
    { name: "Free", kind: "number", text: (row) => `${count(row.free)}/${count(row.replicas)}` },
    { name: "Order", cell: act },
  ], (row) => row.id, "No gateway has announced itself.");
}

function because(row) {
  const said = [];
  if (row.drained) said.push("drained by order");
  if (row.draining) said.push("it is draining");
  if (row.locked_down) said.push("it is locked down");
  if (!row.attached) said.push("not attached");
  if (row.detail) said.push(row.detail);
  if (row.rejected) said.push(`rejected a snapshot: ${row.rejected}`);
  return said.join("; ");
}

export function owners() {
  return rows("owners", "Who owns what", "owners", [
    { name: "Replicas of", isHead: true, text: (row) => row.home },
    { name: "Are served by", cell: (cell, row) => { say(cell, row.owner || `nobody: ${row.why}`); mark(cell, "away", row.owner !== row.home); } },
    { name: "Count", kind: "number", text: (row) => count(row.count) },
    { name: "Such as", kind: "wide", text: (row) => row.names.join(", ") + (row.count > row.names.length ? ", …" : "") },
  ], (row) => `${row.home}\u0000${row.owner}`, "No replicas are registered.");
}

function details(held) {
  return Object.entries(held).map(([name, each]) => `${name.replaceAll("_", " ")}: ${inWords(each)}`).join(" · ");
}

function inWords(held) {
  if (held === null || typeof held !== "object") return String(held);
  if (Array.isArray(held)) return held.length ? held.map(inWords).join(", ") : "nobody";
  return Object.entries(held).map(([name, each]) => `${name} → ${inWords(each)}`).join("; ") || "none";
}

export function events() {
  return rows("events", "What the controller decided", "events", [
    { name: "Time", text: (row) => clock(row.time) },
    { name: "What", kind: "wrap", cell: (cell, row) => { say(cell, row.meaning); mark(cell, "level", row.level); } },
    { name: "Details", kind: "words", text: (row) => details(row.details) },
  ], (row) => `${row.time}${row.event}`, "Nothing since it began.");
}

export function ordersGiven() {
  return rows("orders", "What operators ordered", "orders", [
    { name: "Time", text: (row) => clock(row.time) },
    { name: "Order", text: (row) => String(row.order.order ?? "") },
    { name: "Of", kind: "wide", text: (row) => String(row.order.gateway ?? row.order.replica ?? row.order.region ?? "") },
    { name: "By", text: (row) => row.by || row.address },
    { name: "Result", kind: "words", text: (row) => row.result },
  ], (row) => `${row.time}${row.order.order}`, "No orders were given.");
}
