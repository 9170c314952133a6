// What is wrong, worst first, as `status` prints it: since when, and where it is said what to do.

import { clock, count, h, keyed, moment, plain, say, span } from "./dom.js";

// Link to the section of the runbook on a problem, kept up to date in `place`; a problem without a section has none.
function linkTo(place, row) {
  if (!/^[A-Za-z]+$/.test(row?.runbook ?? "")) {
    place.replaceChildren();
    return;
  }
  if (!place.firstChild) place.append(h("a", { target: "_blank", rel: "noopener" }, "What to do"));
  place.firstChild.setAttribute("href", `page/runbook.html#${row.runbook.toLowerCase()}`);
  place.firstChild.setAttribute("aria-label", plain(`What to do: ${row.kind.replaceAll("_", " ")} ${row.subject}`));
}

// Problems of replicas, peers or gateways, for their rows in tables: since when, and the link.
export class RowProblems {
  constructor(...kinds) {
    this.kinds = kinds;
    this.bySubject = new Map();
  }

  learn(all) {
    const rows = (all.problems?.rows ?? []).filter((row) => this.kinds.includes(row.kind));
    this.bySubject = new Map(rows.map((row) => [row.subject, row]));
  }

  show(cell, id) {
    const row = this.bySubject.get(id);
    let told = cell.querySelector(".trouble");
    if (!row && !told) return;
    if (!told) {
      told = h("span", { class: "trouble" }, h("span"), h("span"));
      cell.append(told);
    }
    const [since, place] = told.children;
    say(since, row ? `since ${clock(row.since_ms)} UTC ` : "");
    linkTo(place, row);
  }
}

export function problems() {
  const heading = h("h2", { id: "problems-title", "aria-live": "polite" });
  const list = h("ul", { "aria-labelledby": "problems-title" });
  const more = h("p", { class: "muted" });
  const element = h("section", { class: "panel", id: "problems", "aria-labelledby": "problems-title" }, heading, list, more);
  let held = null;
  const make = () => h("li", null, h("span", { class: "what" }), h("time"), h("span", { class: "link" }));
  const draw = () => {
    if (!held) return;
    const { rows, left_out: leftOut } = held;
    const total = rows.length + leftOut;
    say(heading, total ? `Problems: ${count(total)}` : "No problems");
    element.dataset.level = total ? "bad" : "healthy";
    keyed(list, rows, (row) => `${row.kind}\u0000${row.subject}`, make, (item, row) => {
      const [what, since, place] = item.children;
      say(what, row.text);
      say(since, `since ${moment(row.since_ms)} (${span((Date.now() - row.since_ms) / 1000)})`);
      since.setAttribute("datetime", Number.isFinite(row.since_ms) ? new Date(row.since_ms).toISOString() : "");
      linkTo(place, row);
    });
    list.hidden = rows.length === 0;
    more.hidden = !leftOut;
    say(more, leftOut ? `${count(leftOut)} more are not shown` : "");
  };
  setInterval(draw, 10000);
  const show = (all) => {
    held = all.problems ?? held;
    draw();
  };
  return { element, on: ["problems"], show };
}
