"""Takes operators' orders, one at a time: previews each, stores its changes, and logs the operator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from controller.core.vocabulary import Condition
from controller.documents import Changes
from controller.history import AuditEntry, OperatorAuditLog
from controller.links import Links
from controller.orders import Order, OrderRefused, changes_of, export_of, role_needed
from controller.preview import Preview, preview
from controller.registry import Registered, RegisteredReplica
from controller.state_manager import StateManager, changed_policies
from controller.store.store import StoreError, StoreUncertain
from gateway.core.vocabulary import GatewayId, ReplicaId
from mesh.clock import Clock
from mesh.operators import ANY_OPERATOR, Operator

_SECOND_NS = 1_000_000_000
_LENGTH_MAX = 200


class OrderBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /admin/orders`."""

    order: Order
    by: str = ""
    """Name that the operator gives, unproven."""
    dry_run: bool = False


class OrderAnswer(msgspec.Struct, frozen=True):
    applied: bool
    changes: int
    """Documents that were, or would be, changed."""
    preview: Preview
    term: int = 0
    version: int = 0
    """Version of the first snapshot with the change."""
    history_fault: str = ""
    """Fault of the audit log: the order is in force, and could not be logged."""


class OrderForbidden(Exception):
    """The operator may not give this order; the message says why. Nothing has changed."""


class NotWritten(Exception):
    """The store did not accept the change; the message says why. Nothing has changed."""


class NotKnown(Exception):
    """The store did not answer; the message says why. The change may be in force already, and will be once the store
    can be written."""


class _Giver(NamedTuple):
    """Origin of an order."""

    by: str
    address: str
    operator: Operator


class Operations:
    def __init__(
        self,
        manager: StateManager,
        history: OperatorAuditLog,
        clock: Clock,
        on_order: Callable[[str, str], None] = lambda _order, _result: None,
    ) -> None:
        """`on_order` is called with each order's kind and result."""
        self._manager = manager
        self._history = history
        self._clock = clock
        self._on_order = on_order
        self._one_at_a_time = asyncio.Semaphore(1)

    async def take(self, body: OrderBody, address: str, operator: Operator = ANY_OPERATOR) -> OrderAnswer:
        """Carry out an order, or preview it. Raises OrderRefused, OrderForbidden, NotWritten and NotKnown. A dry run
        needs no role beyond access."""
        async with self._one_at_a_time:
            if body.dry_run:
                changes, seen = self._look(body.order)
                return OrderAnswer(applied=False, changes=len(changes), preview=seen)
            return await self._carry_out(body, _Giver(body.by[:_LENGTH_MAX], address, operator))

    async def _carry_out(self, body: OrderBody, by: _Giver) -> OrderAnswer:
        needed = role_needed(body.order)
        if not by.operator.may(needed):
            why = f"this needs the role `{needed}`, and {by.operator.name} has `{by.operator.role}`"
            await self._note(body, by, f"refused: {why}")
            raise OrderForbidden(why)
        try:
            changes, seen = self._look(body.order)
            version = await self._manager.change(changes) if changes else self._manager.store_writer.version
        except OrderRefused as refused:
            await self._note(body, by, f"refused: {refused}")
            raise
        except StoreUncertain as error:
            await self._note(body, by, f"not known: {error}")
            raise NotKnown(str(error)) from error
        except (StoreError, ValueError) as error:
            await self._note(body, by, f"not written: {error}")
            raise NotWritten(str(error)) from error
        await self._note(body, by, "applied", version.term, version.version)
        return OrderAnswer(True, len(changes), seen, version.term, version.version, self._history.fault)

    def _look(self, order: Order) -> tuple[Changes, Preview]:
        registry = self._manager.registry
        changes = changes_of(order, registry)
        changes = {name: text for name, text in changes.items() if registry.texts.get(name) != text}
        changed = registry.changed(changes)
        policies = changed_policies(registry, changed)
        return changes, preview(self._manager.core, registry, changed, policies, self._clock.now_ns())

    async def _note(self, body: OrderBody, giver: _Giver, result: str, term: int = 0, version: int = 0) -> None:
        order: dict[str, object] = msgspec.to_builtins(body.order)
        self._on_order(str(order["order"]), result.partition(":")[0])
        operator, told_role = giver.operator, giver.operator.role if giver.operator.name else ""
        entry = AuditEntry(
            self._clock.wall_time(),
            giver.by,
            giver.address,
            order,
            result,
            term,
            version,
            operator=operator.name,
            role=told_role,
        )
        await self._history.add(entry)

    def export(self) -> dict[str, str]:
        return export_of(dict(self._manager.registry.texts))


