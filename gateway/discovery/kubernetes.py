"""Finds replicas by the labels of Kubernetes objects, and follows their changes with watches.

An engine is added once it is ready, and removed when its pod goes. One whose pod is being deleted stays until it is
gone, with the time at which its grace ends; slices tell no such time, and their engines go at once. One that was ready
and is no longer ready stays: a busy engine may miss its own probe, and the gateway's probes find out whether it can be
used. A cluster that cannot be reached, or that refuses, removes no replica; a cluster that suddenly lists none at all
must repeat that before it is believed.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, Never

from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from gateway.config.sections import DiscoveryConfig
from gateway.config.targets import KubernetesReplicasConfig, ReplicaConfig
from gateway.discovery.kubernetes_api import OBJECTS_MAX, ApiFailed, Collection, VersionExpired
from gateway.discovery.kubernetes_objects import (
    OBJECTS,
    EngineCondition,
    SeenEngine,
    kind_of,
    name_of,
    path_of,
    seen_in,
)
from gateway.discovery.source import Report
from gateway.discovery.templates import ReplicaLocation, replica_at

_SECOND_NS = 1_000_000_000
_WATCH_PAUSE_S = 1.0
"""Seconds between two watches, so that a cluster that ends each watch at once is not asked without pause."""
_WATCHES_PER_LIST = 10
"""Watches before the whole list is fetched again, which bounds to some minutes how long a watch can hide a change."""
_SEEN_MAX = 5_000
"""Most engines in all objects, ready or not."""


class _AllGone(Exception):
    """All known replicas are missing although none was seen going: list again before it is believed."""


class KubernetesSource:
    """Replicas behind one label selector."""

    def __init__(self, config: KubernetesReplicasConfig, settings: DiscoveryConfig, log: FilteringBoundLogger) -> None:
        self.config = config
        self._settings = settings
        self._log = log.bind(namespace=config.namespace, selector=config.selector, kind=config.kind)
        self._collection = Collection(
            config.api,
            kind_of(config.kind),
            path_of(config.kind, config.namespace),
            config.selector,
            objects=OBJECTS,
            timeout_s=settings.timeout_ns / _SECOND_NS,
        )
        self._objects: dict[str, tuple[SeenEngine, ...]] = {}
        """Engines by the name of the object that describes them."""
        self._known: dict[str, ReplicaLocation] = {}
        """Locations of the engines that were added, by the name that tells engines apart (`SeenEngine.who`)."""
        self._leave_at_s: dict[str, float] = {}
        """End of each known engine whose pod is being deleted, in seconds since 1970."""
        self._left_out = 0
        self._doubts = 0
        """Whole lists in a row that named no usable engine."""
        self._looked = asyncio.Event()
        self._trouble = ""
        self._pause_ns = settings.interval_min_ns

    @property
    def name(self) -> str:
        return f"kubernetes:{self.config.template.spec.replica_id}"

    async def first_look(self) -> None:
        await self._looked.wait()

    async def run(self, report: Report) -> Never:
        while True:
            try:
                await self._follow(report)
            except VersionExpired:
                self._log.debug("kubernetes_watch_expired")
            except _AllGone:
                self._pause_ns = self._settings.interval_min_ns
                self._log.warning(
                    "kubernetes_replicas_all_gone_unconfirmed",
                    known=len(self._known),
                )
            except ApiFailed as failure:
                self._complain(str(failure))
            self._looked.set()
            await asyncio.sleep(self._pause_ns / _SECOND_NS)
            self._pause_ns = min(2 * self._pause_ns, self._settings.interval_max_ns)

    async def _follow(self, report: Report) -> None:
        """Fetch the whole list and follow its changes, for `_WATCHES_PER_LIST` watches or until one fails. Raises
        ApiFailed, Expired and _AllGone."""
        listed = await self._collection.whole(self._read)
        self._objects = {name: seen for name, seen in listed.items if seen}
        self._check_size()
        self._doubts += 1
        self._tell(report)
        self._looked.set()
        self._trouble = ""
        version = listed.version
        for _ in range(_WATCHES_PER_LIST):
            async with aclosing(self._collection.changes(version)) as changes:
                async for news in changes:
                    for each in news:
                        version = each.version
                        if each.item is not None:
                            self._take_in(each.item, is_gone=each.is_gone)
                    self._check_size()
                    self._tell(report)
                    if news:  # a cluster that refuses each watch is asked less and less often
                        self._pause_ns = self._settings.interval_min_ns
            self._pause_ns = self._settings.interval_min_ns
            await asyncio.sleep(_WATCH_PAUSE_S)

    def _take_in(self, item: dict[str, Any], *, is_gone: bool) -> None:
        name, seen = self._read(item)
        self._objects.pop(name, None)
        if seen and not is_gone:
            self._objects[name] = seen

    def _read(self, item: dict[str, Any]) -> tuple[str, tuple[SeenEngine, ...]]:
        return name_of(item), tuple(seen_in(self.config.kind, item, self.config.port, self.config.networks))

    def _check_size(self) -> None:
        """Raise ApiFailed where there are too many objects or engines."""
        if len(self._objects) > OBJECTS_MAX or sum(map(len, self._objects.values())) > _SEEN_MAX:
            self._objects = {}
            raise ApiFailed(f"more than {OBJECTS_MAX} objects or {_SEEN_MAX} engines: narrow the selector")

    def _tell(self, report: Report) -> None:
        before, left_before = dict(self._known), self._leave_at_s
        taken_up = self._taken_up()
        if before and not taken_up:
            self._check_that_all_went(before)
        elif taken_up:
            self._doubts = 0
        self._known = taken_up
        told = (each for seen in self._objects.values() for each in seen)
        self._leave_at_s = {
            each.who: each.leaves_at_s for each in told if each.leaves_at_s is not None and each.who in taken_up
        }
        if (self._known, self._leave_at_s) != (before, left_before) or not self._looked.is_set():
            report(self._replicas())

    def _check_that_all_went(self, known: dict[str, ReplicaLocation]) -> None:
        """Raise _AllGone where it is in doubt that all known replicas are gone."""
        going = {
            each.who for told in self._objects.values() for each in told if each.condition is EngineCondition.GOING
        }
        going |= self._leave_at_s.keys()
        if not known.keys() <= going and self._doubts < self._settings.misses_max:
            raise _AllGone
        self._log.error("kubernetes_replicas_all_gone", gone=len(known))

    def _taken_up(self) -> dict[str, ReplicaLocation]:
        """Known engines that are still there, and engines that are ready. One pod may be in several slices: it is ready
        where one slice says so, going where one slice says that, and keeps the address that it is known by."""
        seen: dict[str, list[SeenEngine]] = {}
        for each in sorted((each for told in self._objects.values() for each in told), key=_order):
            seen.setdefault(each.who, []).append(each)
        staying = {
            who: told for who, told in seen.items() if all(each.condition is not EngineCondition.GOING for each in told)
        }
        kept = {
            who: location
            for who, location in self._known.items()
            if any(each.location == location for each in staying.get(who, ()))
        }
        fresh = {
            who: told[0].location
            for who, told in staying.items()
            if who not in kept and any(each.condition is EngineCondition.READY for each in told)
        }
        room = max(0, self._settings.replicas_max - len(kept))
        self._tell_of_left_out(len(fresh) - room)
        return kept | dict(list(fresh.items())[:room])

    def _tell_of_left_out(self, count: int) -> None:
        """Log how many replicas are left out, once for each new count."""
        if count != self._left_out and count > 0:
            self._log.error(
                "discovered_replicas_over_limit",
                left_out=count,
                replicas_max=self._settings.replicas_max,
            )
        self._left_out = count

    def _replicas(self) -> tuple[ReplicaConfig, ...]:
        template, scheme, tells_port = self.config.template, self.config.scheme, isinstance(self.config.port, str)
        ends = {location: self._leave_at_s.get(who) for who, location in self._known.items()}
        return tuple(
            replace(replica, leaves_at_s=leaves_at_s)
            for location, leaves_at_s in ends.items()
            for replica in replica_at(template, scheme, location, tells_port=tells_port)
        )

    def _complain(self, trouble: str) -> None:
        """Log a failure when it differs from the last one."""
        if trouble != self._trouble:
            self._trouble = trouble
            self._log.warning("kubernetes_discovery_failed", reason=trouble, known=len(self._known))


def _order(seen: SeenEngine) -> tuple[str, int, bytes, int]:
    """Sort key, IPv4 before IPv6, so that a pod's known address does not depend on the order of the objects."""
    location = seen.location
    return seen.who, location.address.version, location.address.packed, location.port
