"""Measures the controller core's costs by number of replicas and regions: each event in steady state, the death of a
gateway, recovery from stored state, and the size of a gateway's snapshot.

Every gateway receives every other gateway's heartbeats, as in a healthy mesh. Figures are medians of several rounds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from statistics import median

from controller.core import effects, events
from controller.core.controller_core import ControllerCore
from controller.core.vocabulary import GatewayEntry, HeardPeer, Location, ReplicaEntry
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import ControlVersion, GatewayId, Jurisdiction, Place, PlaceRule, RegionName, ReplicaId
from mesh.control.codec import said_by_controller
from mesh.control.vocabulary import ControlSnapshot, PeerGrant, ReplicaGrant, ReplicaOwner

SIZES = ((10, 3), (1_000, 3), (10_000, 3), (10, 100), (1_000, 100), (10_000, 100))
"""Pairs of replicas and regions."""
_ROUNDS = 3
_SECOND_NS = 1_000_000_000
_JURISDICTIONS = ("EU", "JP", "US")


def run() -> Mapping[str, object]:
    figures: dict[str, object] = {}
    for replicas, regions in SIZES:
        measured = _measure(replicas, regions)
        figures |= {figure_at(figure, replicas, regions): value for figure, value in measured.items()}
    return figures


def figure_at(figure: str, replicas: int, regions: int) -> str:
    """Name of a figure for a mesh of this size."""
    return f"{figure}_at_{replicas}_replicas_in_{regions}_regions"


def _measure(replicas: int, regions: int) -> dict[str, float]:
    deaths = [_Mesh(replicas, regions).death_s() for _ in range(_ROUNDS)]
    recoveries = [_Mesh(replicas, regions).recovery_s() for _ in range(_ROUNDS)]
    mesh = _Mesh(replicas, regions)
    reports, probes = zip(*((mesh.heard_s(), mesh.probed_s()) for _ in range(_ROUNDS)), strict=True)
    mesh.death_s()
    snapshot = mesh.largest_snapshot()
    pushes = [_took(lambda: said_by_controller(snapshot).SerializeToString()) for _ in range(_ROUNDS)]
    return {
        "report_us": round(median(reports) * 1e6, 1),
        "probe_us": round(median(probes) * 1e6, 1),
        "death_ms": round(median(deaths) * 1e3, 2),
        "recovery_ms": round(median(recoveries) * 1e3, 2),
        "snapshot_bytes": int(said_by_controller(snapshot).ByteSize()),
        "push_ms": round(median(pushes) * 1e3, 2),
    }


class _Mesh:
    """One gateway per region, each with its share of the replicas, and a core that receives events of all."""

    def __init__(self, replicas: int, regions: int) -> None:
        self._gateways = tuple(_gateway(number) for number in range(regions))
        self._replicas = tuple(
            ReplicaEntry(ReplicaId(f"replica-{number:05}"), self._gateways[number % regions].gateway_id)
            for number in range(replicas)
        )
        everywhere = PlaceRule(jurisdictions=frozenset(map(Jurisdiction, _JURISDICTIONS)))
        self._policies = tuple(
            ResidencyPolicy(each.place, everywhere, everywhere, digest="bench") for each in self._gateways
        )
        self._now_ns = 0
        self._core = ControllerCore()
        self._begin()

    def heard_s(self) -> float:
        """Seconds per report of one gateway on all its peers."""
        reports = [events.PeersHeard(each.gateway_id, self._peers_of(each)) for each in self._gateways]
        return _took(lambda: [self._tell(each) for each in reports]) / len(reports)

    def probed_s(self) -> float:
        """Seconds per successful probe."""
        probes = [events.GatewayProbed(each.gateway_id, True) for each in self._gateways]
        return _took(lambda: [self._tell(each) for each in probes]) / len(probes)

    def death_s(self) -> float:
        """Seconds from a gateway's broken stream to the last effect of its death, in steady state."""
        dead = self._gateways[0].gateway_id
        return _took(lambda: self._kill(dead))

    def recovery_s(self) -> float:
        """Seconds from the restart of a controller until all gateways have connected and reported."""
        owners = tuple(self._core.owners.items())
        self._core = ControllerCore()
        return _took(lambda: self._begin(owners))

    def largest_snapshot(self) -> ControlSnapshot:
        """Snapshot of the gateway with the most replicas, after a gateway's death."""
        core = self._core
        owned: dict[GatewayId, list[ReplicaId]] = {}
        for replica_id, owner in core.owners.items():
            owned.setdefault(owner, []).append(replica_id)
        most = max(owned, key=lambda each: len(owned[each]))
        homes = {each.replica_id: each.home for each in self._replicas}
        places = {each.gateway_id: each.place for each in self._gateways}
        return ControlSnapshot(
            ControlVersion(1, core.version),
            most,
            tuple(
                ReplicaGrant(_document(each, places[homes[each]]), homes[each], places[homes[each]])
                for each in owned[most]
            ),
            tuple(
                ReplicaOwner(each, homes[each], owner) for each, owner in core.owners.items() if homes[each] != owner
            ),
            tuple(PeerGrant(each.gateway_id, each.place, "gateway.example.net:7443") for each in self._gateways),
            records=core.tree,
        )

    def _begin(self, owners: tuple[tuple[ReplicaId, GatewayId], ...] = ()) -> None:
        self._tell(events.StateRestored(1, owners, self._policies))
        self._tell(events.RegistryApplied(self._gateways, self._replicas))
        for gateway, policy in zip(self._gateways, self._policies, strict=True):
            self._tell(events.GatewayConnected(gateway.gateway_id, policy))
        for gateway in self._gateways:
            self._tell(events.PeersHeard(gateway.gateway_id, self._peers_of(gateway)))

    def _kill(self, dead: GatewayId) -> None:
        self._tell(events.GatewayDisconnected(dead, "connection reset"))
        for gateway in self._gateways[1:]:
            gone = HeardPeer(dead, self._now_ns, is_broken=True)
            self._tell(events.PeersHeard(gateway.gateway_id, (gone,)))
        for _ in range(self._core.config.probe_failures_min):
            self._tell(events.GatewayProbed(dead, False, "connection refused", was_refused=True))
        assert dead not in self._core.owners.values(), "it was given away"

    def _peers_of(self, gateway: GatewayEntry) -> tuple[HeardPeer, ...]:
        return tuple(
            HeardPeer(each.gateway_id, self._now_ns, False, 1_000_000 * (1 + number))
            for number, each in enumerate(self._gateways)
            if each is not gateway
        )

    def _tell(self, event: events.Event) -> list[effects.Effect]:
        """Handle one event as the driver does, which asks for the next wake-up after each."""
        self._now_ns += 1_000_000
        told = self._core.handle(event, self._now_ns)
        self._core.next_wakeup_ns()
        return told


def _gateway(number: int) -> GatewayEntry:
    place = Place(RegionName(f"region-{number:03}"), Jurisdiction(_JURISDICTIONS[number % len(_JURISDICTIONS)]))
    location = Location((number * 37) % 120 - 60.0, (number * 61) % 360 - 180.0)
    return GatewayEntry(GatewayId(f"{place.region}/gw"), place, (f"192.0.2.{number}",), location)


def _document(replica_id: ReplicaId, place: Place) -> str:
    """Replica document as a region file describes it."""
    return json.dumps(
        {
            "id": replica_id,
            "url": f"https://{replica_id}.{place.region}.example.net:8000",
            "engine": "vllm",
            "models": ["llama-3.1-8b-instruct"],
            "region": place.region,
            "jurisdiction": place.jurisdiction,
            "api_key_env": "ENGINE_API_KEY",
        }
    )


def _took(work: Callable[[], object]) -> float:
    started = time.perf_counter()  # noqa: TID251 - a benchmark measures
    work()
    return time.perf_counter() - started  # noqa: TID251 - a benchmark measures
