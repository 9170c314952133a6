"""Measures the error of a busy worker's projected load, by how often a predictor is asked.

It simulates one worker that is never idle with the projection that routers use, and knows the remaining tokens of each
request. No request is routed: only the projection differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import cycle

import numpy as np
import numpy.typing as npt

from gateway.core.features.disaggregated.books import Entry, Group, Worker, dispatch, end, progress, start
from gateway.core.features.disaggregated.config import BalanceConfig
from gateway.core.features.disaggregated.predictor import Facts, Numbers
from gateway.core.features.disaggregated.predictors.arrays import PredictorKind
from gateway.core.features.disaggregated.predictors.fitted import FittedPredictor
from gateway.core.features.disaggregated.predictors.history import Ended, History, Snapshot
from gateway.core.features.disaggregated.projection import Projection
from gateway.core.vocabulary import ReplicaId, RequestId
from gateway.features.disaggregated.fit.fitting import FitRules, fit_predictor
from gateway.features.disaggregated.samples import split_in_time
from loadgen.figures import Figures
from loadgen.pages import markdown
from loadgen.studies.predictors.workloads import PredictorWorkload

REFRESHES = (4, 8, 16, 24, 40)
HORIZON = 48
_SLOTS = 32
_STEPS = 3_000
_ALWAYS_NS = 1 << 62
_HELD_OUT = 0.25
OnProgress = Callable[[str], object]


def refresh_sweep(
    workloads: Iterable[PredictorWorkload],
    kind: PredictorKind = PredictorKind.EXACT_MATCH,
    *,
    refreshes: Sequence[int] = REFRESHES,
    steps: int = _STEPS,
    on_progress: OnProgress = lambda _: None,
) -> list[Figures]:
    """Row for each workload, each R, and whether requests expected to stay are counted down too. Errors are root mean
    squares over the horizon, as shares of the mean load: JSON-able. Raises TraceError and TooLittle."""
    rows = []
    for workload in workloads:
        on_progress(f"{workload.name}: fitting")
        snapshot = workload.read()
        split = split_in_time(snapshot, _HELD_OUT)
        known = tuple(ended for ended, _ in split.earlier)
        arrays = fit_predictor(Snapshot(known, snapshot.first + len(known)), FitRules(kind, HORIZON)).arrays
        later = [ended for ended, _ in split.later if ended.output_tokens]
        for refresh in refreshes:
            for decrements in (False, True):
                on_progress(f"{workload.name}: R = {refresh}, {'counted down' if decrements else 'kept'}")
                predictor = FittedPredictor(HORIZON, History(len(known), known))
                predictor.take(arrays, _ALWAYS_NS)
                config = BalanceConfig(horizon_steps=HORIZON, refresh_tokens=refresh, decrements_stayers=decrements)
                error, without = _errors(later, predictor, config, steps)
                rows.append(
                    {
                        "workload": workload.name,
                        "refresh_tokens": refresh,
                        "decrements_stayers": decrements,
                        "error": error,
                        "error_without": without,
                    }
                )
    return rows


def _errors(
    requests: Sequence[Ended], predictor: FittedPredictor, config: BalanceConfig, steps: int
) -> tuple[float, float]:
    """Errors of the projection, and of a projection in which no request ever ends."""
    worker = _BusyWorker(requests, predictor, config)
    errors: list[Numbers] = []
    withouts: list[Numbers] = []
    loads: list[float] = []
    for number in range(steps):
        worker.step()
        projected, truth, without = worker.look()
        if 2 * number > steps:  # all requests begin at once at first
            errors.append(projected - truth)
            withouts.append(without - truth)
            loads.append(truth[0])
    mean = float(np.mean(loads))
    return _share(errors, mean), _share(withouts, mean)


def _share(errors: list[Numbers], mean: float) -> float:
    return float(np.sqrt(np.mean(np.square(errors)))) / mean


class _BusyWorker:
    """Worker on which each ended request is replaced by the next, and the end of each running request is known."""

    def __init__(self, requests: Sequence[Ended], predictor: FittedPredictor, config: BalanceConfig) -> None:
        self._worker = Worker(ReplicaId("d0"), 0, Group("g"))
        self._worker.slots = _SLOTS
        self._predictor = predictor
        self._projection = Projection(config, predictor)
        self._next = enumerate(cycle(requests))
        self._running: list[tuple[Entry, int]] = []
        for _ in range(_SLOTS):
            self._admit()

    def step(self) -> None:
        """Generate one token for every running request."""
        stay: list[tuple[Entry, int]] = []
        for entry, output_tokens in self._running:
            progress(entry, entry.generated + 1)
            self._projection.progressed(entry)
            if entry.generated < output_tokens:
                stay.append((entry, output_tokens))
                continue
            self._predictor.ended(entry.facts, output_tokens, 0)
            self._projection.over(entry)
            end(entry)
        self._running = stay
        while len(self._running) < _SLOTS:
            self._admit()

    def look(self) -> tuple[Numbers, Numbers, Numbers]:
        """Load 0 … H steps from now, without further admissions: as projected, as it will be, and as it would be if no
        request ended."""
        projected = self._projection.loads([self._worker], 0)
        assert projected is not None, "this predictor is always ready"
        steps: npt.NDArray[np.int64] = np.arange(projected.shape[1])
        left = np.array([output - entry.generated for entry, output in self._running])
        loads = np.array([entry.load for entry, _ in self._running])[:, None] + steps
        truth = np.where(steps < left[:, None], loads, 0).sum(axis=0)
        return projected[0], truth.astype(np.float64), loads.sum(axis=0).astype(np.float64)

    def _admit(self) -> None:
        number, request = next(self._next)
        facts = Facts(RequestId(f"{number}"), request.prompt_tokens)
        noted = self._predictor.note(facts)
        facts.noted = replace(noted, features=replace(noted.features, prompt_key=request.prompt_key))
        entry = Entry(facts, number, 0, 0)
        dispatch(entry, self._worker)
        start(entry)
        self._projection.sent(entry, self._worker)
        self._running.append((entry, request.output_tokens))


def sweep_markdown(rows: Sequence[Figures]) -> str:
    """Table with a line for each workload and R."""
    head = ("workload", "R", "who stays is kept", "counted down", "no request leaves")
    cells: dict[tuple[str, int], dict[bool, Figures]] = {}
    for row in rows:
        cells.setdefault((row["workload"], row["refresh_tokens"]), {})[row["decrements_stayers"]] = row
    return markdown.table(
        head,
        [
            (name, f"{refresh}", f"{pair[False]['error']:.2%}", f"{pair[True]['error']:.2%}",
             f"{pair[False]['error_without']:.2%}")
            for (name, refresh), pair in cells.items()
        ],
    )  # fmt: skip
