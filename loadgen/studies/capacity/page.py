"""Page of what a gateway carries: what was measured, the sizing rule beside loads that were not used to make it, and
large meshes by that rule. It judges by the rule's error alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.core.placement.index_sizes import NODE_BYTES
from loadgen.bench.relay import published
from loadgen.bench.relay.figures import RelayFigure
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
_USUAL = f"with heartbeats every {measuring.INTERVAL}"
_SIMULATED = f"with heartbeats every {measuring.SIMULATED_INTERVAL} as simulated"
OTHERS_MAX = 0.15
"""Largest share of the machine's CPU that other processes may use meanwhile."""


@dataclass(frozen=True, slots=True)
class HeldMix:
    """A load that was not used to make the rule: cores that it takes by the rule, and as measured over `took_s`."""

    what: str
    took_s: float
    by_rule: float
    measured: float

    @property
    def error(self) -> float:
        return self.by_rule / self.measured - 1


def page_of(
    found: CapacityMeasured, run: LargeRun, machine: Mapping[str, object], command: str, others_share: float
) -> str:
    """The page. `others_share`: share of the machine's CPU that other processes used meanwhile."""
    mixes = [*mixes_of(found)]
    figures = {
        (relay.name, figure): found.figures.get((relay.name, figure))
        for relay in (NIGHTSIDE, FORWARD, SIBLINGS)
        for figure in RelayFigure
    }
    return render(
        "capacity/page.j2", found=found, costs=found.costs, slow=found.simulated_costs, machine=machine,
        command=command, figures=figures,
        figure=RelayFigure, one=NIGHTSIDE.name, forward=FORWARD.name, two=SIBLINGS.name, measuring=measuring, rule=rule,
        mixes=mixes, judged=[*_judged(mixes, others_share)], run=run, tokens=ANSWER_TOKENS, prompt_kb=PROMPT_KB,
        loads=[("The load as simulated", run), ("The same with all slots busy", run.full)],
        sized=lambda load: _rows(found, load),
        breaks=[*_breaks(found, run)], per_core=_per_core(found.costs), signed=signed,
        node_bytes=NODE_BYTES,
    )  # fmt: skip


def mixes_of(found: CapacityMeasured) -> Iterator[HeldMix]:
    """Loads of llm-d's that the relay bench plays, at one gateway and through two, beyond what gateways take at rest;
    and the mesh of three with all that it takes."""
    for relay, of in ((NIGHTSIDE, "one gateway"), (FORWARD, "forwarded")):
        for figure, job in published.JOBS.items():
            reading = found.figures.get((relay.name, figure))
            took_s = found.figures.get((relay.name, published.ELAPSED[figure]))
            if reading is None or took_s is None:
                continue
            rate, kb = job.published_per_s, job.prompt_tokens * published.BYTES_PER_TOKEN / 1000
            chunks, streams = rate * job.answer_tokens, rate * job.answer_tokens * job.pace_s
            load = CarriedLoad(requests_per_s=rate, prompt_kb=kb, chunks_per_s=chunks, streams=streams)
            if relay is FORWARD:
                load = CarriedLoad(
                    forwards_per_s=rate, prompt_kb=kb, forwarded_chunks_per_s=chunks, streams=2 * streams
                )
            by_rule = needed(found.costs, load).all_cores - found.costs.base_us / 1e6
            idle = found.idle_us[relay.name] / 1e6 * took_s * rate / job.count
            words = f"{of}: {rate:g} requests/s of {job.prompt_tokens:,} and {job.answer_tokens:,} tokens"
            yield HeldMix(words, took_s, by_rule, reading - idle)
    yield _mix_of_the_mesh(found)


def _mix_of_the_mesh(found: CapacityMeasured) -> HeldMix:
    mesh, gateways = found.mesh, measuring.MESH
    rate, away = mesh.requests_per_s / gateways, mesh.forwarded_share
    load = CarriedLoad(
        requests_per_s=rate * (1 - away), forwards_per_s=rate * away, replicas=measuring.FEW, peers=gateways - 1
    )
    words = f"a mesh of {gateways} with all that it takes: {mesh.requests_per_s:,.0f} requests/s, not streamed"
    return HeldMix(words, mesh.took_s, gateways * needed(found.costs, load).all_cores, mesh.cores)


