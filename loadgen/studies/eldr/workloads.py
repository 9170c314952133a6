"""Workloads for ELDR: mixes of requests, a calibration and a test half of each, the engine costs of that model, and the
fits to the calibration. Made once for all cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gateway.core.features.expert_locality.artifact import EldrArtifact
from gateway.core.features.expert_locality.signature import Comparer
from gateway.features.expert_locality.fit.eldr import EldrFit, EldrRules, EldrScores, fit_eldr, score_eldr
from gateway.features.expert_locality.fit.expert_placement import place_by_cluster
from loadgen.studies.eldr.generator import QWEN3_30B, Generator, ModelShape, Spread
from loadgen.studies.eldr.paper import intercept_in_experts
from loadgen.studies.eldr.recorded import PATTERN, read_recorded
from loadgen.studies.eldr.requests import Requests, split
from loadgen.studies.eldr.spreads import AS_PUBLISHED, AS_RECORDED, LANGUAGES, TASKS
from loadgen.studies.eldr.world import Drawn, EngineCosts, compared, drawn_from
from loadgen.studies.recordings import find_file, first_file

_SEED = 21
_BANDWIDTH = 5.3e12
"""Memory bandwidth of an MI300X in bytes per second, by its data sheet."""
_EXPERT_BYTES = {"qwen": 3 * 2048 * 768 * 2, "deepseek": 3 * 2048 * 1408 * 2}
_KV_BYTES = {"qwen": 48 * 2 * 4 * 128 * 2, "deepseek": 27 * (512 + 64) * 2}
"""KV cache bytes per token: keys and values of 4 heads in 48 layers; a latent vector and a rotary key in 27."""

OnProgress = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amounts that are drawn and played."""

    calibration: int = 1_000
    test: int = 600
    shape: ModelShape = QWEN3_30B
    seconds: float = 24.0
    warm_up_s: float = 6.0
    output_tokens: int = 512
    rates: tuple[float, ...] = (20.0, 40.0, 60.0, 80.0, 100.0)
    few_rates: tuple[float, ...] = (20.0, 60.0, 100.0)
    rate: float = 60.0
    prefill: int = 8
    decode: int = 16
    other_decode: tuple[int, ...] = (8, 24)
    decisions: int = 1_000
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Seeds of arrivals and of the order of requests, of the runs beside the balancers; the others have the first."""
    is_small: bool = False
    """True for a run that only checks that everything works."""


FULL = Sizes()
QUICK = Sizes(
    calibration=40,
    test=30,
    shape=ModelShape(3, 32, 4),
    seconds=1.0,
    warm_up_s=0.2,
    output_tokens=20,
    rates=(40.0,),
    few_rates=(40.0,),
    rate=40.0,
    prefill=2,
    decode=4,
    other_decode=(2,),
    decisions=8,
    seeds=(1, 2),
    is_small=True,
)


def costs_of(model: str, base_ns: int = 4_000_000) -> EngineCosts:
    expert_ns = _EXPERT_BYTES[model] / _BANDWIDTH * 1e9
    return replace(
        EngineCosts(),
        base_ns=base_ns,
        expert_ns=expert_ns,
        layer_ns=intercept_in_experts() * expert_ns,
        kv_token_ns=max(1, round(_KV_BYTES[model] / _BANDWIDTH * 1e9)),
    )


class EldrWorkload:
    """One mix of requests, with its calibration, its test half and its engine costs."""

    def __init__(self, name: str, title: str, calibration: Requests, test: Requests, costs: EngineCosts) -> None:
        self.name = name
        self.title = title
        self.calibration = calibration
        self.test = test
        self.costs = costs
        self._fits: dict[tuple[int, bool], EldrFit] = {}
        assert not set(calibration.documents) & set(test.documents), "no test document was fitted to"

    def fit(self, workers: int, *, is_balanced: bool = True) -> EldrFit:
        key = workers, is_balanced
        if key not in self._fits:
            previous = next((each.artifact for each in self._fits.values()), None)
            rules = EldrRules(workers, held_out=0.0, is_balanced=is_balanced)
            self._fits[key] = fit_eldr(self.calibration.calibration(), rules, previous=previous)
        return self._fits[key]

    @property
    def scores(self) -> EldrScores:
        return score_eldr(self.calibration.calibration(), self.test.calibration())

    @property
    def shares(self) -> dict[str, float]:
        names = sorted(set(self.calibration.domains))
        return {name: float(self.calibration.domains.count(name)) for name in names}

    def drawn(self, workers: int, *, is_balanced: bool = True, expert_ranks: int = 1) -> Drawn:
        made = self.fit(workers, is_balanced=is_balanced)
        placement: npt.NDArray[np.uint16] | None = None
        if expert_ranks > 1:
            assert made.kept is not None, "a fit keeps its calibration"
            placement = place_by_cluster(made.kept.decode, made.labels, workers, expert_ranks)
        return drawn_from(self.test, Comparer(made.artifact), shares=self.shares, placement=placement)


@cache
def drawn_workloads(traces: Path | None, sizes: Sizes) -> tuple[EldrWorkload, ...]:
    """Workloads, drawn once per process, and before worker processes are forked, which then have them. Raises
    TraceError."""
    known = [] if traces is None or not has_recording(traces) else [recorded(traces)]
    return (*known, *made_up(sizes))


def has_recording(traces: Path) -> bool:
    return first_file(traces, PATTERN) is not None


def recorded(traces: Path) -> EldrWorkload:
    """Workload of the recorded routing. Raises TraceError."""
    calibration, test = split(read_recorded(find_file(traces, PATTERN)), 0.5)
    return EldrWorkload("recorded", "recorded (DeepSeek-V2-Lite)", calibration, test, costs_of("deepseek"))


def made_up(sizes: Sizes) -> list[EldrWorkload]:
    return [
        _made("published", "tasks, as far apart as published", AS_PUBLISHED, TASKS, sizes),
        _made("tasks", "tasks, as far apart as recorded", AS_RECORDED, TASKS, sizes),
        _made("languages", "languages, as far apart as recorded", AS_RECORDED, LANGUAGES, sizes),
    ]


def _made(name: str, title: str, spread: Spread, shares: dict[str, float], sizes: Sizes) -> EldrWorkload:
    generator = Generator(sizes.shape, spread, _SEED)
    calibration = generator.draw(shares, sizes.calibration, 1)
    test = generator.draw(shares, sizes.test, 2)
    return EldrWorkload(name, title, calibration, test, costs_of("qwen"))


DRIFTED = {"code": 1.0, "medical": 1.0, "poetry": 3.0, "chemistry": 3.0}
"""Shares of domains after a drift; six requests in eight are of domains that the calibration does not have."""


def drifting(workload: EldrWorkload, sizes: Sizes, *, refit_s: float | None) -> Drawn:
    """Requests whose mix shifts halfway. From `refit_s` on, an artifact fitted to another draw of the new mix is in
    force."""
    generator = Generator(sizes.shape, AS_PUBLISHED, _SEED)
    later_test = generator.draw(DRIFTED, sizes.test, 12)
    before = workload.drawn(sizes.decode)
    assert before.comparer is not None, "it was fitted"
    later = drawn_from(later_test, before.comparer)
    drawn = replace(before, later=(sizes.seconds / 2, later))
    if refit_s is None:
        return drawn
    refit = Comparer(refitted(workload, sizes))
    near = compared(workload.test, refit), compared(later_test, refit)
    return replace(drawn, refit=(refit_s, refit, *near))


def refitted(workload: EldrWorkload, sizes: Sizes) -> EldrArtifact:
    generator = Generator(sizes.shape, AS_PUBLISHED, _SEED)
    later = generator.draw(DRIFTED, sizes.calibration, 11)
    rules = EldrRules(sizes.decode, held_out=0.0)
    return fit_eldr(later.calibration(), rules, previous=workload.fit(sizes.decode).artifact).artifact
