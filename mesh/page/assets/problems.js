// What is wrong, worst first, as `status` prints it: since when, and where it is said what to do.

import { count, h, keyed, moment, plain, say, span } from "./dom.js";

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
    element.dataset.level = total ? "bad" : "well";
    keyed(list, rows, (row) => `${row.kind}\u0000${row.subject}`, make, (item, row) => {
      const [what, since, place] = item.children;
      say(what, row.text);
      say(since, `since ${moment(row.since_ms)} (${span((Date.now() - row.since_ms) / 1000)})`);
      since.setAttribute("datetime", Number.isFinite(row.since_ms) ? new Date(row.since_ms).toISOString() : "");
      if (!/^[A-Za-z]+$/.test(row.runbook)) {
        place.replaceChildren();
        return;
      }
      if (!place.firstChild) place.append(h("a", { target: "_blank", rel: "noopener" }, "What to do"));
      place.firstChild.setAttribute("href", `page/runbook.html#${row.runbook.toLowerCase()}`);
      place.firstChild.setAttribute("aria-label", plain(`What to do: ${row.kind.replaceAll("_", " ")} ${row.subject}`));
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
