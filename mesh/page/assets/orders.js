// The few orders that can be given here: each says first what it will do, and is given with the operators' token.

import { count, h, say } from "./dom.js";

const ROLES = ["look", "drain", "change"];
const by = (id) => document.getElementById(id);

export class Orders {
  constructor(session, onSaid, onRefused) {
    this.session = session;
    this.onSaid = onSaid;
    this.onRefused = onRefused;
    this.all = {};
    this.order = null;
    this.role = "change"; // until it is known; the process itself judges
    this.buttons = by("actions");
    this.dialog = by("order-dialog");
    by("order-cancel").addEventListener("click", () => this.dialog.close());
    by("order-form").addEventListener("submit", (event) => { event.preventDefault(); this.give(); });
  }

  may(role) {
    return ROLES.indexOf(this.role) >= ROLES.indexOf(role);
  }

  // The buttons at the top, for what can be ordered as things are, by the current operator.
  show(all) {
    this.all = all;
    if (!all.who || !all.state) return;
    const wanted = all.who.kind === "gateway" ? this.ofGateway(all.state) : this.ofController(all.state);
    const key = wanted.map(([name]) => name).join();
    if (this.buttons.dataset.shown === key) return;
    const had = this.buttons.contains(document.activeElement);
    this.buttons.dataset.shown = key;
    this.buttons.replaceChildren(...wanted.map(([name, begin, off]) => h("button", { type: "button", onclick: begin, disabled: off }, name)));
    if (had) this.buttons.querySelector("button:not(:disabled)")?.focus();
  }

  ofGateway(state) {
    const drain = state.draining ? ["Undrain", () => this.undrain(), false]
      : state.drained_by_controller ? ["Drained at the controller", () => {}, true]
        : ["Drain", () => this.drain(), false];
    const lock = state.lockdown ? ["Lift lockdown", () => this.lockdown(false), false] : ["Lock down", () => this.lockdown(true), false];
    return this.may("drain") ? [drain, lock] : [];
  }

  ofController(state) {
    if (!this.may("drain")) return [];
    return [state.freeze_ordered ? ["Unfreeze", () => this.freeze(false), false] : ["Freeze", () => this.freeze(true), false]];
  }

  drain() {
    const { who, totals } = this.all;
    this.confirm({
      title: `Drain ${who.name}?`,
      does: `Drain ${who.name}`,
      means: [
        "New requests are rejected with 503, peers are told, and /ready reports not ready.",
        `In-flight requests finish: ${count(totals?.requests ?? 0)} now.`,
        "The gateway stays drained until it is undrained or its process restarts.",
      ],
      give: () => this.session.ask("admin/drain", {}),
      done: () => `${who.name} is draining.`,
    });
  }

  undrain() {
    const { who } = this.all;
    this.confirm({
      title: `Undrain ${who.name}?`,
      does: `Undrain ${who.name}`,
      means: ["Requests of clients and of peers are accepted again, and /ready reports ready."],
      give: () => this.session.ask("admin/undrain", {}),
      done: () => `${who.name} accepts requests again.`,
    });
  }

  lockdown(active) {
    const { who } = this.all;
    this.confirm({
      title: active ? `Lock ${who.name} down?` : `Lift the lockdown of ${who.name}?`,
      does: active ? `Lock ${who.name} down` : "Lift the lockdown",
      means: active
        ? ["Forwarding stops in both directions, and stays stopped over a restart.", "Requests of its own clients run on its own replicas; forwarded streams that are open go on."]
        : ["Requests may be forwarded again in both directions, as the policy allows."],
      give: (reason) => this.session.ask("admin/lockdown", { active, reason }),
      done: (answer) => (answer.is_kept === false ? `In force, but a restart forgets it: ${answer.problem}` : active ? `${who.name} is locked down.` : "The lockdown is lifted."),
    });
  }

  freeze(active) {
    this.byController({
      title: active ? "Freeze the mesh?" : "Unfreeze the mesh?",
      does: active ? "Freeze" : "Unfreeze",
      means: active
        ? ["Automatic failover and reassignment are suspended: no replica is reassigned, and DNS records stay as they are.", "Requests are served as before."]
        : ["Automatic failover resumes, and gateways that are still unreachable are declared down:"],
      order: (reason) => (active ? { order: "freeze", reason } : { order: "unfreeze" }),
      done: active ? "The mesh is frozen." : "The mesh is no longer frozen.",
      isQuiet: active, // a freeze moves nothing
    });
  }

