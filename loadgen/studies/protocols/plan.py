"""Plan of the study: the cells that are played, fixed before the first of them is. It plays nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec import to_builtins

from gateway.core.features.disaggregated.config import BalanceConfig, DecodePolicyName
from loadgen.figures import Figures
from loadgen.studies.balanceroute import world
from loadgen.studies.balanceroute.loads import LOADS
from loadgen.studies.balanceroute.world import BACKLOG, BalanceCell, PlayProtocol
from loadgen.studies.cells import Cell
from loadgen.studies.recordings import find_file

SEEDS = (71_201, 71_202, 71_203, 71_204, 71_205, 71_206, 71_207, 71_208, 71_209, 71_210)
"""Seeds of the one run; none was used before."""
LONG_SEEDS = (71_301, 71_302, 71_303, 71_304, 71_305, 71_306, 71_307, 71_308, 71_309, 71_310)
"""Seeds of the longer runs, which were planned after two seeds of the others had been seen."""
FULL_SEEDS = (71_401, 71_402, 71_403)
"""Seeds of the runs with full caches, which were planned last."""
THROW_AWAY = 990_001
"""Seed of trials: tests, and the estimate of the study's duration."""
WORKERS = 8
BATCHES = (16, 32, 64)
LIMITED = 0.75
"""Share of a batch that a limited KV cache has room for."""
ROOMS = (0.0, LIMITED)
"""Shares of a batch that a KV cache has room for; 0: unlimited."""
_UNBOUNDED = 1_000_000
_QUICK_REQUESTS = 60
_USUAL = BalanceConfig()


class ScaledLoad(NamedTuple):
    """A load, and the durations of steps that the paper's rows on the trace of that kind imply."""

    name: str
    brief: str
    base_ns: int
    kv_token_ns: int

    @property
    def title(self) -> str:
        return LOADS[self.name].title


MOONCAKE = ScaledLoad("mooncake", "Mooncake", 72_000_000, 27)
REASONING = ScaledLoad("reasoning", "reasoning", 72_000_000, 27)
AZURE = ScaledLoad("azure2024", "Azure 2024", 72_000_000, 173)
SCALED = (MOONCAKE, REASONING, AZURE)
_READING = 10_000_000, 250
"""Durations of steps that mostly read KV caches: those of the page of BalanceRoute's tables."""


class Procedure(NamedTuple):
    """Way of playing a load."""

    name: str
    title: str
    offered: float
    is_replay: bool = False
    has_papers_steps: bool = True
    room_margin: int = 32
    rooms: tuple[float, ...] = (0.0,)
    """Shares of a batch that KV caches have room for."""

    @property
    def has_at_once(self) -> bool:
        """Requests can be sent at once where they arrive one by one; a standing backlog has no arrivals."""
        return self.offered != BACKLOG


REPLAY = Procedure("replay", "finite replay, the paper's step durations", 1.5, is_replay=True, room_margin=_UNBOUNDED,
                   rooms=ROOMS)  # fmt: skip
STEADY = Procedure("steady", "steady state, the paper's step durations", 0.9)
READING_REPLAY = Procedure("reading-replay", "finite replay, steps that mostly read KV caches", 1.5, is_replay=True,
                           has_papers_steps=False, room_margin=_UNBOUNDED)  # fmt: skip
READING_BACKLOG = Procedure("reading-backlog", "standing backlog, steps that mostly read KV caches", BACKLOG,
                            has_papers_steps=False, rooms=ROOMS)  # fmt: skip
PROCEDURES = (REPLAY, STEADY, READING_REPLAY, READING_BACKLOG)


class Contender(NamedTuple):
    """A decode policy, and whether it is sent requests at once or from the pool."""

    title: str
    policy: DecodePolicyName
    predictor: str = ""
    at_once: bool = False


AT_ONCE = (
    Contender("random, at once", DecodePolicyName.RANDOM, at_once=True),
    Contender("round robin, at once", DecodePolicyName.ROUND_ROBIN, at_once=True),
    Contender("power of two, at once", DecodePolicyName.POWER_OF_TWO, at_once=True),
    Contender("JSQ, at once", DecodePolicyName.JOIN_SHORTEST_QUEUE, at_once=True),
)
POOLED = (
    Contender("JSQ, pooled", DecodePolicyName.JOIN_SHORTEST_QUEUE),
    Contender("least KV tokens, pooled", DecodePolicyName.LEAST_KV_TOKENS),
)
JSQ_AT_ONCE, JSQ_POOLED = AT_ONCE[-1], POOLED[0]
BR_0 = Contender("BR-0", DecodePolicyName.BR_0)
ORACLE = Contender("BR-H, oracle", DecodePolicyName.BR_H, "oracle")
SURVIVAL = Contender("BR-H, Survival", DecodePolicyName.BR_H, "survival")
EXACT = Contender("BR-H, ExactMatch", DecodePolicyName.BR_H, "exact_match")
OURS = (ORACLE, EXACT, SURVIVAL, BR_0)
LONG_OURS = (ORACLE, EXACT, BR_0)


