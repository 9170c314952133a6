"""Looks up results of SkyWalker's experiments for the sections of its page. It writes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.figures import Figures
from loadgen.studies.cells import Results
from loadgen.studies.experiments import Experiment, runs_of
from loadgen.studies.numbers import Measure, Middle, ratio
from loadgen.studies.skywalker.plan import PAPER_FLEETS, PUSHING_POINT, SettingAxis, SkyWalkerEvaluation, pushing_name


class SectionReader:
    """All results, by the sections' names for them. Lists have one entry for each seed."""

    def __init__(self, plan: SkyWalkerEvaluation, results: Results) -> None:
        self.plan = plan
        self._results = results

    def of(self, experiment: Experiment, point: str, run: str) -> list[Figures]:
        return runs_of(self._results, experiment, point, run)

    # Comparison of Fig. 8

    def workloads(self, *kinds: str) -> list[str]:
        """Workloads of these kinds; all if none is given."""
        names = [point.name for point in self.plan.fig8.points]
        return [name for name in names if not kinds or name.startswith(tuple(f"{kind}, " for kind in kinds))]

    def as_published(self, *kinds: str) -> list[str]:
        """Workloads of these kinds on the fleet that the paper had."""
        return [name for name in self.workloads(*kinds) if name in PAPER_FLEETS]

    def system(self, workload: str, system: str) -> list[Figures]:
        return self.of(self.plan.fig8, workload, system)

    def compared(self, workload: str, system: str, base: str, measure: Measure) -> Middle | None:
        return ratio(self.system(workload, system), self.system(workload, base), measure)

    def pairs(
        self, workloads: Sequence[str], system: str, bases: Sequence[str], measure: Measure
    ) -> dict[tuple[str, str], Middle | None]:
        """Median ratios by workload and base; None where either has no figures."""
        return {
            (workload, base): self.compared(workload, system, base, measure) for workload in workloads for base in bases
        }

    def all_compared(
        self, workloads: Sequence[str], system: str, bases: Sequence[str], measure: Measure
    ) -> dict[tuple[str, str], Middle]:
        """Pairs that have figures."""
        found = self.pairs(workloads, system, bases, measure)
        return {place: each for place, each in found.items() if each is not None}

    # Other figures

    def pushing(self, selection: str, pushing: str) -> list[Figures]:
        return self.of(self.plan.fig9, PUSHING_POINT, pushing_name(selection, pushing))

    def skewed(self, replicas: int, run: str) -> list[Figures]:
        return self.of(self.plan.fig10, str(replicas), run)

    def axis(self, axis: SettingAxis, value: str, workload: str, run: str) -> list[Figures]:
        return self.of(self.plan.sensitivity[axis.name, value], workload, run)