  drainOf(gateway, isDrained) {
    this.byController({
      title: isDrained ? `Undrain ${gateway}?` : `Drain ${gateway}?`,
      does: isDrained ? `Undrain ${gateway}` : `Drain ${gateway}`,
      means: isDrained
        ? ["Clients and replicas are assigned to it again:"]
        : ["DNS sends its clients to other gateways, and its replicas are reassigned, until it is undrained:"],
      order: () => (isDrained ? { order: "gateway-undrain", gateway } : { order: "gateway-drain", gateway }),
      done: isDrained ? `${gateway} is back.` : `${gateway} is drained.`,
    });
  }

  // With what the controller itself says that it would do.
  async byController({ title, does, means, order, done, isQuiet }) {
    const reply = await this.session.ask("admin/orders", { order: order(""), dry_run: true });
    if (reply.status !== 200) {
      this.failed(reply);
      return;
    }
    this.confirm({
      title, does, means: [...means, ...(isQuiet ? [] : previewed(reply.answer.preview))],
      give: (reason) => this.session.ask("admin/orders", { order: order(reason), by: "page" }),
      done: () => done,
    });
  }

  confirm(order) {
    this.order = order;
    say(by("order-title"), order.title);
    by("order-means").replaceChildren(h("ul", null, order.means.map((each) => h("li", null, each))));
    by("order-reason").value = "";
    say(by("order-do"), order.does);
    say(by("order-fault"), "");
    by("order-do").disabled = false;
    this.dialog.showModal();
    by("order-cancel").focus();
  }

  async give() {
    const order = this.order;
    by("order-do").disabled = true;
    const reply = await order.give(by("order-reason").value.trim());
    by("order-do").disabled = false;
    if (reply.status === 200) {
      this.dialog.close();
      this.onSaid(order.done(reply.answer ?? {}));
      return;
    }
    say(by("order-fault"), `The order was not given: ${reply.fault}`);
    if (reply.status === 401) {
      this.dialog.close();
      this.onRefused(reply.status, reply.fault);
    }
  }

  failed(reply) {
    if (reply.status === 401) this.onRefused(reply.status, reply.fault);
    else this.onSaid(`The order was not given: ${reply.fault}`);
  }
}

function previewed(preview) {
  const said = [];
  const moves = preview.moves_in_all;
  if (preview.frozen) said.push(`Nothing moves yet, since it is frozen: ${preview.frozen}.`);
  if (moves) {
    const some = preview.moves.slice(0, 5).map((each) => `${each.replica} from ${each.before ?? "no gateway"} to ${each.after ?? "no gateway"}`);
    said.push(`${count(moves)} replicas are reassigned: ${some.join(", ")}${moves > some.length ? ", …" : ""}.`);
  } else said.push("No replica is reassigned.");
  for (const stay of preview.stays) said.push(`${count(stay.replicas)} replicas of ${stay.home} stay: ${stay.why}.`);
  for (const still of preview.still_led ?? []) {
    const kept = [];
    if (still.regions.length) kept.push(`clients in ${still.regions.join(", ")} still arrive at ${still.gateway}`);
    if (still.replicas) kept.push(`${count(still.replicas)} replicas stay with ${still.gateway}`);
    said.push(`Warning: ${kept.join(" and ")}, since no other gateway may take them; remove it before you stop it.`);
  }
  for (const lost of preview.unreachable ?? []) {
    const led = lost.gateways.length ? `sent to ${lost.gateways.join(", ")}` : "sent to no gateway";
    said.push(`Clients in ${lost.region}, ${led}, lose ${count(lost.replicas)} replicas of ${lost.home}: ${lost.owner ? `served by ${lost.owner}` : "served by no gateway"}, ${lost.why}.`);
  }
  for (const [region, gateways] of preview.names) said.push(`DNS sends clients in ${region} to ${gateways.join(", ") || "no gateway"}.`);
  return said;
}