@dataclass(frozen=True, slots=True)
class ProtocolCell:
    """Load, batch, procedure, cache, policy and seed: all inputs of a run but the code and the load's files."""

    setting: BalanceCell
    protocol: PlayProtocol


@dataclass(frozen=True, slots=True)
class Case:
    """Conditions that contenders are compared under."""

    load: ScaledLoad
    procedure: Procedure
    batch: int
    room_share: float
    times: int = 1
    """Number of requests, as a multiple of those of the comparison."""

    @property
    def contenders(self) -> tuple[Contender, ...]:
        if self.times > 1:
            return (*((JSQ_AT_ONCE,) if self.procedure.has_at_once else ()), JSQ_POOLED, *LONG_OURS)
        return (*(AT_ONCE if self.procedure.has_at_once else ()), *POOLED, *OURS)

    def cell(self, contender: Contender, seed: int, balance: BalanceConfig = _USUAL) -> ProtocolCell:
        load = self.load
        step_ns = (load.base_ns, load.kv_token_ns) if self.procedure.has_papers_steps else _READING
        setting = BalanceCell(
            load.name,
            contender.policy,
            contender.predictor,
            workers=WORKERS,
            batch=self.batch,
            requests=self.times * max(320, (14 if self.procedure.is_replay else 8) * self.batch),
            offered=self.procedure.offered,
            seed=seed,
            base_ns=step_ns[0],
            kv_token_ns=step_ns[1],
            balance=balance,
            room_margin=self.procedure.room_margin,
        )
        return ProtocolCell(setting, PlayProtocol(self.procedure.is_replay, contender.at_once, self.room_share))


def cases() -> list[Case]:
    return [
        Case(load, procedure, batch, room)
        for load in SCALED
        for procedure in PROCEDURES
        for batch in BATCHES
        for room in procedure.rooms
    ]


LONG_CASES = tuple(
    Case(load, procedure, 32, 0.0, times=5)
    for load in (MOONCAKE, AZURE)
    for procedure in (REPLAY, READING_REPLAY, READING_BACKLOG)
)

FULL_CASES = tuple(Case(load, READING_BACKLOG, 16, LIMITED, times=10) for load in (MOONCAKE, AZURE))
"""Standing backlogs with limited caches, long enough that it matters little which requests are sent first."""

# The cross of horizon and discount, as in the paper's Table 6

CROSSED = (ORACLE,)
CROSS_CASES = (Case(MOONCAKE, READING_BACKLOG, 64, 0.0), Case(REASONING, READING_BACKLOG, 64, 0.0))
CROSS = ((2, 0.9), (24, 0.9), (48, 0.9), (96, 0.9), (192, 0.9), (48, 0.5), (48, 0.7), (48, 1.0), (192, 1.0))
"""Horizons and discounts. The paper's shortest horizon is 1; a prediction is renewed within its horizon, so that the
shortest one here is 2."""


def balance_at(horizon_steps: int, discount: float) -> BalanceConfig:
    refresh_tokens = min(_USUAL.refresh_tokens, horizon_steps // 2)
    return BalanceConfig(horizon_steps=horizon_steps, discount=discount, refresh_tokens=refresh_tokens)


def cells_of(seed: int) -> Iterator[ProtocolCell]:
    """Every cell with this seed; some of the cross are cells of the comparison as well."""
    for case in cases():
        for contender in case.contenders:
            yield case.cell(contender, seed)
    for case in CROSS_CASES:
        for contender in CROSSED:
            for horizon_steps, discount in CROSS:
                yield case.cell(contender, seed, balance_at(horizon_steps, discount))


def all_cells(seeds: Sequence[int], *, quick: bool = False) -> list[ProtocolCell]:
    """Cells of the study, each once, seed by seed, so that a run that is stopped has whole seeds. `quick`: with a few
    requests each."""
    found = dict.fromkeys(cell for seed in seeds for cell in cells_of(seed))
    return [shortened(each) for each in found] if quick else list(found)


def long_cells(seeds: Sequence[int], cases_: Sequence[Case] = LONG_CASES, *, quick: bool = False) -> list[ProtocolCell]:
    """Cells of longer runs, seed by seed."""
    found = [case.cell(each, seed) for seed in seeds for case in cases_ for each in case.contenders]
    return [shortened(each) for each in found] if quick else found


def shortened(cell: ProtocolCell) -> ProtocolCell:
    return ProtocolCell(replace(cell.setting, requests=_QUICK_REQUESTS), cell.protocol)


def job_of(cell: ProtocolCell, traces: Path | None) -> Cell:
    """Cell for the engine. Raises TraceError for a file that is missing."""
    files = tuple(find_file(traces, pattern) for pattern in LOADS[cell.setting.load].patterns)
    return Cell(cell, f"{cell}", partial(play, cell, traces), to_builtins(cell), files)


def play(cell: ProtocolCell, traces: Path | None) -> Figures:
    """Figures of the cell. Raises TraceError."""
    return world.play(cell.setting, traces, cell.protocol)