def state_of(manager: StateManager, links: Links, now_ns: int, controller: str) -> dict[str, Any]:
    """Return all state that an operator may want to see, JSON-able."""
    core, registry, version = manager.core, manager.registry, manager.store_writer.version
    owned: dict[str, int] = {}
    for owner in core.owners.values():
        owned[owner] = owned.get(owner, 0) + 1
    return {
        "controller": controller,
        "term": version.term,
        "version": version.version,
        "frozen": core.frozen,
        "store_fault": manager.store_writer.fault,
        "documents_pending": manager.store_writer.pending,
        "gateways": [
            {**_gateway(each, manager), "replicas_owned": owned.get(each.gateway_id, 0), **_link(each, links, now_ns)}
            for each in registry.gateways.values()
        ],
        "removed_gateways": sorted(name for name, order in registry.gateway_orders.items() if order.is_removed),
        "replicas": [
            {
                "id": each.replica_id,
                "home": each.home,
                "owner": _owner(each, core.owners) if each.is_served else "",
                "lent": each.is_lent,
                "pinned_to": each.pinned_to or "",
                "drained": each.is_drained,
                "removed": each.is_removed,
                "announced": each.is_announced,
            }
            for each in registry.replicas.values()
        ],
        "orphans": [
            {"home": home, "replicas": count, "reason": why} for home, (count, why) in sorted(core.orphans.items())
        ],
        "policies": {
            region: {"digest": policy.digest, "closed_reason": policy.closed_reason}
            for region, policy in sorted(core.policies.items())
        },
        "narrowings": {region: policy.digest for region, policy in sorted(registry.narrowings.items())},
        "parameters": registry.parameters,
        "prices": registry.prices,
        "names": [
            {"region": area.region, "gateways": list(area.gateways), "addresses": list(area.addresses), "why": area.why}
            for area in (manager.records.areas if manager.records is not None else ())
        ],
        "faults": [*registry.faults, *manager.places_refused.values()],
    }


def _owner(replica: RegisteredReplica, owners: Mapping[ReplicaId, GatewayId]) -> str:
    """Return the owner; empty: none. A replica that is not lent stays with its home."""
    return owners.get(replica.replica_id, "") if replica.is_lent else replica.home


def _gateway(registered: Registered, manager: StateManager) -> dict[str, Any]:
    health = manager.core.health.get(registered.gateway_id)
    return {
        "id": registered.gateway_id,
        "region": registered.place.region,
        "jurisdiction": registered.place.jurisdiction,
        "condition": Condition.UNKNOWN if health is None else health.condition,
        "detail": "" if health is None or health.condition is Condition.UP else health.detail,
        "drained": registered.is_drained,
        "announced": registered.has_announced,
        "client_addresses": list(registered.announcement.client_addresses),
        "peer_address": registered.announcement.peer_address,
        "health_url": registered.announcement.health_url,
    }


def _link(registered: Registered, links: Links, now_ns: int) -> dict[str, Any]:
    link = links.get(registered.gateway_id)
    if link is None:
        return {"attached": False}
    rejected, load = link.rejected, link.load
    return {
        "attached": True,
        "replicas_served": 0 if load is None else load.replicas,
        "replicas_down": 0 if load is None else load.down,
        "heard_age_s": round((now_ns - link.heard_ns) / _SECOND_NS, 3),
        "open_requests": link.open_requests,
        "wanted": [
            {
                "model": each.model,
                "pool": each.pool,
                "replicas": each.replicas,
                "ready": each.ready,
                "reason": each.reason,
            }
            for each in link.wanted
        ],
        "taken": [link.taken.term, link.taken.version],
        "pushed": None if link.pushed is None else [link.pushed.term, link.pushed.version],
        "rejected": "" if rejected is None else rejected.reason,
    }
