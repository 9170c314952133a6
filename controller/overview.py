"""Content of a controller's page: the whole mesh, the owners of replicas, the records, and the decisions and orders.

It changes nothing. Problems and the last hour are sampled every few seconds; the rest is computed at most twice a
second and only while the page is watched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from controller.core.vocabulary import Condition
from controller.decision_queries import LatestDecisions
from controller.history import OperatorAuditLog
from controller.lease import Lease
from controller.links import Link, Links
from controller.logs import Recent
from controller.problems import State, problems
from controller.registry import Registered
from controller.state_manager import StateManager
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import GatewayId, RegionName
from gateway.policy.flows import Region, region_of
from gateway.policy.words import region_sentences
from mesh.clock import Clock
from mesh.page.last_hour import LastHour
from mesh.page.rows import ROWS_MAX, Health, RegionShown, forwards_of, health_of, some_of
from mesh.problems import Problem, ProblemWatch
from mesh.totals import Totals

_ORDERS_SHOWN = 40
_MILLISECOND_NS = 1_000_000
_LOOK_EVERY_S = 1.0
"""Seconds between two looks at whether a sample is due."""
_NAMES_SHOWN = 12
"""Replicas of a row that are named."""
_CONDITIONS = {
    Condition.UNKNOWN: Health.UNKNOWN,
    Condition.UP: Health.HEALTHY,
    Condition.DOWN: Health.DOWN,
    Condition.RETURNING: Health.DEGRADED,
    Condition.ALONE: Health.DEGRADED,
}


class ControllerOverview:
    def __init__(
        self,
        name: str,
        manager: StateManager,
        links: Links,
        *,
        lease: Lease,
        recent: Recent,
        history: OperatorAuditLog,
        decisions: LatestDecisions,
        clock: Clock,
        state: Callable[[], Mapping[str, object]],
    ) -> None:
        """`state` is the content of `/admin/state`."""
        self._name = name
        self._decisions = decisions
        self._manager = manager
        self._links = links
        self._lease = lease
        self._recent = recent
        self._history = history
        self._clock = clock
        self._began_ms = (clock.wall_ns() - clock.now_ns()) // _MILLISECOND_NS
        """Wall-clock time of the monotonic clock's zero, in ms; read once, so that the times shown do not jump."""
        self._state_now = state
        self._problems = ProblemWatch(self._find_problems)
        self._hour = LastHour()
        self._worded: tuple[dict[RegionName, ResidencyPolicy], list[dict[str, object]]] | None = None

    async def run(self) -> None:
        """Follow the problems and the last hour, with or without watchers."""
        while True:
            self.look(self._clock.now_ns())
            await asyncio.sleep(_LOOK_EVERY_S)

    def look(self, now_ns: int) -> None:
        """Take the samples that are due."""
        if self._hour.is_due(now_ns):
            self._hour.look(self._counted(), now_ns)
        self._problems.look(now_ns)

    def _counted(self) -> dict[str, dict[str, Totals]]:
        counted: dict[str, dict[str, Totals]] = {}
        for each in self._manager.registry.gateways.values():
            link = self._links.get(each.gateway_id)
            if link is not None and link.totals is not None:
                counted.setdefault(each.place.region, {})[each.gateway_id] = link.totals
        return counted

    def _find_problems(self) -> Iterator[Problem]:
        """Problems in the state. They need no list of the replicas, of which a mesh has thousands."""
        state = {**self._state_now(), "replicas": []}
        return problems(msgspec.json.decode(msgspec.json.encode(state), type=State))

    def sections(self, readiness: Callable[[], str]) -> dict[str, object]:
        manager = self._manager
        manager.driver.tell_observers()
        rows = [(each, self._links.get(each.gateway_id)) for each in manager.registry.gateways.values()]
        regions = self._regions(rows)
        return {
            "who": {"kind": "controller", "name": self._name, "region": "", "jurisdiction": ""},
            "state": self._state(readiness()),
            "problems": self._problems.shown(self._began_ms),
            "hour": self._hour.shown(self._began_ms),
            "totals": _totals(regions, rows, self._links),
            "regions": regions,
            "forwards": list(forwards_of(self._flows(rows))),
            "gateways": some_of([self._gateway(*each) for each in rows]),
            "owners": self._owners(),
            "names": self._said(),
            "policies": self._policies(),
            "decisions": self._decisions.rows(),
            "events": self._events(),
            "orders": [
                {"time": each.time, "by": each.by, "address": each.address, "order": each.order, "result": each.result}
                for each in reversed(self._history.last(_ORDERS_SHOWN))
            ],
        }

    def _state(self, not_ready: str) -> dict[str, object]:
        version, core = self._manager.store_writer.version, self._manager.core
        return {
            "notes": [],
            "frozen": core.frozen,
            "freeze_ordered": self._manager.registry.freeze is not None,
            "not_ready_reason": not_ready,
            "leads": self._lease.left_s() > 0,
            "term": version.term,
            "version": version.version,
        }

    def _gateway(self, registered: Registered, link: Link | None) -> dict[str, object]:
        health = self._manager.core.health.get(registered.gateway_id)
        load = None if link is None else link.load
        return {
            "id": registered.gateway_id,
            "region": registered.place.region,
            "jurisdiction": registered.place.jurisdiction,
            "health": self._health(registered, link),
            "condition": Condition.UNKNOWN if health is None else health.condition,
            "detail": "" if health is None or health.condition is Condition.UP else health.detail,
            "drained": registered.is_drained,
            "locked_down": load is not None and load.is_locked_down,
            "draining": load is not None and load.is_draining,
            "attached": link is not None,
            "requests": 0 if link is None else link.open_requests,
            "replicas": 0 if load is None else load.replicas,
            "free": 0 if load is None else load.available,
            "down": 0 if load is None else load.down,
            "waiting": 0 if load is None else load.waiting,
            "slots": 0 if load is None else load.slots,
            "slots_used": 0 if load is None else load.slots_used,
            "kv": None if load is None or load.kv_usage is None else round(load.kv_usage, 2),
            "addresses": registered.announcement.client_addresses,
            "rejected": "" if link is None or link.rejected is None else link.rejected.reason,
        }

    def _health(self, registered: Registered, link: Link | None) -> Health:
        """Health as the controller finds it, and as the gateway itself reports it where it does."""
        found = self._manager.core.health.get(registered.gateway_id)
        health = Health.UNKNOWN if found is None else _CONDITIONS[found.condition]
        if health is Health.HEALTHY and link is None:
            return Health.DEGRADED
        if health is not Health.HEALTHY or link is None or link.load is None:
            return Health.CLOSED if registered.is_drained and health is Health.HEALTHY else health
        load = link.load
        if registered.is_drained or load.is_draining or load.is_locked_down:
            return Health.CLOSED
        if load.down:
            return Health.DOWN if load.down == load.replicas else Health.DEGRADED
        return Health.BUSY if load.replicas and not load.available else Health.HEALTHY

    def _regions(self, rows: list[tuple[Registered, Link | None]]) -> list[RegionShown]:
        """Rows of the regions. Replicas are counted by the gateway that serves them: adopted ones in its region."""
        shown: dict[str, RegionShown] = {}
        healths: dict[str, list[Health]] = {}
        kv_usages: dict[str, list[tuple[float, int]]] = {}
        for registered, link in rows:
            place, said = registered.place, registered.announcement
            row = shown.setdefault(place.region, RegionShown(place.region, place.jurisdiction))
            if row.latitude is None:
                row.latitude, row.longitude = said.latitude, said.longitude
            row.gateways.append(registered.gateway_id)
            healths.setdefault(row.region, []).append(self._health(registered, link))
            load = None if link is None else link.load
            if load is not None:
                row.add(replicas=load.replicas, free=load.available, down=load.down, running=load.running)
                row.waiting += load.waiting
                row.slots += load.slots
                row.slots_used += load.slots_used
                if load.kv_usage is not None:
                    kv_usages.setdefault(row.region, []).append((load.kv_usage, load.replicas - load.down))
            health = self._manager.core.health.get(registered.gateway_id)
            if health is not None and health.condition is not Condition.UP:
                row.why = row.why or f"{registered.gateway_id}: {health.detail}"
            elif load is not None and load.down and load.down == load.replicas:
                row.why = row.why or f"{registered.gateway_id}: no replica answers"
        for row in shown.values():
            row.health = health_of(healths[row.region])
            row.kv = _mean(kv_usages.get(row.region, []))
        return list(shown.values())

    def _flows(self, rows: list[tuple[Registered, Link | None]]) -> Iterator[tuple[str, str, float, int]]:
        regions = {each.gateway_id: each.place.region for each, _ in rows}
        for registered, link in rows:
            for each in () if link is None else link.forwards:
                yield registered.place.region, regions.get(each.gateway_id, ""), float(each.per_minute), each.running

    # Owners, records, policies

    def _owners(self) -> dict[str, object]:
        """Replicas by home and owner: a mesh of ten thousand replicas has few of these pairs."""
        core = self._manager.core
        pairs: dict[tuple[GatewayId, str], list[str]] = {}
        for each in self._manager.registry.replicas.values():
            owner = core.owners.get(each.replica_id, "") if each.is_served else "(not to be served)"
            pairs.setdefault((each.home, owner), []).append(each.replica_id)
        return some_of(
            [
                {
                    "home": home,
                    "owner": owner,
                    "count": len(names),
                    "names": sorted(names)[:_NAMES_SHOWN],
                    "why": core.orphans[home][1] if not owner and home in core.orphans else "",
                }
                for (home, owner), names in sorted(pairs.items())
            ]
        )

    def _said(self) -> dict[str, object]:
        tree = self._manager.records
        if tree is None:
            return {"zone": "", "areas": []}
        areas = [
            {"region": each.region, "gateways": each.gateways, "addresses": each.addresses, "why": each.why}
            for each in tree.areas[:ROWS_MAX]
        ]
        return {"zone": tree.zone, "ttl_s": tree.ttl_s, "areas": areas}

    def _policies(self) -> list[dict[str, object]]:
        """Policies in words, computed anew only where one of them has changed."""
        core = self._manager.core
        effective = {region: core.effective_policy(region) for region in core.policies}
        policies = {region: each for region, each in effective.items() if each is not None}
        if self._worded is None or self._worded[0] != policies:
            self._worded = policies, list(_in_words(policies))
        return self._worded[1]

    def _events(self) -> list[dict[str, object]]:
        return [
            {"time": time, "event": each.event, "level": each.level, "meaning": each.meaning, "details": each.details}
            for time, each in self._recent.newest()
        ]


