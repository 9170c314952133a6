// Elements, made of text only: nothing that comes from outside ever becomes markup.

const LONG = 30; // what has more letters may be cut off, and is told whole by a tooltip
const TEXT_MAX = 4000;
// What is not seen and yet changes how other text is read: controls, and marks that turn text around or have no width.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;
const SVG = "http://www.w3.org/2000/svg";

// Without half a letter at its end.
function whole(text) {
  return text.replace(/[\ud800-\udbff]$/, "");
}

// Text as it can be shown: with all that is in it to be seen, and with an end.
export function plain(text) {
  const told = text === null || text === undefined ? "" : String(text);
  const cut = told.length > TEXT_MAX ? `${whole(told.slice(0, TEXT_MAX))}…` : told;
  return cut.replace(UNSEEN, (each) => `\\u{${each.codePointAt(0).toString(16)}}`);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child instanceof Node ? child : plain(child));
  }
  return element;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// Text is only put where it is another one: what is selected or focused stays so.
export function say(element, text) {
  const said = plain(text);
  if (element.textContent !== said) element.textContent = said;
}

export function mark(element, name, value) {
  if (element.dataset[name] !== String(value)) element.dataset[name] = String(value);
}

// Children of `parent` by key, in this order: those that stay are updated and not made anew.
export function keyed(parent, rows, keyOf, make, update) {
  const known = parent.knownRows ?? new Map();
  const next = new Map();
  let place = parent.firstChild;
  for (const row of rows) {
    let key = keyOf(row);
    while (next.has(key)) key += "\u0000";
    const element = known.get(key) ?? make(row);
    update(element, row);
    next.set(key, element);
    if (element === place) place = place.nextSibling;
    else parent.insertBefore(element, place);
  }
  for (const [key, element] of known) if (!next.has(key)) element.remove();
  parent.knownRows = next;
}

// A table whose rows stay the same elements. A column: name, how it is told (`text`, or `cell` that fills the td), and
// `kind`: number, wide.
export class Table {
  constructor(caption, columns, keyOf, empty) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.body = h("tbody", { role: "rowgroup" });
    this.more = h("p", { class: "muted", hidden: true });
    this.empty = h("p", { class: "muted" }, empty);
    // Roles are named since small screens show rows as cards, and a browser then forgets that this is a table.
    const head = h("tr", { role: "row" }, columns.map((each) => h("th", { scope: "col", role: "columnheader", class: each.kind }, each.name)));
    this.table = h("table", { role: "table" }, h("caption", { class: "hidden" }, caption), h("thead", { role: "rowgroup" }, head), this.body);
    this.element = h(
      "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, this.table, this.empty, this.more,
    );
  }

  show(rows, leftOut = 0) {
    keyed(
      this.body, rows, this.keyOf,
      () => h("tr", { role: "row" }, this.columns.map((each) => h(each.isHead ? "th" : "td", { class: each.kind, "data-name": each.name, role: each.isHead ? "rowheader" : "cell", scope: each.isHead ? "row" : null }))),
      (element, row) => this.columns.forEach((each, index) => {
        const cell = element.children[index];
        if (each.cell) each.cell(cell, row);
        else {
          say(cell, each.text(row));
          const title = cell.textContent.length > LONG ? cell.textContent : "";
          if (cell.title !== title) cell.title = title;
        }
      }),
    );
    this.table.hidden = rows.length === 0;
    this.empty.hidden = rows.length !== 0;
    this.more.hidden = !leftOut;
    say(this.more, leftOut ? `and ${leftOut} more` : "");
  }
}

// Health as a word with a sign: never by colour alone.
export function health(cell, word, title, more) {
  if (!cell.firstElementChild) cell.append(h("span", { class: "health" }), h("span", { class: "muted" }));
  const [chip, reason] = cell.children;
  say(reason, more ? ` ${more}` : "");
  mark(chip, "health", word);
  say(chip, word);
  const told = plain(title);
  if (chip.title !== told) chip.title = told;
}

export function count(number) {
  return number === null || number === undefined ? "" : number.toLocaleString("en");
}

export function milliseconds(number) {
  if (number === null || number === undefined) return "";
  if (number >= 10000) return `${(number / 1000).toFixed(1)} s`;
  return `${number >= 10 ? Math.round(number) : number} ms`;
}

export function clock(time) {
  const at = new Date(time);
  return Number.isNaN(at.getTime()) ? String(time) : at.toLocaleTimeString("en-GB");
}
