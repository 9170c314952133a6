// One request, by its id or that of a decision: in words, and what was looked at for each placement.

import { count, h, milliseconds, say } from "./dom.js";
import { panel } from "./panels.js";

export function lookup(session, onRefused) {
  const input = h("input", { type: "search", id: "lookup-id", autocomplete: "off", spellcheck: "false", placeholder: "x-request-id or x-nightside-decision", maxlength: "600" });
  const answer = h("div", { class: "answer", "aria-live": "polite" });
  const form = h("form", { role: "search" },
    h("label", { for: "lookup-id" }, "Request id or decision id"), h("div", { class: "row" }, input, h("button", { type: "submit" }, "Explain")));
  let newest = 0;
  const look = async (id) => {
    const mine = (newest += 1);
    say(answer, "…");
    const reply = await session.ask(`admin/explain/${encodeURIComponent(id)}`);
    if (mine !== newest) return;
    if (reply.status !== 200) say(answer, reply.fault);
    else {
      try { answer.replaceChildren(...explained(reply.answer)); } catch { say(answer, "The answer cannot be read."); }
    }
    if (reply.status === 401) onRefused(reply.status, reply.fault);
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const id = input.value.trim();
    if (id) look(id);
  });
  const element = panel("lookup", "Explain a request", form, answer);
  const lookFor = (id) => {
    input.value = id;
    element.scrollIntoView({ block: "nearest" });
    input.focus();
    look(id);
  };
  return { element, lookFor };
}

function* explained(explanation) {
  for (const sentence of explanation.words ?? []) yield h("p", null, sentence);
  yield* sideOf(explanation.here);
  for (const other of explanation.there ?? []) if (other.request) yield* sideOf(other.request);
}

function* sideOf(request) {
  for (const placement of request.placements ?? []) {
    if (!placement.considered.length) continue;
    const hasCosts = placement.considered.some((each) => each.costs);
    const heads = ["Target", "Region", "State", "Cached blocks", "Load", "Round trip", ...(hasCosts ? ["Score"] : [])];
    yield h("h3", null, `${request.gateway}, attempt ${placement.attempt}: ${placement.reason.replaceAll("_", " ")}`);
    yield h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Candidates of attempt ${placement.attempt}` },
      h("table", null, h("thead", null, h("tr", null, heads.map((each) => h("th", { scope: "col" }, each)))),
        h("tbody", null, placement.considered.map((each, index) => h("tr", { "data-chosen": index === 0 },
          h("th", { scope: "row" }, `${index === 0 ? "→ " : ""}${each.id}`), h("td", null, each.region), h("td", null, each.standing.replaceAll("_", " ")),
          h("td", { class: "number" }, placement.prompt_blocks ? `${each.matched_blocks} of ${placement.prompt_blocks}` : ""),
          h("td", { class: "number" }, count(each.load)),
          h("td", { class: "number" }, each.kind === "peer" ? milliseconds(Math.round(each.rtt_ms * 10) / 10) : ""),
          hasCosts ? h("td", { class: "number" }, each.costs ? `${Math.round(each.costs.score * 10) / 10}` : "") : null)))));
  }
}
