"""Finds replicas by the labels of a cluster's objects, and is told at once when they change.

An engine is taken up once it is ready, and given up when its pod goes. One that was ready and is no more stays: a busy
engine may miss its own probe, and whether it can be used is found out by ours. A cluster that cannot be asked, or that
refuses, takes nothing away; one that says all at once that there is nobody any more has to say it again.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, Never

from structlog.typing import FilteringBoundLogger

from gateway.config.sections import DiscoveryConfig
from gateway.config.targets import KubernetesReplicasConfig, ReplicaConfig
from gateway.discovery.kubernetes_api import OBJECTS_MAX, ApiFailed, Collection, Expired
from gateway.discovery.kubernetes_objects import OBJECTS, Condition, Seen, kind_of, name_of, path_of, seen_in
from gateway.discovery.source import Report
from gateway.discovery.templates import Location, replica_at

_SECOND_NS = 1_000_000_000
_WATCH_PAUSE_S = 1.0
"""Between two watches; a cluster that ends each of them at once is not asked without pause."""
_WATCHES_PER_LIST = 10
"""After so many the whole list is asked for: a watch that keeps a change to itself does so for some minutes."""
_SEEN_MAX = 5_000
"""Engines in all objects, whether they are ready or not."""


class _AllGone(Exception):
    """Everybody is gone at once, and nobody was seen to go: ask again before it is believed."""


class KubernetesSource:
    """The replicas behind one selector."""

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
        self._objects: dict[str, tuple[Seen, ...]] = {}
        """By the name of the object that says it."""
        self._known: dict[str, Location] = {}
        """Who is taken up."""
        self._left_out = 0
        self._doubts = 0
        """Whole lists in a row without anybody."""
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
            except Expired:
                self._log.debug("the cluster has forgotten what we knew: asking for everything again")
            except _AllGone:
                self._pause_ns = self._settings.interval_min_ns
                self._log.warning(
                    "the cluster says that every replica is gone; they stay until it has said so again",
                    known=len(self._known),
                )
            except ApiFailed as failure:
                self._complain(str(failure))
            self._looked.set()
            await asyncio.sleep(self._pause_ns / _SECOND_NS)
            self._pause_ns = min(2 * self._pause_ns, self._settings.interval_max_ns)

    async def _follow(self, report: Report) -> None:
        """From a whole list through every change, for some watches or until the cluster loses the thread. Raises
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
                    if news:  # a cluster that lists and then refuses each watch is asked ever less
                        self._pause_ns = self._settings.interval_min_ns
            self._pause_ns = self._settings.interval_min_ns
            await asyncio.sleep(_WATCH_PAUSE_S)

    def _take_in(self, item: dict[str, Any], *, is_gone: bool) -> None:
        name, seen = self._read(item)
        self._objects.pop(name, None)
        if seen and not is_gone:
            self._objects[name] = seen

    def _read(self, item: dict[str, Any]) -> tuple[str, tuple[Seen, ...]]:
        return name_of(item), tuple(seen_in(self.config.kind, item, self.config.port, self.config.networks))

    def _check_size(self) -> None:
        """Raises ApiFailed."""
        if len(self._objects) > OBJECTS_MAX or sum(map(len, self._objects.values())) > _SEEN_MAX:
            self._objects = {}
            raise ApiFailed(f"more than {OBJECTS_MAX} objects or {_SEEN_MAX} engines: narrow the selector")

    def _tell(self, report: Report) -> None:
        before = dict(self._known)
        taken_up = self._taken_up()
        if before and not taken_up:
            self._check_that_all_went(before)
        elif taken_up:
            self._doubts = 0
        self._known = taken_up
        if self._known != before or not self._looked.is_set():
            report(self._replicas())

    def _check_that_all_went(self, known: dict[str, Location]) -> None:
        """Raises _AllGone where that is in doubt."""
        going = {each.who for told in self._objects.values() for each in told if each.condition is Condition.GOING}
        if not known.keys() <= going and self._doubts < self._settings.misses_max:
            raise _AllGone
        self._log.error("EVERY REPLICA THAT THE CLUSTER NAMED IS GONE", gone=len(known))

    def _taken_up(self) -> dict[str, Location]:
        """Those known that are still there, and those that are ready. One pod may be in several slices: it counts as
        ready where one says so, as going where one says that, and keeps the address that it is known by."""
        seen: dict[str, list[Seen]] = {}
        for each in sorted((each for told in self._objects.values() for each in told), key=_order):
            seen.setdefault(each.who, []).append(each)
        staying = {
            who: told for who, told in seen.items() if all(each.condition is not Condition.GOING for each in told)
        }
        kept = {
            who: location
            for who, location in self._known.items()
            if any(each.location == location for each in staying.get(who, ()))
        }
        fresh = {
            who: told[0].location
            for who, told in staying.items()
            if who not in kept and any(each.condition is Condition.READY for each in told)
        }
        room = max(0, self._settings.replicas_max - len(kept))
        self._tell_of_left_out(len(fresh) - room)
        return kept | dict(list(fresh.items())[:room])

    def _tell_of_left_out(self, count: int) -> None:
        """Once for each number of them."""
        if count != self._left_out and count > 0:
            self._log.error(
                "MORE REPLICAS THAN ALLOWED: some are left out",
                left_out=count,
                replicas_max=self._settings.replicas_max,
            )
        self._left_out = count

    def _replicas(self) -> tuple[ReplicaConfig, ...]:
        template, scheme, tells_port = self.config.template, self.config.scheme, isinstance(self.config.port, str)
        return tuple(
            replica
            for location in dict.fromkeys(self._known.values())
            for replica in replica_at(template, scheme, location, tells_port=tells_port)
        )

    def _complain(self, trouble: str) -> None:
        """Once per trouble."""
        if trouble != self._trouble:
            self._trouble = trouble
            self._log.warning(
                "the cluster cannot be asked; the replicas known before stay", detail=trouble, known=len(self._known)
            )


def _order(seen: Seen) -> tuple[str, int, bytes, int]:
    """IPv4 before IPv6, else as they come from a sorted list: which address a pod is known by is no chance."""
    location = seen.location
    return seen.who, location.address.version, location.address.packed, location.port
