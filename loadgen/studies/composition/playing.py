"""Plays every case `rounds` times, and assembles the page. It judges nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from loadgen.bench.relay.machine import describe_machine
from loadgen.demo.processes import DemoFailure
from loadgen.demo.region_files import has_addresses_of_its_own
from loadgen.interrupts import leaves
from loadgen.studies.commands import Machine
from loadgen.studies.composition.cases import CASES, CompositionOutcome, NotPlayed, PolicyCase, play
from loadgen.studies.composition.page import figures_of, page_of
from mesh.clock import Clock

STAGE_S = 12.0
_SECOND_NS = 1_000_000_000


def play_composition(rounds: int, tell: Callable[[str], None]) -> str:
    """Play all cases; returns the page. Raises DemoFailure where a case could not be played."""
    if not has_addresses_of_its_own():
        raise DemoFailure("this system has no 127.x.y.z addresses besides 127.0.0.1, so one name cannot lead to two")
    clock, machine = Clock(), Machine()
    outcomes: list[CompositionOutcome] = []
    for number in range(rounds):
        for case in CASES:
            began_ns = clock.now_ns()
            outcomes.append(_outcome(case))
            took_s = (clock.now_ns() - began_ns) / _SECOND_NS
            tell(f"round {number + 1} of {rounds}: {case.name}: {took_s:.0f} s, {len(outcomes[-1].streams)} streams")
    return page_of(list(map(figures_of, outcomes)), {**describe_machine(), "busy": machine.busy_share()})


def _outcome(case: PolicyCase) -> CompositionOutcome:
    try:
        return asyncio.run(play(case, STAGE_S))
    except* (DemoFailure, NotPlayed) as failures:
        reasons = [str(each) for each in leaves(failures)]
    raise DemoFailure("\n".join([f"{case.name} could not be played:", *reasons]))
