"""Runs the demo's failover: kills a gateway, restarts it, and compares the clients' failures with the mesh's actions.

Every failed request is reported with its cause. It must never call one explained that is not.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import aiohttp
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from gateway.core.vocabulary import GatewayId, RegionName
from loadgen.demo.mesh import Mesh
from loadgen.demo.report import RunResult
from loadgen.demo.watch import TTL_S, Cause, Death, ReplicasReturned, Sightings, Watch
from loadgen.pages.markdown import NOTHING
from loadgen.vocabulary import RequestEnd
from mesh.clock import Clock

_SECOND_NS = 1_000_000_000
_MILLISECOND_NS = 1_000_000
SEEN_WITHIN_S = 30.0
HOME_WITHIN_S = 40.0


@dataclass(frozen=True, slots=True)
class DemoFailover:
    """Death and return of a gateway, in nanoseconds since the start of the client's run."""

    gateway: GatewayId
    death: Death
    seen: Sightings
    restarted_ns: int
    home: ReplicasReturned


async def kill_and_return(
    mesh: Mesh, region: RegionName, clock: Clock, *, kill_s: float, return_s: float
) -> DemoFailover:
    """Kill the region's first gateway after `kill_s` and restart it after `return_s`, or once the effects of its death
    have been observed, if that is later."""
    began_ns = clock.now_ns()
    member = mesh.first_of(region)
    async with aiohttp.ClientSession() as session:
        watch = Watch(mesh, session, clock)
        await asyncio.sleep(kill_s)
        lost = await watch.replicas_of([member])
        killed_ns = clock.now_ns()
        await member.child.kill()
        dead_ns = clock.now_ns()
        seen = await watch.death(lost, SEEN_WITHIN_S)
        await asyncio.sleep(max(0.0, return_s - (clock.now_ns() - began_ns) / _SECOND_NS))
        restarted_ns = clock.now_ns()
        await member.start()
        home = await watch.homecoming(member, lost[member.gateway_id], HOME_WITHIN_S)
    death = Death(frozenset({member.host}), killed_ns, dead_ns, seen.renamed_ns)
    return _shifted(DemoFailover(member.gateway_id, death, seen, restarted_ns, home), began_ns)


def _shifted(failover: DemoFailover, began_ns: int) -> DemoFailover:
    """Failover with its times counted from `began_ns`."""

    def since(moment_ns: int | None) -> int | None:
        return None if moment_ns is None else moment_ns - began_ns

    death, seen, home = failover.death, failover.seen, failover.home
    return DemoFailover(
        failover.gateway,
        Death(death.hosts, death.killed_ns - began_ns, death.dead_ns - began_ns, since(death.renamed_ns)),
        Sightings(since(seen.unforwarded_ns), since(seen.reassigned_ns), since(seen.renamed_ns)),
        failover.restarted_ns - began_ns,
        ReplicasReturned(since(home.home_ns), since(home.renamed_ns)),
    )


@dataclass(frozen=True, slots=True)
class FailoverReport:
    run: RunResult
    failover: DemoFailover | None
    """Absent (None) if the run ended before the failover did."""

    def failures(self, region: RegionName | None = None) -> Counter[Cause]:
        """Failed requests by cause, of one region's clients or of all."""
        return Counter(cause for client, cause, _ in self._failed() if region in (None, client))

    def problems(self) -> Iterator[str]:
        name, failover = self.run.name, self.failover
        for detail, count in Counter(detail for _, cause, detail in self._failed() if cause is Cause.OTHER).items():
            yield f"{name}: {count} × {detail}, which no death explains"
        if failover is None:
            if not self.run.is_partial:
                yield f"{name}: no gateway was killed"
            return
        for word, seen in self.moments():
            if seen is None:
                yield f"{name}: it was not seen that {word}"

    def moments(self) -> list[tuple[str, int | None]]:
        """Observed events, and their nanoseconds since the kill or since the gateway's restart; None for one not
        observed."""
        if self.failover is None:
            return []
        failover, seen, home = self.failover, self.failover.seen, self.failover.home
        since_kill, since_return = _since(failover.death.killed_ns), _since(failover.restarted_ns)
        return [
            ("no other gateway forwards to it", since_kill(seen.unforwarded_ns)),
            ("its replicas are served by others", since_kill(seen.reassigned_ns)),
            ("the name leads elsewhere", since_kill(seen.renamed_ns)),
            ("its replicas are home", since_return(home.home_ns)),
            ("the name leads to it", since_return(home.renamed_ns)),
        ]

    def _failed(self) -> Iterator[tuple[RegionName, Cause, str]]:
        for each in self.run.records:
            if each.end is RequestEnd.FAILED:
                left_ns = each.sent_ns + each.lag_ns
                cause = Cause.OTHER
                if self.failover is not None:
                    cause = self.failover.death.cause_of(left_ns, each.ended_ns, each.detail)
                yield each.client_region, cause, each.detail


