"""Contents of a gateway's page: the gateway and its problems, its replicas and queues, peers by their heartbeats, the
latest decisions and the last hour.

It changes nothing. Problems and the last hour are sampled every few seconds; the rest is computed at most twice a
second and only while a page is open.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from gateway.app.decision_reports import latest
from gateway.app.load import engine_use
from gateway.app.observed_core import DRAINED, ObservedCore
from gateway.app.problems import problems, read_status
from gateway.config.sections import GatewayConfig
from gateway.core.kernel.description import ReplicaCondition, condition_of
from gateway.core.kernel.peers import PeerState
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.requests import Phase
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import ModelCapacity, Place, Standing
from gateway.policy.words import sentences_seen_from
from gateway.records.forward_rates import ForwardDirection
from mesh.naming.service import NameService
from mesh.page.last_hour import LastHour
from mesh.page.rows import (
    DECISIONS_SHOWN,
    MARKED_SHOWN,
    Health,
    Note,
    RegionShown,
    forwards_of,
    health_of,
    shown_at,
    some_of,
)
from mesh.problems import Problem, ProblemWatch

_QUEUES_MAX = 50
_FORWARDED = "(forwarded here)"
"""Stands for the tenants of forwards; a tenant's name has no blanks."""
_MILLISECOND_NS = 1_000_000
_LOOK_EVERY_S = 1.0
"""Seconds between two looks at whether a sample is due."""
_PEERS: dict[Standing, Health] = {
    Standing.LOST: Health.DOWN,
    Standing.STALE: Health.DOWN,
    Standing.UNHEALTHY: Health.DOWN,
    Standing.NOT_ACCEPTING: Health.CLOSED,
    Standing.DISTRUSTED: Health.DEGRADED,
    Standing.BREAKER: Health.DEGRADED,
    Standing.RAMP: Health.DEGRADED,
    Standing.QUEUE: Health.BUSY,
    Standing.BUSY: Health.BUSY,
}
_REPLICAS: dict[ReplicaCondition, Health] = {
    ReplicaCondition.AVAILABLE: Health.HEALTHY,
    ReplicaCondition.FULL: Health.BUSY,
    ReplicaCondition.RECOVERING: Health.DEGRADED,
    ReplicaCondition.LEAVING: Health.CLOSED,
    ReplicaCondition.DOWN: Health.DOWN,
}


