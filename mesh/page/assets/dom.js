// Elements, made of text only: nothing that comes from outside ever becomes markup.

const LONG = 30; // what has more letters may be cut off, and is told whole by a tooltip
const TEXT_MAX = 4000;
const FILTERED_MIN = 6; // rows from which on a table can be filtered
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

// A table whose rows stay the same elements, to be sorted by each column and filtered by text. A column has a name, its
// text, perhaps `cell` that fills the td, `by` that gives what it is sorted by in place of the text, and `kind`: number, wide.
export class Table {
  constructor(caption, columns, keyOf, empty, onRow = null) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.onRow = onRow;
    this.rows = [];
    this.leftOut = 0;
    this.sorting = { column: null, down: false };
    this.choose = null; // a further filter
    this.body = h("tbody", { role: "rowgroup" });
    this.more = h("p", { class: "muted", role: "status" });
    this.empty = h("p", { class: "muted" }, empty);
    this.filter = h("input", { type: "search", class: "filter", placeholder: "Filter", "aria-label": `Filter ${caption}`, autocomplete: "off", spellcheck: "false", maxlength: "200" });
    this.filter.addEventListener("input", () => this.draw());
    this.order = this.orderOf(caption);
    this.tools = h("div", { class: "tools" }, this.filter, this.order);
    // Roles are named since small screens show rows as cards, and a browser then forgets that this is a table.
    this.heads = columns.map((each) => h("th", { scope: "col", role: "columnheader", class: each.kind }, each.isAction ? each.name : this.button(each)));
    const head = h("tr", { role: "row" }, this.heads);
    this.table = h("table", { role: "table" }, h("caption", { class: "hidden" }, caption), h("thead", { role: "rowgroup" }, head), this.body);
    this.scroll = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${caption}, table` }, this.table, this.empty);
    this.element = h("div", { class: "held" }, this.tools, this.scroll, this.more);
  }

  button(column) {
    return h("button", { type: "button", class: "sort", onclick: () => this.sortBy(column) }, column.name);
  }

  // On small screens, which show no heads.
  orderOf(caption) {
    const options = this.columns.filter((each) => !each.isAction).map((each) => h("option", { value: each.name }, `Sort by ${each.name}`));
    const select = h("select", { class: "order", "aria-label": `Sort ${caption}` }, h("option", { value: "" }, "Sort by …"), options);
    select.addEventListener("change", () => {
      this.sorting = { column: this.columns.find((each) => each.name === select.value) ?? null, down: false };
      this.draw();
    });
    return select;
  }

  // Up at first, then down, then as it comes.
  sortBy(column) {
    const isSame = this.sorting.column === column;
    this.sorting = isSame && this.sorting.down ? { column: null, down: false } : { column, down: isSame };
    this.order.value = this.sorting.column?.name ?? "";
    this.draw();
  }

  show(rows, leftOut = 0) {
    this.rows = rows;
    this.leftOut = leftOut;
    this.draw();
  }

  draw() {
    const wanted = this.filter.value.trim().toLowerCase();
    const kept = this.rows.filter((row) => (!this.choose || this.choose(row)) && (!wanted || this.columns.some((each) => String(each.text?.(row) ?? "").toLowerCase().includes(wanted))));
    const rows = this.sorted(kept);
    keyed(
      this.body, rows, this.keyOf,
      () => h("tr", { role: "row" }, this.columns.map((each) => h(each.isHead ? "th" : "td", { class: each.kind, "data-name": each.name, role: each.isHead ? "rowheader" : "cell", scope: each.isHead ? "row" : null }))),
      (element, row) => {
        this.columns.forEach((each, index) => this.fill(element.children[index], each, row));
        this.onRow?.(element, row);
      },
    );
    this.table.hidden = rows.length === 0;
    this.empty.hidden = this.rows.length !== 0;
    this.filter.hidden = this.rows.length < FILTERED_MIN && !this.filter.value;
    this.order.hidden = this.rows.length < 2;
    const isPart = rows.length !== this.rows.length;
    say(this.more, [isPart ? `${count(rows.length)} of ${count(this.rows.length)} rows` : "", this.leftOut ? `${count(this.leftOut)} more are not shown` : ""].filter(Boolean).join(", "));
    this.columns.forEach((each, index) => {
      const order = this.sorting.column === each ? (this.sorting.down ? "descending" : "ascending") : null;
      if (order) this.heads[index].setAttribute("aria-sort", order);
      else this.heads[index].removeAttribute("aria-sort");
    });
  }

  fill(cell, column, row) {
    if (column.cell) {
      column.cell(cell, row);
      return;
    }
    say(cell, column.text(row));
    const title = column.title ? plain(column.title(row)) : cell.textContent.length > LONG ? cell.textContent : "";
    if (cell.title !== title) cell.title = title;
  }

  sorted(rows) {
    const { column, down } = this.sorting;
    if (!column) return rows;
    const by = column.by ?? column.text;
    const isNothing = (value) => value === null || value === undefined || value === "";
    return rows.map((row) => [by(row), row]).sort(([one], [other]) => {
      if (isNothing(one) || isNothing(other)) return isNothing(one) - isNothing(other); // what is not known comes last
      const order = typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });
      return down ? -order : order;
    }).map(([, row]) => row);
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

export function share(used, total) {
  return total ? `${count(used)}/${count(total)}` : "–"; // not known
}

export function percent(part) {
  return part === null || part === undefined ? "" : `${Math.round(part * 100)} %`;
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

// Day and time of day in UTC, as logs have them; columns of them name the zone.
export function clock(time) {
  const at = new Date(time);
  return Number.isNaN(at.getTime()) ? String(time) : `${at.getUTCDate()} ${MONTHS[at.getUTCMonth()]} ${at.toISOString().slice(11, 19)}`;
}

// The whole time with its date and zone.
export function moment(time) {
  const at = new Date(time);
  return Number.isNaN(at.getTime()) ? String(time) : `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

export function span(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}
