"""Short forms of a controller core's events: registrations, reports about peers, and probes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from controller.core import events
from controller.core.config import ControllerConfig
from controller.core.controller_core import ControllerCore
from controller.core.effects import Effect
from controller.core.vocabulary import Condition, GatewayEntry, HeardPeer, Location, ReplicaEntry
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import GatewayId, Place, ReplicaId
from tests.support.core import AP, EU, MS, SECOND, US, policy

_Kind = TypeVar("_Kind")

WHERE = {US: Location(38.9, -77.4), EU: Location(53.3, -6.3), AP: Location(35.7, 139.7)}


def gateway(name: str, place: Place = US, *, is_drained: bool = False) -> GatewayEntry:
    address = f"192.0.2.{sum(name.encode()) % 250}"
    return GatewayEntry(GatewayId(name), place, (address,), WHERE[place], is_drained)


def replicas(home: str, count: int) -> list[ReplicaEntry]:
    return [ReplicaEntry(ReplicaId(f"{home}-r{number}"), GatewayId(home)) for number in range(count)]


class Told:
    """A core that is told one event after another, at times of the test's choosing."""

    def __init__(self, config: ControllerConfig | None = None) -> None:
        self.core = ControllerCore()
        self.now_ns = 0
        self.effects: list[Effect] = []
        """Effects of the last event."""
        self.history: list[Effect] = []
        if config is not None:
            self.tell(events.ControllerConfigApplied(config))

    def tell(self, event: events.Event, *, after_ns: int = 0) -> list[Effect]:
        self.now_ns += after_ns
        self.effects = self.core.handle(event, self.now_ns)
        self.history += self.effects
        return self.effects

    def last(self, kind: type[_Kind]) -> _Kind:
        return [each for each in self.history if isinstance(each, kind)][-1]

    def all(self, kind: type[_Kind]) -> list[_Kind]:
        return [each for each in self.history if isinstance(each, kind)]

    def register(self, gateways: Iterable[GatewayEntry], owned: Iterable[ReplicaEntry]) -> None:
        self.tell(events.RegistryApplied(tuple(gateways), tuple(owned)))

    def connect(self, *names: str, policies: dict[str, ResidencyPolicy] | None = None) -> None:
        for name in names:
            place = self.core.gateways[GatewayId(name)].place
            own = (policies or {}).get(name) or policy(place)
            self.tell(events.GatewayConnected(GatewayId(name), own))

    def disconnect(self, name: str) -> None:
        self.tell(events.GatewayDisconnected(GatewayId(name), "its stream broke"))

    def probe(
        self,
        name: str,
        *,
        healthy: bool = False,
        times: int = 1,
        apart_ns: int = 100 * MS,
        was_refused: bool = False,
    ) -> None:
        for _ in range(times):
            self.tell(events.GatewayProbed(GatewayId(name), healthy, "no answer", was_refused), after_ns=apart_ns)

    def heard(self, by: str, of: str, *, ago_ns: int = 0, is_broken: bool = False, rtt_ns: int | None = None) -> None:
        said = HeardPeer(GatewayId(of), self.now_ns - ago_ns, is_broken, rtt_ns)
        self.tell(events.PeersHeard(GatewayId(by), (said,)))

    def kill(self, name: str) -> None:
        """Kill a process: its connections to the controller and to its peers break, and its host refuses new ones."""
        self._lose(name, was_refused=True)

    def cut_off(self, name: str) -> None:
        """Cut a host off: its connections break, and it does not answer."""
        self._lose(name, was_refused=False)

    def _lose(self, name: str, *, was_refused: bool) -> None:
        self.disconnect(name)
        for other, health in list(self.core.health.items()):
            if health.connected and other != name:
                self.heard(other, name, is_broken=True)
        self.probe(name, times=self.core.config.probe_failures_min, was_refused=was_refused)

    def wait(self, duration_ns: int) -> None:
        """Let time pass, waking the core whenever it asks for it."""
        until_ns = self.now_ns + duration_ns
        while (wake_ns := self.core.next_wakeup_ns()) is not None and wake_ns <= until_ns:
            self.now_ns = wake_ns
            self.tell(events.ControllerTimePassed())
        self.now_ns = until_ns

    def condition(self, name: str) -> Condition:
        return self.core.health[GatewayId(name)].condition

    def owned_by(self, name: str) -> list[str]:
        return sorted(each for each, owner in self.core.owners.items() if owner == name)


def mesh(config: ControllerConfig | None = None, *, per_gateway: int = 4) -> Told:
    """Core with one gateway in each of three regions, all connected and up."""
    told = Told(config)
    gateways = [gateway("us", US), gateway("eu", EU), gateway("ap", AP)]
    told.register(gateways, [each for entry in gateways for each in replicas(entry.gateway_id, per_gateway)])
    told.connect("us", "eu", "ap")
    return told


__all__ = ["AP", "EU", "MS", "SECOND", "US", "WHERE", "Told", "gateway", "mesh", "policy", "replicas"]