class GatewayOverview:
    def __init__(
        self,
        config: GatewayConfig,
        observed: ObservedCore,
        names: NameService,
        state: Callable[[], Mapping[str, object]],
    ) -> None:
        """`state` is the content of `/admin/state`."""
        self._observed = observed
        self._core = observed.core
        self._names = names
        self._location = config.control.latitude, config.control.longitude
        self._began_ms = (observed.clock.wall_ns() - observed.clock.now_ns()) // _MILLISECOND_NS
        """Wall-clock time of the monotonic clock's zero, in ms; read once, so that the times shown do not jump."""
        self._state_now = state
        self._problems = ProblemWatch(self._find_problems)
        self._hour = LastHour()
        self._worded: tuple[ResidencyPolicy, tuple[Place, ...], list[str]] | None = None

    async def run(self) -> None:
        """Follow the problems and the last hour, with or without watchers."""
        while True:
            self.look(self._observed.clock.now_ns())
            await asyncio.sleep(_LOOK_EVERY_S)

    def look(self, now_ns: int) -> None:
        """Take the samples that are due."""
        if self._hour.is_due(now_ns):
            self._observed.driver.tell_observers()
            core = self._core
            self._hour.look({core.place.region: {core.gateway_id: self._observed.metrics.totals()}}, now_ns)
        self._problems.look(now_ns)

    def _find_problems(self) -> Iterator[Problem]:
        return problems(read_status(msgspec.json.encode(self._state_now())))

    def sections(self) -> dict[str, object]:
        self._observed.driver.tell_observers()
        core, now_ns = self._core, self._observed.clock.now_ns()
        return {
            "who": {
                "kind": "gateway",
                "name": core.gateway_id,
                "region": core.place.region,
                "jurisdiction": core.place.jurisdiction,
            },
            "state": self._state(),
            "problems": self._problems.shown(self._began_ms),
            "hour": self._hour.shown(self._began_ms),
            "totals": self._totals(),
            "regions": self._regions(),
            "forwards": self._forwards(now_ns),
            "queue": sorted(core.waiting.lengths().items(), key=lambda each: -each[1])[:_QUEUES_MAX],
            "tenants": some_of(self._tenants()),
            "replicas": some_of([self._replica(each) for each in core.replicas]),
            "peers": some_of([self._peer(each) for each in core.peers]),
            "tables": [table for each in self._observed.features if (table := each.page_table()) is not None],
            "names": self._said(),
            "policies": [self._policy()],
            "decisions": self._decisions(),
        }

    # The gateway itself

    def _state(self) -> dict[str, object]:
        observed = self._observed
        return {
            **{key: told for each in observed.features for key, told in each.on_page().items()},
            "notes": list(self._notes()),
            "draining": self._core.draining,
            "drained_by_controller": observed.is_drained,
            "lockdown": self._core.forwarding_stop is not None,
            "not_ready_reason": observed.readiness(),
        }

    def _notes(self) -> Iterator[Note]:
        core, observed = self._core, self._observed
        if core.draining:
            yield Note("warn", "Draining: new requests are rejected, running ones finish.")
        elif observed.is_drained:
            yield Note("warn", f"{DRAINED.capitalize()}, until it is undrained there.")
        is_any_reachable = bool(core.replicas.reachable)
        for name, text in observed.notes().items():
            is_among_problems = name == "lockdown" or (name == "engines" and not is_any_reachable)
            if not is_among_problems:
                yield Note("warn", f"{name}: {text}")

    def _totals(self) -> dict[str, object]:
        core = self._core
        use = engine_use(core.replicas)
        return {
            "slots": use.slots,
            "slots_used": use.slots_used,
            "kv": _rounded(use.kv_usage),
            "requests": len(core.requests),
            "waiting": len(core.waiting),
            "replicas": len(core.replicas),
            "free": core.replicas.available.bit_count(),
            "gateways": len(core.peers) + 1,
            "gateways_up": core.peers.usable.bit_count() + 1,
        }

    def _replica(self, state: ReplicaState) -> dict[str, object]:
        return {
            "id": state.spec.replica_id,
            "region": state.spec.place.region,
            "pool": state.spec.pool,
            "role": state.spec.role,
            "models": list(state.spec.models[:8]),
            "identities": list(dict.fromkeys(filter(None, map(state.spec.identity_of, state.spec.models[:8])))),
            "health": _REPLICAS[condition_of(state)],
            "standing": state.standing,
            "detail": state.detail,
            "running": state.running,
            "pending": state.waiting,
            "in_flight": state.in_flight,
            "slots": state.slots.total,
            "kv": round(state.kv_usage, 2),
        }

    def _tenants(self) -> list[dict[str, object]]:
        """Open requests by tenant and service class, most waiting first. Tenants that logs may not name are one, and so
        are those of forwards: their names are another region's to show, and take no label of the metrics here."""
        running: Counter[tuple[str, str]] = Counter()
        waiting: Counter[tuple[str, str]] = Counter()
        oldest_ns: dict[tuple[str, str], int] = {}
        for each in self._core.requests.values():
            is_ours = each.record.origin is None
            tenant = self._observed.metrics.tenant_label(each.profile.tenant) if is_ours else _FORWARDED
            key = tenant, each.request_class.service_class
            if each.phase is Phase.WAITING:
                waiting[key] += 1
                oldest_ns[key] = min(oldest_ns.get(key, each.arrived_ns), each.arrived_ns)
            else:
                running[key] += 1
        keys = dict.fromkeys([key for key, _ in (*waiting.most_common(), *running.most_common())])
        return [
            {
                "tenant": key[0],
                "class": key[1],
                "waiting": waiting[key],
                "running": running[key],
                "oldest_ms": self._began_ms + oldest_ns[key] // _MILLISECOND_NS if key in oldest_ns else None,
            }
            for key in keys
        ]

    # Peers and regions

    def _peer(self, state: PeerState) -> dict[str, object]:
        report = state.report
        rtt_ms = state.rtt_ns / _MILLISECOND_NS
        return {
            "id": state.spec.gateway_id,
            "region": state.spec.place.region,
            "jurisdiction": state.spec.place.jurisdiction,
            "health": _health_of(state),
            "standing": state.standing,
            "detail": state.detail,
            "rtt_ms": None if state.observation is None else round(rtt_ms, 1 if rtt_ms < 10 else 0),
            "in_flight": state.in_flight,
            "free": sum(free for _, _, free, _ in _groups(() if report is None else report.capacities)),
            "waiting": sum(state.queue_lengths.values()),
        }

    def _regions(self) -> list[RegionShown]:
        core = self._core
        shown: dict[str, RegionShown] = {}
        healths: dict[str, list[Health]] = {}
        by_place: dict[Place, list[ReplicaState]] = {}
        here = _row(shown, core.place)
        here.is_here, (here.latitude, here.longitude) = True, self._location
        here.gateways, here.waiting, here.why = [core.gateway_id], len(core.waiting), self._observed.readiness()
        for replica in core.replicas:
            is_free = bool(core.replicas.available >> replica.slot & 1)
            is_down = condition_of(replica) is ReplicaCondition.DOWN
            running = replica.running + replica.waiting
            _row(shown, replica.spec.place).add(replicas=1, free=is_free, down=is_down, running=running)
            by_place.setdefault(replica.spec.place, []).append(replica)
        for place, served in by_place.items():
            row, use = _row(shown, place), engine_use(served)
            row.slots, row.slots_used, row.kv = use.slots, use.slots_used, _rounded(use.kv_usage)
        for peer in core.peers:
            row = _row(shown, peer.spec.place)
            row.gateways.append(peer.spec.gateway_id)
            row.waiting += sum(peer.queue_lengths.values())
            row.why = row.why or peer.detail
            health = _health_of(peer)
            healths.setdefault(row.region, []).append(health)
            report = None if health is Health.DOWN else peer.report
            for place, replicas, free, load in _groups(() if report is None else report.capacities):
                _row(shown, place).add(replicas=replicas, free=free, running=load)
        healths.setdefault(here.region, []).append(self._health_here(here))
        for row in shown.values():
            row.health = health_of(healths.get(row.region, ()))
        return list(shown.values())

    def _health_here(self, here: RegionShown) -> Health:
        if self._observed.readiness():
            return Health.CLOSED
        if here.down:
            return Health.DOWN if here.down == here.replicas else Health.DEGRADED
        return Health.BUSY if here.replicas and not here.free else Health.HEALTHY

    def _forwards(self, now_ns: int) -> list[object]:
        here = self._core.place.region
        rates = self._observed.forward_rates.per_minute(now_ns)
        flows: list[tuple[str, str, float, int]] = []
        for peer in self._core.peers:
            name, there = peer.spec.gateway_id, peer.spec.place.region
            flows.append((here, there, rates.get((name, ForwardDirection.OUT), 0.0), peer.in_flight))
            flows.append((there, here, rates.get((name, ForwardDirection.IN), 0.0), 0))
        return list(forwards_of(flows))

    # DNS records, policy and decisions

    def _said(self) -> dict[str, object]:
        tree = self._names.tree
        if tree is None:
            return {"zone": "", "areas": []}
        areas = [
            {"region": each.region, "gateways": each.gateways, "addresses": each.addresses, "why": each.why}
            for each in tree.areas
        ]
        return {"zone": tree.zone, "ttl_s": tree.ttl_s, "areas": areas}

    def _policy(self) -> dict[str, object]:
        policy = self._core.policy
        return {
            "region": policy.place.region,
            "jurisdiction": policy.place.jurisdiction,
            "digest": policy.digest,
            "closed_reason": policy.closed_reason,
            "words": self._words_of(policy),
        }

    def _words_of(self, policy: ResidencyPolicy) -> list[str]:
        """Sentences of the policy, made again only when the policy or the peers' places change."""
        places = tuple(dict.fromkeys(each.spec.place for each in self._core.peers))
        if self._worded is None or self._worded[0] is not policy or self._worded[1] != places:
            self._worded = policy, places, sentences_seen_from(policy, places)
        return self._worded[2]

    def _decisions(self) -> list[dict[str, object]]:
        """Decisions with their time of day; an age would differ at each look."""
        rows = latest(self._observed, DECISIONS_SHOWN, MARKED_SHOWN)
        return [shown_at(each, self._began_ms + arrived_ms) for arrived_ms, each in rows]


def _row(shown: dict[str, RegionShown], place: Place) -> RegionShown:
    return shown.setdefault(place.region, RegionShown(place.region, place.jurisdiction))


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 2)


def _health_of(state: PeerState) -> Health:
    if state.observation is None:
        return Health.UNKNOWN
    return _PEERS.get(state.standing, Health.HEALTHY)


def _groups(capacities: Iterable[ModelCapacity]) -> Iterator[tuple[Place, int, int, int]]:
    """Counts of replicas, free ones and requests on them, by pool and place. Replicas with several models are in the
    capacity of each, so the highest counts of a pool are taken."""
    groups: dict[tuple[str, Place], tuple[int, int, int]] = {}
    for each in capacities:
        key = each.pool, each.place
        before = groups.get(key, (0, 0, 0))
        groups[key] = max(before[0], each.replicas), max(before[1], each.available), max(before[2], each.load)
    for (_, place), counts in groups.items():
        yield place, *counts
