"""Page of the study, from its raw data alone: the plan, what is reached under which protocol, and every figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from loadgen.figures import Figures
from loadgen.studies.balanceroute.paper import JSQ, aims_of, published, running_at_most
from loadgen.studies.balanceroute.tables import GAP, TOKENS, TPOT, figure
from loadgen.studies.numbers import Middle, median_of, ratio
from loadgen.studies.protocols import findings, judgement, plan
from loadgen.studies.protocols.clauses import CLAUSES, ClauseVerdict, verdicts
from loadgen.studies.protocols.expected import PREDICTED, is_expected
from loadgen.studies.protocols.judgement import Gain
from loadgen.studies.protocols.plan import OURS, Case, Contender, Procedure, ScaledLoad
from loadgen.studies.protocols.record import USUAL, ProtocolRecord
from loadgen.studies.rendering import render

NAME = "protocols.md"
_TRACES = (("the paper's own trace", "reasoning"), ("Azure's trace", "azure2024"))
"""The paper's two traces, each with a load that is held against it."""


def page_of(record: ProtocolRecord, loads: Mapping[str, Figures]) -> str:
    gains = list(judgement.gains(record))
    reached = [each for each in gains if each.is_reached]
    slower, longer, full = list(judgement.slower(record)), _longer(record), list(_full(record))
    return render(
        "protocols/page.j2", record=record, loads=loads, plan=plan, gains=gains, expected=PREDICTED.text,
        expected_longer=PREDICTED.longer, expected_full=PREDICTED.full, full=full, clauses=_clauses(record),
        predictions=PREDICTED.reached,
        traces=_TRACES, aims_of=aims_of, reached=reached,
        divided=sum(each.is_divided for each in gains), faster=sum(each.is_faster for each in gains),
        beyond=sum(each.aims[1] > each.perfect for each in gains), nearest=_nearest, predicted=_predicted(gains),
        by_protocol=list(findings.reached_by_protocol(gains)), pool_alone=findings.pool_alone(record),
        held=findings.held, limited=findings.limited(slower), runs_compared=_runs_compared(record),
        holding_enough=findings.holding_enough(record, reached), held_enough=findings.HELD_ENOUGH,
        without_longer=findings.without_longer(record, reached),
        longer_counted=findings.counted_longer([each for each, _, _ in longer]),
        foreseen_by=[findings.foreseen_by(record, each) for each in (plan.EXACT, plan.SURVIVAL)],
        cross_extremes=list(_cross_extremes(record)),
        slower=slower, scales=_scales(record), papers_scale=_papers_scale(),
        matrix=_matrix, where=where, foreseen=_foreseen(record), cross=_cross,
        longer=longer, spread=spread, way=_way,
        least=min((each.faster.median for each in slower), default=None),
    )  # fmt: skip


def where(case: Case) -> str:
    cache = "limited" if case.room_share else "unlimited"
    return f"{case.load.brief}; {case.procedure.title}; B = {case.batch}, {cache}"


def _way(at_once: bool) -> str:
    return "at once" if at_once else "pooled"


def spread(middle: Middle, sign: str, digits: int) -> str:
    return f"{sign} {middle.shown(digits)}"


def _runs_compared(record: ProtocolRecord) -> int:
    """Number of runs of BalanceRoute in the cases that were played."""
    return len(OURS) * sum(record.has(case) for case in plan.cases())


def _clauses(record: ProtocolRecord) -> dict[str, list[ClauseVerdict]]:
    """Verdicts on the clauses of each prediction."""
    return {
        "first": list(verdicts(record, CLAUSES.first, plan.cases())),
        "longer": list(verdicts(record, CLAUSES.longer, plan.LONG_CASES)),
        "full": list(verdicts(record, CLAUSES.full, plan.FULL_CASES)),
    }


def _cross_extremes(record: ProtocolRecord) -> Iterator[tuple[str, str, tuple[findings.Extreme, ...]]]:
    for case in plan.CROSS_CASES:
        for contender in plan.CROSSED if record.has(case) else ():
            yield case.load.title, contender.title, findings.cross_extremes(record, case, contender)


def _nearest(gains: Sequence[Gain], load: str, contender: Contender) -> list[Gain]:
    """Runs of the contender on loads that are held against the same trace, those that reach both gains first, and the
    nearest ones otherwise."""
    alike = [each for each in gains if aims_of(each.case.load.name) is aims_of(load) and each.contender == contender]
    return sorted(alike, key=lambda each: (not each.is_reached, -_share(each)))


def _share(gain: Gain) -> float:
    """Share of both gains that is reached, at most 1."""
    divided, faster = gain.aims
    return min(1.0, gain.divided.median / divided) * min(1.0, max(0.0, gain.faster.median - 1) / (faster - 1))


def _predicted(gains: Sequence[Gain]) -> dict[str, list[Gain]]:
    return {
        "predicted and reached": [each for each in gains if is_expected(each) and each.is_reached],
        "predicted, and missed": [each for each in gains if is_expected(each) and not each.is_reached],
        "reached without being predicted": [each for each in gains if not is_expected(each) and each.is_reached],
    }


def _papers_scale() -> list[tuple[str, float, float]]:
    """Name, requests per worker by Little's law, and imbalance of JSQ, of the paper's two traces at 8 workers."""
    found = []
    for title, load in _TRACES:
        rows = published(load, plan.WORKERS)
        found.append((title, running_at_most(rows, JSQ, plan.WORKERS), rows[JSQ].gap))
    return found