def _judged(mixes: Sequence[HeldMix], others_share: float) -> Iterator[str]:
    for each in mixes:
        yield (
            f"{_word(is_met=abs(each.error) <= ERROR_MAX)}: the rule is at most {ERROR_MAX:.0%} off:"
            f" {each.what} ({signed(each.error)})"
        )
    if len(mixes) < 3:
        yield f"**not met**: three loads were measured beside the rule ({len(mixes)})"
    yield (
        f"{_word(is_met=others_share <= OTHERS_MAX)}: other processes used at most {OTHERS_MAX:.0%} of the machine's"
        f" CPU meanwhile ({others_share:.0%}); figures of a machine that is busy with others are too high"
    )


def _word(*, is_met: bool) -> str:
    return "**met**" if is_met else "**not met**"


def _per_core(costs: CapacityCosts) -> list[tuple[str, str]]:
    """Most of one thing alone on a core that is as busy as it may be."""
    spare_us = 1e6 * rule.BUSY_MAX - costs.base_us
    peers = f"{max(0.0, spare_us - costs.peering_us) / costs.busy_peer_us:,.0f}" if costs.busy_peer_us else NOTHING
    streamed = costs.request_us + 300 * costs.chunk_us
    return [
        ("requests a second, not streamed", f"{spare_us / costs.request_us:,.0f}"),
        ("streams of 30 chunks a second", f"{spare_us / (30 * costs.chunk_us):,.0f}"),
        ("requests a second with answers of 300 chunks", f"{spare_us / streamed:,.0f}"),
        ("forwards a second, not streamed (both gateways on it)", f"{spare_us / costs.forward_us:,.0f}"),
        ("replicas", f"{spare_us / costs.replica_us:,.0f}" if costs.replica_us > 0 else NOTHING),
        (f"peers whose load changes all the time, {_USUAL}", peers),
    ]


def _rows(found: CapacityMeasured, run: LargeRun) -> list[tuple[str, ...]]:
    """Rows of large meshes: those of the default heartbeats, and how many gateways the simulator's need."""
    simulated = sized(found.simulated_costs, run)
    return [
        (
            f"{each.regions} × {each.replicas:,}",
            f"{each.alone.all_cores:,.1f}",
            each.first,
            f"{each.alone.memory_mib:,.0f}",
            f"{each.alone.descriptors:,.0f}",
            f"{each.alone.bytes_per_s / 1e3:,.0f}",
            _number(each),
            NOTHING if each.each is None else f"{each.each.cores['peers']:.2f}",
            NOTHING if each.each is None else f"{each.each.bytes_per_s / 1e3:,.0f}",
            _number(slow),
        )
        for each, slow in zip(sized(found.costs, run), simulated, strict=True)
    ]


def _number(mesh: SizedMesh) -> str:
    return "none is enough" if mesh.gateways is None else f"{mesh.gateways:,}"


def _breaks(found: CapacityMeasured, run: LargeRun) -> Iterator[str]:
    """Limits that are met first as regions become larger, and as there are more of them."""
    for words, costs in ((_USUAL, found.costs), (_SIMULATED, found.simulated_costs)):
        busy, rest = (mesh_max(costs, is_busy=is_busy) for is_busy in (True, False))
        yield (
            f"**Peers**, {words}. Every gateway hears all others. Heartbeats alone take {rule.BUSY_MAX:.0%} of a core"
            f" of each in a mesh of {busy:,} gateways whose load changes all the time, and of {rest:,} at rest."
        )
    for load_words, load in (("the simulated load", run), ("all slots busy", run.full)):
        for words, costs in ((_USUAL, found.costs), (_SIMULATED, found.simulated_costs)):
            yield _break(load_words, load, words, costs)


def _break(load_words: str, load: LargeRun, words: str, costs: CapacityCosts) -> str:
    most = replicas_of_one(costs, load, 3)
    (mesh,) = sized(costs, load, [(3, max(1, most))])
    regions = regions_of(costs, load, 1_000)
    enough = (
        f"more gateways of each are enough up to this number of regions: {regions:,}"
        if regions
        else "no number of gateways is enough"
    )
    return (
        f"With {load_words} and 3 regions, {words}, one gateway carries a region of {most:,} replicas;"
        f" {mesh.first} take most of its core. With 1,000 replicas in each region, {enough}, as each is one more"
        " peer of all others."
    )
