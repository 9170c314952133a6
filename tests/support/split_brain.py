"""Plays a story of `tests/hostile/split_brain.py`: the lead, lease, renewals and writer of two controllers over one
store, the precedence of two gateways, and DNS records with a claim beside them.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from controller.config import ControllerFile
from controller.dns.claim import OwnerClaim, check_claim
from controller.dns.provider import DnsOutdated, DnsUnavailable, check_lease
from controller.leader_election import Lead, StandbyView, take_the_lead
from controller.leadership import LeaseTimes, lead
from controller.lease import Lease, LeaseOver
from controller.metrics import ControllerMetrics
from controller.store.store import (
    Store,
    StoreError,
    StoreHolding,
    StoreLost,
    StoreTaken,
    StoreUnavailable,
    StoreUncertain,
)
from gateway.app.precedence import Precedence
from gateway.config.orders import OrdersRefused
from gateway.core.vocabulary import ControlVersion, GatewayId, PlaceRule, ReplicaId
from mesh.clock import Clock
from mesh.control.vocabulary import ControlSnapshot, ReplicaGrant, ReplicaOwner
from mesh.operators import Operators
from tests.hostile.split_brain import SplitCase
from tests.support.controllers import read_file
from tests.support.core import EU, REGIONS, US
from tests.support.desks import LOG
from tests.support.gateways import region_config
from tests.support.shared_store import SharedMemory, SharedStore

SECOND_NS = 1_000_000_000
LEASE_NS = 6 * SECOND_NS
WRITE_S = 0.5
"""Seconds that a write of DNS records may take at most."""
OWNER = "owner/r1"
HOME = {"us": GatewayId("us-1"), "eu": GatewayId("eu-1")}
ENDS: tuple[tuple[type[Exception], str], ...] = (
    (StoreLost, "lost"),
    (StoreTaken, "taken"),
    (StoreUncertain, "uncertain"),
    (StoreUnavailable, "unavailable"),
    (DnsOutdated, "outdated"),
    (DnsUnavailable, "over"),
    (LeaseOver, "over"),
    (OrdersRefused, "older"),
)


class RatedClock(Clock):
    """Clock with a rate and an offset of its own."""

    def __init__(self, offset_s: int, rate: float) -> None:
        self._now_ns = float(offset_s * SECOND_NS)
        self._rate = rate

    def go_on(self, seconds: float, *, jumps: bool = False) -> None:
        self._now_ns += seconds * SECOND_NS * (1.0 if jumps else self._rate)

    def now_ns(self) -> int:
        return round(self._now_ns)

    boot_ns = now_ns


class _Waiting(StandbyView):
    """Waiting that asks for the lead only once."""

    async def lead(self, store: Store, holder: str, times: LeaseTimes, clock: Clock) -> tuple[StoreHolding, Lease]:
        async def wait(error: StoreError) -> None:
            raise error

        return await lead(store, holder, times, clock, wait)


class Names:
    """DNS records of the mesh: a write takes effect only if the claim is still the one that the writer has read."""

    def __init__(self) -> None:
        self.claim: OwnerClaim | None = None
        self.writers: list[tuple[int, int]] = []

    def write(self, read: OwnerClaim | None, claim: OwnerClaim) -> str:
        if read != self.claim:
            return "changed"
        self.claim = claim
        self.writers.append((claim.term, claim.version))
        return ""


class Leader:
    """One of the two controllers."""

    def __init__(self, name: str, file: ControllerFile, shared: SharedMemory, clock: RatedClock) -> None:
        self.name, self.clock = name, clock
        self.store = SharedStore(shared, clock, LEASE_NS)
        self.lead: Lead | None = None
        self.read_claim: OwnerClaim | None = None
        self.under_way: asyncio.Task[None] | None = None
        self._file = file
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def leads(self) -> bool:
        return self.lead is not None and self.lead.lease.left_s() > 0

    async def take(self, tasks: asyncio.TaskGroup) -> None:
        waiting = _Waiting(
            self._file,
            None,
            ControllerMetrics(),
            LOG,
            stop=asyncio.Event(),
            standing_by=lambda _: None,
            operators=Operators(),
        )
        stack = AsyncExitStack()
        self.lead = await take_the_lead(stack, self.store, waiting, self.clock)
        self._stack = stack
        self._tasks.append(tasks.create_task(self.lead.store_writer.run()))

    async def give_back(self) -> None:
        self.store.is_gone = False
        self.store.requests.set()
        self.store.answers.set()
        for each in (*self._tasks, *([self.under_way] if self.under_way is not None else [])):
            each.cancel()
        await self._stack.aclose()

    async def renew(self) -> None:
        """Renew the lease. Raises the reason if it is not renewed."""
        assert self.lead is not None
        renewals = self.lead.renewals
        if not await renewals._renew():
            raise StoreLost(self.lead.store_writer.fault)
        if renewals.fault:
            raise StoreUnavailable(renewals.fault)

    async def write(self, owner: str) -> None:
        assert self.lead is not None
        await self.lead.store_writer.write({OWNER: owner.encode()})

    def check_names(self, names: Names) -> None:
        assert self.lead is not None
        version = self.lead.store_writer.version
        check_lease(self.lead.lease, WRITE_S)
        self.read_claim = names.claim
        if names.claim is not None:
            check_claim(names.claim, "mesh", self.lead.lease.token, version.version)

    def write_names(self, names: Names) -> str:
        assert self.lead is not None
        version = self.lead.store_writer.version
        return names.write(
            self.read_claim, OwnerClaim("mesh", self.lead.lease.token, version.version, 1, (), 443, tls=True)
        )


class Gateway:
    """Gateway of one region; the replica r1 is at home in us."""

    def __init__(self, name: str) -> None:
        self.name = name
        place = {"us": US, "eu": EU}[name]
        local = region_config(HOME[name], place, [], policy_file=Path("policy.yaml"))
        self.precedence = Precedence(local, REGIONS)
        self.precedence.start(lambda *_: None)

    @property
    def serves(self) -> bool:
        if "r1" in self.precedence.away:
            return False
        snapshot = self.precedence.snapshot
        return self.name == "us" or (snapshot is not None and bool(snapshot.replicas))

    async def told(self, version: ControlVersion, owner: str) -> None:
        await self.precedence.take(snapshot_for(self.name, version, owner))

    def hear(self, other: Gateway) -> None:
        if self.precedence.would_be_news(other.precedence.ownership.version):
            self.precedence.hear(other.precedence.ownership)


def snapshot_for(gateway: str, version: ControlVersion, owner: str) -> ControlSnapshot:
    away = (ReplicaOwner(ReplicaId("r1"), HOME["us"], HOME["eu"]),) if owner == "eu" else ()
    grants = (_grant(),) if owner == gateway == "eu" else ()
    return ControlSnapshot(version, HOME[gateway], away=away, replicas=grants)


def _grant() -> ReplicaGrant:
    place = {"region": US.region, "jurisdiction": US.jurisdiction}
    document = {"id": "r1", "url": "http://127.0.0.1:9", "models": ["m"], **place}
    return ReplicaGrant(json.dumps(document), HOME["us"], US, PlaceRule())


class Stage:
    """Controllers, gateways, store and records of a story, with the checks after each of its steps."""

    def __init__(self, case: SplitCase, folder: Path, tasks: asyncio.TaskGroup) -> None:
        self.shared = SharedMemory()
        self.names = Names()
        self.gateways = {name: Gateway(name) for name in HOME}
        file = read_file(folder)
        clocks = [RatedClock(*each) for each in zip(case.offsets_s, case.rates, strict=True)]
        self.leaders = {name: Leader(name, file, self.shared, clock) for name, clock in zip("ab", clocks, strict=True)}
        self._tasks = tasks
        self._has_forgotten = False
        self._written: list[str] = []
        """Results of the writes that were started."""
        self._versions = {name: ControlVersion() for name in HOME}

    async def play(self, step: str) -> None:
        words, _, expected = step.partition(" -> ")
        assert await self._ends(words) == expected, f"{step}: it ends otherwise"
        self._check(step)

    def end(self) -> None:
        us, eu = self.gateways.values()
        us.hear(eu)
        eu.hear(us)
        assert not (us.serves and eu.serves), "both serve r1"

    def _check(self, step: str) -> None:
        for name, gateway in self.gateways.items():
            version = gateway.precedence.version
            assert not self._versions[name].is_newer_than(version), f"{step}: {name} has gone back to {version}"
            self._versions[name] = version
        terms = [term for term, _ in self.names.writers]
        assert terms == sorted(terms), f"{step}: names were written by an older term"
        leading = [each.name for each in self.leaders.values() if each.leads]
        assert len(leading) < 2 or self._has_forgotten, f"{step}: both leases last"

    async def _ends(self, words: str) -> str:
        for pattern, act in self._acts():
            if match := re.fullmatch(pattern, words):
                try:
                    return await act(*match.groups()) or ""
                except tuple(kind for kind, _ in ENDS) as error:
                    return next(word for kind, word in ENDS if isinstance(error, kind))
        raise AssertionError(f"nobody knows how to play {words!r}")

    def _acts(self) -> list[tuple[str, Callable[..., Awaitable[str | None]]]]:
        one, place = "([ab])", "(us|eu)"
        return [
            (r"(\d+) s", self._time),
            (rf"{one} (\d+) s", self._jump),
            (rf"{one} looks (\d+) s", self._look),
            (rf"{one} leads", self._lead),
            (rf"{one} gives back", lambda name: self.leaders[name].give_back()),
            (rf"{one} renews", lambda name: self.leaders[name].renew()),
            (rf"{one} asks to renew", self._ask_to_renew),
            (rf"{one} is answered", self._answer),
            (rf"{one} is robbed", self._rob),
            (rf"{one} writes r1 to {place}", lambda name, owner: self.leaders[name].write(owner)),
            (rf"{one} starts to write r1 to {place}", self._start_to_write),
            (rf"{one} ends it", self._end_writing),
            (rf"{one} tells {place}", self._tell),
            (rf"{one} registers {place}", self._register),
            (rf"{one} publishes", self._publish),
            (rf"{one} reads names", self._read_names),
            (rf"{one} writes names", self._write_names),
            (rf"{one} recovers", self._recover),
            (rf"{place} hears {place}", self._hear),
            (r"store is (gone|back)(?: for ([ab]))?", self._reach),
            (r"store keeps silent", self._keep_silent),
            (r"store is late (\d+) s", self._late),
            (r"store forgets( all)?", self._forget),
        ]

    # Time

    async def _time(self, seconds: str) -> None:
        self._go_on(float(seconds))

    def _go_on(self, seconds: float) -> None:
        for each in self.leaders.values():
            each.clock.go_on(seconds)

    async def _jump(self, name: str, seconds: str) -> None:
        self.leaders[name].clock.go_on(float(seconds), jumps=True)

    # Leaders

    async def _look(self, name: str, seconds: str) -> str:
        found = ""
        for second in range(int(seconds) + 1):
            self._go_on(1.0 if second else 0.0)
            found = await self._ends(f"{name} leads")
            if not found:
                break
        return found

    async def _lead(self, name: str) -> None:
        await self.leaders[name].take(self._tasks)

    async def _ask_to_renew(self, name: str) -> None:
        leader = self.leaders[name]
        leader.store.answers.clear()
        leader.under_way = self._tasks.create_task(leader.renew())
        await asyncio.sleep(0)

    async def _answer(self, name: str) -> None:
        leader = self.leaders[name]
        leader.store.answers.set()
        assert leader.under_way is not None
        await leader.under_way

    async def _rob(self, _: str) -> None:
        self.shared.take("somebody who did not wait")

    async def _start_to_write(self, name: str, owner: str) -> None:
        leader = self.leaders[name]
        leader.store.requests.clear()

        async def write() -> None:
            ended.append(await self._ends(f"{name} writes r1 to {owner}"))

        ended = self._written
        ended.clear()
        leader.under_way = self._tasks.create_task(write())
        await asyncio.sleep(0)

    async def _end_writing(self, name: str) -> str:
        leader = self.leaders[name]
        leader.store.requests.set()
        assert leader.under_way is not None
        await leader.under_way
        return self._written[0]

    async def _recover(self, name: str) -> None:
        """Check the lease as `controller/recovery.py` does, directly before it begins."""
        leader = self.leaders[name].lead
        assert leader is not None
        leader.lease.check()

    # Gateways

    async def _tell(self, name: str, gateway: str) -> None:
        leader = self.leaders[name].lead
        assert leader is not None
        owner = self.shared.state.documents.get(OWNER, b"us").decode()
        await self.gateways[gateway].told(leader.store_writer.version, self._said(name, owner))

    def _said(self, name: str, owner: str) -> str:
        """Owner of r1 as this leader knows it: "us" if its lead has been lost."""
        leader = self.leaders[name].lead
        assert leader is not None
        if leader.store_writer.lost.is_set() or leader.store_writer.holding.key != self.shared.state.mark.key:
            return "us"
        return owner

    async def _register(self, name: str, gateway: str) -> None:
        leader = self.leaders[name].lead
        assert leader is not None
        await leader.store_writer.write({}, above=self.gateways[gateway].precedence.version.term)

    async def _hear(self, gateway: str, other: str) -> None:
        self.gateways[gateway].hear(self.gateways[other])

    # DNS records

    async def _publish(self, name: str) -> str:
        self.leaders[name].check_names(self.names)
        return self.leaders[name].write_names(self.names)

    async def _read_names(self, name: str) -> None:
        self.leaders[name].check_names(self.names)

    async def _write_names(self, name: str) -> str:
        return self.leaders[name].write_names(self.names)

    # The store

    async def _reach(self, how: str, name: str | None) -> None:
        for each in self.leaders.values():
            if name in (None, each.name):
                each.store.is_gone = how == "gone"

    async def _keep_silent(self) -> None:
        self.shared.is_silent = True

    async def _late(self, seconds: str) -> None:
        self.shared.late = lambda: self._go_on(float(seconds))

    async def _forget(self, everything: str | None) -> None:
        self._has_forgotten = True
        self.shared.forget(everything=everything is not None)


@asynccontextmanager
async def staged(case: SplitCase, folder: Path) -> AsyncIterator[Stage]:
    async with asyncio.TaskGroup() as tasks:
        stage = Stage(case, folder, tasks)
        try:
            yield stage
        finally:
            for each in stage.leaders.values():
                await each.give_back()
