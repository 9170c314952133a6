"""Settings played for BalanceRoute's page, by the section that shows them. It plays nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec.structs import replace

from gateway.core.features.disaggregated.config import BalanceConfig, DecodePolicyName
from loadgen.studies.balanceroute.loads import ASIDE, CHOOSING, TABLES
from loadgen.studies.balanceroute.world import BACKLOG, BalanceCell

_BOUNDLESS = 1_000_000
SEEDS = (1, 2, 3)
BATCH = 16
_QUICK_BATCH, _QUICK_REQUESTS = 4, 40


class Run(NamedTuple):
    """A row of a table."""

    title: str
    policy: DecodePolicyName
    predictor: str = ""


JSQ = Run("join shortest queue", DecodePolicyName.JOIN_SHORTEST_QUEUE)
BR_0 = Run("BR-0", DecodePolicyName.BR_0)
ORACLE = Run("BR-H, oracle", DecodePolicyName.BR_H, "oracle")
SURVIVAL = Run("BR-H, Survival", DecodePolicyName.BR_H, "survival")
EXACT = Run("BR-H, ExactMatch", DecodePolicyName.BR_H, "exact_match")
RUNS = (
    Run("random", DecodePolicyName.RANDOM),
    Run("round robin", DecodePolicyName.ROUND_ROBIN),
    Run("power of two", DecodePolicyName.POWER_OF_TWO),
    JSQ,
    Run("least KV tokens", DecodePolicyName.LEAST_KV_TOKENS),
    BR_0,
    ORACLE,
    SURVIVAL,
    EXACT,
)
BASELINES = RUNS[:5]


class Regime(NamedTuple):
    """Amount of load."""

    title: str
    offered: float
    room_margin: int | None = None
    """Margin of the pool's bound; None leaves the gateway's default."""
    batch: int = BATCH

    @property
    def brief(self) -> str:
        """The first of the title's words."""
        return self.title.split(":")[0].split(",")[0]


NEAR = Regime("near saturation: 0.9 of what perfectly balanced workers carry", 0.9)
STANDING = Regime("standing backlog, the pool bounded as the gateway bounds it", BACKLOG)
OVERLOAD = Regime("three times what fits, while it comes, in a pool that nothing bounds", 3.0, _BOUNDLESS)
LARGE = Regime("batches of 64, a standing backlog, the pool bounded as the gateway bounds it", BACKLOG, batch=64)
REGIMES = (NEAR, STANDING, LARGE, OVERLOAD)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One table: a load, its regime, the number of workers, and the policies played on it."""

    load: str
    regime: Regime
    workers: int
    runs: tuple[Run, ...] = RUNS
    quick: bool = False
    """True for a small comparison, for tests."""

    def of(self, run: Run) -> list[BalanceCell]:
        """Settings of a run, one for each seed."""
        setting = setting_of(self.load, run, self.regime, workers=self.workers, quick=self.quick)
        return seeded(setting) if self.workers == 8 and not self.quick else [setting]


def seeded(setting: BalanceCell, quick: bool = False) -> list[BalanceCell]:
    """Settings with one seed each. Loads are drawn anew for each seed; equal seeds give all policies the same
    requests."""
    return [setting, *(dataclasses.replace(setting, seed=seed, keep_steps=0) for seed in (() if quick else SEEDS[1:]))]


def setting_of(load: str, run: Run, regime: Regime = STANDING, *, workers: int = 8, quick: bool = False) -> BalanceCell:
    setting = BalanceCell(
        load,
        run.policy,
        run.predictor,
        workers=workers,
        batch=_QUICK_BATCH if quick else regime.batch,
        requests=_QUICK_REQUESTS if quick else max(1_500, 24 * workers),
        offered=regime.offered,
        keep_steps=KEPT if workers == 8 and run in SHOWN and regime == STANDING else 0,
        is_bounded=run == ORACLE,
    )
    return setting if regime.room_margin is None else dataclasses.replace(setting, room_margin=regime.room_margin)


KEPT = 600
SHOWN = (JSQ, BR_0, ORACLE, SURVIVAL)
"""Runs whose loads are plotted, as in the paper's Fig. 3."""
FEW = (JSQ, BR_0, ORACLE, SURVIVAL)
"""Runs for cells that take long to play."""
BEYOND = (32, 64, 144)


def comparisons(quick: bool = False) -> list[Comparison]:
    """Comparisons of Tables 1 and 2."""
    found = [Comparison(load, regime, 8, quick=quick) for load in TABLES for regime in REGIMES]
    found += [
        Comparison(load, regime, workers, quick=quick)
        for workers in (4, 16)
        for load in TABLES
        for regime in (NEAR, STANDING)
    ]
    found += [
        Comparison(load, regime, workers, FEW if quick else RUNS, quick)
        for regime in (STANDING, NEAR)
        for workers in BEYOND
        for load in TABLES[:2]
    ]
    return found