def _since(began_ns: int) -> Callable[[int | None], int | None]:
    return lambda moment_ns: None if moment_ns is None else moment_ns - began_ns


def seen_by_clients(report: FailoverReport) -> RenderableType:
    """Table with one row per region of clients."""
    run = report.run
    table = Table(title="what clients saw", title_style="bold", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("clients in", no_wrap=True)
    for word in ("requests", "answered", "in flight there", "by an old answer", "unexplained", "unfinished"):
        table.add_column(word, justify="right")
    for region in (*run.regions, None):
        records = [each for each in run.records if region in (None, each.client_region)]
        ends = Counter(each.end for each in records)
        failures = report.failures(region)
        figures = [len(records), ends[RequestEnd.COMPLETED], *(failures[cause] for cause in Cause)]
        table.add_row(region or "all", *map(str, (*figures, ends[RequestEnd.UNFINISHED])))
    return table


def why_lost(report: FailoverReport) -> Iterator[str]:
    """One sentence for each region that lost requests, with the number of requests per cause, and one on what prevents
    the loss of those under way."""
    for region in report.run.regions:
        causes = report.failures(region)
        lost = causes[Cause.IN_FLIGHT] + causes[Cause.CACHED]
        if not lost:
            continue
        sent = sum(region == each.client_region for each in report.run.records)
        reasons = []
        if causes[Cause.IN_FLIGHT]:
            reasons.append(
                f"{causes[Cause.IN_FLIGHT]} were under way at the gateway that was killed, and ended with it"
            )
        if causes[Cause.CACHED]:
            kept = f"clients keep one for {TTL_S} s, and these try no other address"
            reasons.append(f"{causes[Cause.CACHED]} went to its address by an old answer of the name: {kept}")
        yield f"Of {sent} requests from {region} {lost} were lost: {'; '.join(reasons)}."
    if report.failures(None)[Cause.IN_FLIGHT]:
        yield (
            "A stream goes on elsewhere when its engine or region fails, but ends with the gateway that its client is "
            "connected to; a gateway in front of the region's others prevents that (docs/how_to/front.md)."
        )


def seen_by_the_mesh(report: FailoverReport) -> RenderableType:
    failover = report.failover
    assert failover is not None, "a gateway was killed"
    title = f"{failover.gateway}: kill -9 after {failover.death.killed_ns / _SECOND_NS:.1f} s of load"
    table = Table(title=title, title_style="bold", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("seen")
    table.add_column("after", justify="right")
    for number, (word, seen_ns) in enumerate(report.moments()):
        since = "the kill" if number < 3 else "its return"
        table.add_row(word, NOTHING if seen_ns is None else f"{since} + {seen_ns / _SECOND_NS:.2f} s")
    return table


def failover_document(report: FailoverReport) -> dict[str, object]:
    failover = report.failover
    ends = Counter(each.end for each in report.run.records)
    return {
        "gateway": None if failover is None else failover.gateway,
        "killed_ms": None if failover is None else round(failover.death.killed_ns / _MILLISECOND_NS),
        "requests": len(report.run.records),
        "answered": ends[RequestEnd.COMPLETED],
        "unfinished": ends[RequestEnd.UNFINISHED],
        "failures": {str(cause): report.failures()[cause] for cause in Cause},
        "seen": {word: None if seen is None else round(seen / _MILLISECOND_NS) for word, seen in report.moments()},
    }