def _in_words(policies: dict[RegionName, ResidencyPolicy]) -> Iterator[dict[str, object]]:
    regions: list[Region] = [region_of(Path(), each) for _, each in sorted(policies.items())]
    for region in regions:
        policy = region.policy
        yield {
            "region": policy.place.region,
            "jurisdiction": policy.place.jurisdiction,
            "digest": policy.digest,
            "closed_reason": policy.closed_reason,
            "words": region_sentences(region, regions),
        }


def _totals(regions: list[RegionShown], rows: list[tuple[Registered, Link | None]], links: Links) -> dict[str, object]:
    return {
        "slots": sum(each.slots for each in regions),
        "slots_used": sum(each.slots_used for each in regions),
        "kv": _mean([(each.kv, each.replicas - each.down) for each in regions if each.kv is not None]),
        "requests": sum(link.open_requests for _, link in rows if link is not None),
        "waiting": sum(each.waiting for each in regions),
        "replicas": sum(each.replicas for each in regions),
        "free": sum(each.free for each in regions),
        "gateways": len(rows),
        "gateways_up": sum(each.gateway_id in links for each, _ in rows),
    }


def _mean(shares: list[tuple[float, int]]) -> float | None:
    """Mean of shares, each with the replicas that it is of; None where there are none."""
    replicas = sum(count for _, count in shares)
    return round(sum(share * count for share, count in shares) / replicas, 2) if replicas else None
