// The page: it asks for what is shown, draws each part once, and brings each up to date as its sections change.

import { charts } from "./charts.js";
import { h, keyed, mark, plain, say } from "./dom.js";
import { Session, watch } from "./live.js";
import { lookup } from "./lookup.js";
import { Orders } from "./orders.js";
import * as panels from "./panels.js";
import { problems } from "./problems.js";

const by = (id) => document.getElementById(id);
const session = new Session();
const all = {};
const changed = new Set();
let parts = null;
let tokenShown = null;
let orders = null;

// Light or dark

function theme() {
  return document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function nameTheme() {
  say(by("theme"), theme() === "dark" ? "Light" : "Dark");
  by("theme").setAttribute("aria-label", theme() === "dark" ? "Switch to light mode" : "Switch to dark mode");
}

by("theme").addEventListener("click", () => {
  const next = theme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try { localStorage.setItem("nightside-theme", next); } catch { /* for this time only */ }
  nameTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
nameTheme();

// The token

function askForToken(why) {
  if (tokenShown) return tokenShown;
  say(by("token-why"), session.token === null ? "This address requires an operator token. The token is kept until this tab is closed." : `It was refused: ${why}.`);
  by("token-dialog").showModal();
  tokenShown = new Promise((shown) => {
    const take = (event) => {
      event.preventDefault();
      const token = by("token-input").value.trim();
      if (!token) return;
      by("token-form").removeEventListener("submit", take);
      session.keep(token);
      by("token-input").value = "";
      by("token-dialog").close();
      by("forget").hidden = false;
      tokenShown = null;
      shown();
    };
    by("token-form").addEventListener("submit", take);
  });
  return tokenShown;
}

by("token-dialog").addEventListener("cancel", (event) => event.preventDefault());
by("forget").hidden = session.token === null;
by("forget").addEventListener("click", () => {
  session.keep(null);
  location.reload();
});

// What is said of the page itself

const STATES = { live: "live", connecting: "connecting", again: "connecting again" };

function state(word, why) {
  if (word === "live" && orders !== null) askWho();
  mark(by("live"), "state", word);
  say(by("live"), STATES[word]);
  by("live").title = plain(why);
}

let saidUntil = null;
function tell(words) {
  say(by("said"), words);
  clearTimeout(saidUntil);
  saidUntil = setTimeout(() => say(by("said"), ""), 8000);
}

async function refused(status, why) {
  state("again", why);
  if (status === 401) await askForToken(why);
  else showNotes([{ level: "warn", text: why }]);
}

// Its parts

function build(kind) {
  orders = new Orders(session, tell, refused);
  askWho();
  const finder = lookup(session, refused);
  const top = [problems(), panels.totals(), charts(), panels.regions()];
  const side = kind === "gateway" ? [finder, panels.queue(), panels.tenants()] : [finder, panels.events()];
  const rest = kind === "gateway"
    ? [panels.replicas(), panels.peers(), panels.features(), panels.decisions(finder.lookFor), panels.names(), panels.policies()]
    : [panels.gateways(orders), panels.decisions(finder.lookFor), panels.owners(), panels.names(), panels.ordersGiven(), panels.policies()];
  const found = [...top, ...side, ...rest];
  const elements = (some) => some.map((each) => each.element);
  const [first, ...others] = elements(top);
  by("panels").replaceChildren(first, by("notes"), ...others, h("div", { class: "side" }, elements(side)), ...elements(rest));
  mark(by("panels"), "kind", kind);
  return [...found.filter((each) => each.show), { on: ["who", "state", "totals"], show: (sections) => orders.show(sections) }];
}

function showWho() {
  const { kind, name, region, jurisdiction } = all.who;
  const { leads, term, version } = all.state ?? {};
  const about = kind === "gateway" ? ` in ${region} (${jurisdiction})` : `, ${leads ? "leads" : "does not lead"}: term ${term}, version ${version}`;
  say(by("who"), `${kind} ${name}${about}`);
  document.title = plain(`${name} · Nightside`);
}

// Who looks, and what they may order: asked anew with each stream, since a token may be another's by then.
async function askWho() {
  const reply = await session.ask("admin/whoami");
  if (reply.status !== 200 || orders === null) return;
  orders.role = reply.answer.role;
  say(by("as"), reply.answer.operator ? `as ${reply.answer.operator} (${reply.answer.role})` : "");
  sections({ who: all.who, gateways: all.gateways });
}

function showNotes(notes) {
  keyed(by("notes"), notes, (each) => each.level + each.text, () => h("p", { class: "note" }), (element, each) => {
    mark(element, "level", each.level);
    say(element, each.text);
  });
}

function draw() {
  if (!all.who) return;
  const now = new Set(changed);
  changed.clear();
  if (now.has("who") || now.has("state")) showWho();
  if (now.has("state")) showNotes(all.state.notes);
  parts ??= build(all.who.kind);
  for (const part of parts) if (part.on.some((each) => now.has(each))) part.show(all);
}

function sections(news) {
  Object.assign(all, news);
  const isDrawnLater = changed.size > 0;
  Object.keys(news).forEach((each) => changed.add(each));
  if (!isDrawnLater) requestAnimationFrame(draw);
}

watch(session, { sections, state, refused });