def _scales(record: ProtocolRecord) -> list[tuple[Case, float, float, float]]:
    """Requests per worker in each case that was played, by the paper's yardstick and in the mean over steps, and JSQ's
    imbalance."""
    found = []
    for case in plan.cases():
        if record.has(case):
            runs = record.runs(case, judgement.jsq(case.procedure.has_at_once))
            tokens, tpot, gap = (median_of(runs, each) or 0.0 for each in (TOKENS, TPOT, GAP))
            steps = (median_of(runs, figure("running")) or 0.0) / plan.WORKERS
            found.append((case, tokens * tpot / 1_000 / plan.WORKERS, steps, gap))
    return found


def _matrix(record: ProtocolRecord, load: ScaledLoad, procedure: Procedure) -> list[list[str]]:
    """Rows of a table: every run beside the baselines of each way, for each batch and cache."""
    columns = [each for each in plan.cases() if each.load == load and each.procedure == procedure]
    if not all(record.has(each) for each in columns):
        return []
    rows = []
    for at_once in judgement.ways(columns[0]):
        for contender in OURS:
            cells = [_gain_cell(judgement.gain(record, case, contender, at_once)) for case in columns]
            rows.append([f"{contender.title}, to baselines {_way(at_once)}", *cells])
        if at_once:
            rows.append(["JSQ pooled, to baselines at once", *(_late(record, case) for case in columns)])
        rows.append([f"perfect balance of the strongest {_way(at_once)}", *(
            f"× {judgement.gain(record, case, OURS[0], at_once).perfect:.3f}" for case in columns
        )])  # fmt: skip
    return rows


def _gain_cell(gain: Gain) -> str:
    marks = ["" if not is_met else " ✓" for is_met in (gain.is_divided, gain.is_faster)]
    return f"÷ {gain.divided.median:.1f}{marks[0]} × {gain.faster.median:.3f}{marks[1]}"


def _late(record: ProtocolRecord, case: Case) -> str:
    """Gain of the pool alone: JSQ from the pool over the baselines that are sent requests at once."""
    base = judgement.strongest(record, case, judgement.baselines(at_once=True))
    pooled = record.runs(case, plan.JSQ_POOLED)
    divided = ratio(record.runs(case, plan.JSQ_AT_ONCE), pooled, GAP)
    faster = ratio(pooled, record.runs(case, base), TOKENS)
    assert divided is not None
    assert faster is not None
    return f"÷ {divided.median:.1f} × {faster.median:.3f}"


def _foreseen(record: ProtocolRecord) -> list[tuple[Case, list[str]]]:
    """Forecasts in each case: by predictor, the share of requests whose end was foreseen, and of forecasts of an end
    that were right; then the number of seeds for which the run is BR-0's."""
    found = []
    for case in plan.cases():
        if not record.has(case):
            continue
        base = record.runs(case, plan.BR_0)
        cells = []
        for contender in (plan.ORACLE, plan.EXACT, plan.SURVIVAL):
            runs = record.runs(case, contender)
            shares = [median([run[name] for run in runs]) for name in ("foreseen_share", "right_share")]
            same = judgement.same_runs(runs, base)
            cells.append(f"{shares[0]:.1%}, {shares[1]:.0%} right; as BR-0: {same} of {len(runs)}")
        found.append((case, cells))
    return found


def _longer(record: ProtocolRecord) -> list[tuple[Gain, list[float], float]]:
    """Gains of the longer runs, each with the requests that run per worker, of baseline and run, and the KV tokens held
    by the run, over those held by the strongest baseline."""
    found = []
    for case in plan.LONG_CASES:
        for at_once in judgement.ways(case) if record.has(case) else ():
            for contender in plan.LONG_OURS:
                gain = judgement.gain(record, case, contender, at_once)
                pair = record.runs(case, gain.strongest), record.runs(case, contender)
                running = [(median_of(runs, figure("running")) or 0.0) / plan.WORKERS for runs in pair]
                held = ratio(pair[1], pair[0], figure("mean"))
                assert held is not None
                found.append((gain, running, held.median))
    return found


_FullRow = tuple[Case, Contender, Middle, Middle, Middle]


def _full(record: ProtocolRecord) -> Iterator[_FullRow]:
    """Division of JSQ's imbalance, tokens per second over JSQ's, and the same times the tokens of a running request, of
    short and long runs with limited caches, all from the pool."""
    for longer in plan.FULL_CASES:
        for case in (replace(longer, times=1), longer):
            for contender in plan.LONG_OURS if record.has(case) else ():
                base, ours = record.runs(case, plan.JSQ_POOLED), record.runs(case, contender)
                divided, faster = ratio(base, ours, GAP), ratio(ours, base, TOKENS)
                assert divided is not None
                assert faster is not None
                yield case, contender, divided, faster, findings.held_at_work(record, case, contender)


def _cross(record: ProtocolRecord, case: Case, contender: Contender, at: tuple[int, float]) -> str:
    """Gains at a horizon and discount over JSQ from the pool, and the KV tokens held, over JSQ's."""
    runs, base = record.runs(case, contender, at), record.runs(case, plan.JSQ_POOLED)
    divided, faster, held = ratio(base, runs, GAP), ratio(runs, base, TOKENS), ratio(runs, base, figure("mean"))
    assert divided is not None
    assert faster is not None
    assert held is not None
    mark = " (the paper's)" if at == USUAL else ""
    return f"÷ {divided.shown(1)} × {faster.shown(3)}, held × {held.median:.2f}{mark}"