# The sweep


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter at its values, with all others at their defaults."""

    name: str
    values: tuple[str, ...]
    balances: tuple[BalanceConfig, ...]

    @property
    def places(self) -> list[tuple[str, BalanceConfig]]:
        return list(zip(self.values, self.balances, strict=True))


DEFAULT = BalanceConfig()


def axes() -> list[Axis]:
    return [
        Axis("H", *_each("horizon_steps", (8, 16, 24, 48, 96, 192))),
        Axis("γ", *_each("discount", (0.5, 0.7, 0.9, 0.97, 1.0))),
        Axis("β (8 workers)", *_each("penalty_weight", (1.5, 3.0, None, 16.0, 32.0))),
        Axis("C", *_each("window", (4, 8, 16, 32, 64))),
        Axis("stage 1 above", *_each("greedy_above_slots", (0, 4, None, 16, 64))),
    ]


def _each(key: str, values: tuple[Any, ...]) -> tuple[tuple[str, ...], tuple[BalanceConfig, ...]]:
    return tuple("G" if each is None else f"{each:g}" for each in values), tuple(_with(key, each) for each in values)


def _with(key: str, value: Any) -> BalanceConfig:
    changed: BalanceConfig = replace(DEFAULT, **{key: value})
    if changed.refresh_tokens >= changed.horizon_steps:
        return replace(changed, refresh_tokens=changed.horizon_steps // 2)
    return changed


SWEPT = (ORACLE, SURVIVAL)


def swept(load: str, run: Run, balance: BalanceConfig, quick: bool = False) -> list[BalanceCell]:
    return seeded(
        dataclasses.replace(setting_of(load, run, quick=quick), balance=balance, keep_steps=0, is_bounded=False), quick
    )


def sweep(quick: bool = False) -> Iterator[BalanceCell]:
    for load in CHOOSING:
        yield from swept(load, JSQ, DEFAULT, quick)
        yield from swept(load, BR_0, DEFAULT, quick)
        for axis in axes():
            for balance in axis.balances:
                for run in SWEPT:
                    yield from swept(load, run, balance, quick)


# Transfer


class Sending(NamedTuple):
    """Time at which a prompt's KV cache transfer starts."""

    title: str
    run: Run
    bypass: bool = False
    early: int = 0


SENDINGS = (
    Sending("BR-0 from the pool", BR_0),
    Sending("BR-0 past the pool", BR_0, bypass=True),
    Sending("BR-0 from the pool, two early", BR_0, early=2),
    Sending("BR-H, oracle", ORACLE),
    Sending("BR-H, oracle, two early", ORACLE, early=2),
    Sending("BR-H, Survival", SURVIVAL),
    Sending("BR-H, Survival, two early", SURVIVAL, early=2),
)
SPEEDS = (("400 Gbit/s", 6_500), ("50 Gbit/s", 52_000), ("10 Gbit/s", 260_000))
SENT = ("reasoning", "prompts")


def sending(load: str, each: Sending, token_ns: int, quick: bool = False) -> list[BalanceCell]:
    return seeded(
        dataclasses.replace(
            setting_of(load, each.run, quick=quick),
            bypass=each.bypass,
            early=each.early,
            transfer_token_ns=token_ns,
            keep_steps=0,
            is_bounded=False,
        ),
        quick,
    )


def sendings(quick: bool = False) -> Iterator[BalanceCell]:
    for load in SENT:
        for _, token_ns in SPEEDS:
            for each in SENDINGS:
                yield from sending(load, each, token_ns, quick)


# Other factors of the gain


class Matter(NamedTuple):
    title: str
    changes: dict[str, Any]


MATTERS = (
    Matter("as in the tables", {}),
    Matter("a lease of 30 s, as the gateway's default", {"lease_s": 30}),
    Matter("a step's fixed part four times as long", {"base_ns": 40_000_000}),
    Matter("batches of 64", {"batch": 64}),
    Matter("a pool of 256 more than there is room for", {"room_margin": 256}),
)


def mattering(load: str, run: Run, matter: Matter, quick: bool = False) -> list[BalanceCell]:
    setting = dataclasses.replace(setting_of(load, run, quick=quick), keep_steps=0, is_bounded=False)
    return seeded(dataclasses.replace(setting, **matter.changes), quick)


def matters(quick: bool = False) -> Iterator[BalanceCell]:
    for load in SENT:
        for matter in MATTERS:
            for run in FEW:
                yield from mattering(load, run, matter, quick)


# Held out


def aside(quick: bool = False) -> list[Comparison]:
    return [Comparison(load, regime, 8, quick=quick) for load in ASIDE for regime in (NEAR, STANDING)]


def settings(loads: Collection[str], *, quick: bool = False, look: bool = False) -> list[BalanceCell]:
    tables = [*comparisons(quick), *(aside(quick) if look else ())]
    found = [setting for each in tables for run in each.runs for setting in each.of(run)]
    found += [*sweep(quick), *sendings(quick), *matters(quick)]
    return [setting for setting in found if setting.load in loads]
