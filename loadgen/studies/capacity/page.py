"""Page of what a gateway carries: what was measured, the sizing rule beside loads that were not used to make it, and
large meshes by that rule. It judges by the rule's error alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.core.placement.index_sizes import NODE_BYTES
from loadgen.bench.relay import published
from loadgen.bench.relay.figures import RelayFigure
from loadgen.bench.relay.main import ENGINES
from loadgen.bench.relay.relays import FORWARD, NIGHTSIDE, SIBLINGS
from loadgen.pages.markdown import NOTHING
from loadgen.studies.capacity import measuring, rule
from loadgen.studies.capacity.extrapolation import (
    ANSWER_TOKENS,
    PROMPT_KB,
    LargeRun,
    SizedMesh,
    regions_of,
    replicas_of_one,
    sized,
)
from loadgen.studies.capacity.measuring import CapacityMeasured
from loadgen.studies.capacity.rule import CapacityCosts, CarriedLoad, mesh_max, needed
from loadgen.studies.rendering import render, signed

ERROR_MAX = 0.25
"""Largest error of the sizing rule, as a share of what was measured."""


@dataclass(frozen=True, slots=True)
class HeldMix:
    """A load that was not used to make the rule: cores that it takes by the rule, and as measured."""

    what: str
    by_rule: float
    measured: float

    @property
    def error(self) -> float:
        return self.by_rule / self.measured - 1


def page_of(found: CapacityMeasured, run: LargeRun, machine: Mapping[str, object], command: str) -> str:
    mixes = [*mixes_of(found)]
    figures = {
        (relay.name, figure): found.figures.get((relay.name, figure))
        for relay in (NIGHTSIDE, FORWARD, SIBLINGS)
        for figure in RelayFigure
    }
    return render(
        "capacity/page.j2", found=found, costs=found.costs, machine=machine, command=command, figures=figures,
        figure=RelayFigure, one=NIGHTSIDE.name, forward=FORWARD.name, two=SIBLINGS.name, measuring=measuring, rule=rule,
        mixes=mixes, judged=[*_judged(mixes)], run=run, tokens=ANSWER_TOKENS, prompt_kb=PROMPT_KB,
        loads=[("as simulated", run), ("all slots busy", run.full)], sized=lambda load: _rows(sized(found.costs, load)),
        breaks=[*_breaks(found.costs, run)], per_core=_per_core(found.costs), signed=signed,
        node_bytes=NODE_BYTES,
    )  # fmt: skip


def mixes_of(found: CapacityMeasured) -> Iterator[HeldMix]:
    """Loads of llm-d's that the relay bench plays, at one gateway and through two."""
    costs, replicas = found.costs, ENGINES
    for relay, of in ((NIGHTSIDE, "one gateway"), (FORWARD, "forwarded")):
        for figure, job in published.JOBS.items():
            measured = found.figures.get((relay.name, figure))
            if measured is None:
                continue
            rate, kb = job.published_per_s, job.prompt_tokens * published.BYTES_PER_TOKEN / 1000
            chunks = rate * job.answer_tokens
            load = CarriedLoad(requests_per_s=rate, prompt_kb=kb, chunks_per_s=chunks)
            if relay is FORWARD:
                load = CarriedLoad(forwards_per_s=rate, prompt_kb=kb, forwarded_chunks_per_s=chunks)
            idle = needed(costs, CarriedLoad(replicas=replicas)).all_cores
            if relay is FORWARD:
                idle += needed(costs, CarriedLoad(peers=2)).all_cores
            took_s = job.count / job.arrivals_per_s + job.answer_tokens * job.pace_s
            asked = needed(costs, load).all_cores - costs.base_us / 1e6
            words = f"{of}: {rate:g} requests/s of {job.prompt_tokens:,} and {job.answer_tokens:,} tokens"
            yield HeldMix(words, asked + idle * took_s * rate / job.count, measured)


def _judged(mixes: Sequence[HeldMix]) -> Iterator[str]:
    for each in mixes:
        word = "**met**" if abs(each.error) <= ERROR_MAX else "**not met**"
        yield f"{word}: the rule is at most {ERROR_MAX:.0%} off: {each.what} ({signed(each.error)})"
    if len(mixes) < 2:
        yield f"**not met**: two loads were measured beside the rule ({len(mixes)})"


def _per_core(costs: CapacityCosts) -> list[tuple[str, str]]:
    """Most of one thing alone on a core that is as busy as it may be."""
    spare_us = 1e6 * rule.BUSY_MAX - costs.base_us
    streamed = costs.request_us + 300 * costs.chunk_us
    return [
        ("requests a second, not streamed", f"{spare_us / costs.request_us:,.0f}"),
        ("streams of 30 chunks a second", f"{spare_us / (30 * costs.chunk_us):,.0f}"),
        ("requests a second with answers of 300 chunks", f"{spare_us / streamed:,.0f}"),
        ("forwards a second, not streamed (both gateways on it)", f"{spare_us / costs.forward_us:,.0f}"),
        ("replicas", f"{spare_us / costs.replica_us:,.0f}" if costs.replica_us > 0 else NOTHING),
        ("peers whose load changes all the time", f"{spare_us / costs.busy_peer_us:,.0f}"),
    ]


def _rows(meshes: Sequence[SizedMesh]) -> list[tuple[str, ...]]:
    return [
        (
            f"{each.regions} × {each.replicas:,}",
            f"{each.alone.all_cores:,.1f}",
            each.first,
            f"{each.alone.memory_mib:,.0f}",
            f"{each.alone.descriptors:,.0f}",
            f"{each.alone.bytes_per_s / 1e3:,.0f}",
            "none is enough" if each.gateways is None else f"{each.gateways:,}",
            NOTHING if each.each is None else f"{each.each.cores['peers']:.2f}",
            NOTHING if each.each is None else f"{each.each.bytes_per_s / 1e3:,.0f}",
        )
        for each in meshes
    ]


def _breaks(costs: CapacityCosts, run: LargeRun) -> Iterator[str]:
    """Limits that are met first as regions become larger, and as there are more of them."""
    busy, rest = (mesh_max(costs, is_busy=is_busy) for is_busy in (True, False))
    yield (
        "**Peers.** Every gateway hears all others. Heartbeats alone take"
        f" {rule.BUSY_MAX:.0%} of a core of each in a mesh of {busy:,} gateways whose load changes all the time,"
        f" and of {rest:,} at rest."
    )
    for words, load in (("the simulated load", run), ("all slots busy", run.full)):
        most = replicas_of_one(costs, load, 3)
        (mesh,) = sized(costs, load, [(3, max(1, most))])
        regions = regions_of(costs, load, 1_000)
        yield (
            f"With {words} and 3 regions, one gateway carries a region of {most:,} replicas; {mesh.first} take most"
            " of its core. With 1,000 replicas in each region,"
            f" {f'more gateways are enough for {regions:,} regions' if regions else 'no number of gateways is enough'}:"
            " each is one more peer of all others."
        )
