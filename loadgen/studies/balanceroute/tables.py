"""Results of BalanceRoute's settings as its page shows them, with the paper's figures beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from gateway.core.features.disaggregated.config import BalanceConfig
from loadgen.figures import Figures
from loadgen.pages.markdown import NOTHING
from loadgen.studies.balanceroute import plan
from loadgen.studies.balanceroute.loads import CHOOSING, LOADS
from loadgen.studies.balanceroute.paper import aims_of, published
from loadgen.studies.balanceroute.plan import BASELINES, BR_0, EXACT, JSQ, ORACLE, Comparison, Run
from loadgen.studies.balanceroute.world import BalanceCell
from loadgen.studies.numbers import Measure, Middle, measured, ratio


def figure(name: str) -> Measure:
    return lambda run: run[name]


GAP, DEFICIT, TPOT, TOKENS, BOUND, AGED = map(
    figure, ("gap", "deficit", "tpot_p95_ms", "tokens_per_s", "bound", "aged")
)


@dataclass(frozen=True, slots=True)
class ResultReader:
    """Looks up the results of settings."""

    results: Mapping[BalanceCell, Figures]
    quick: bool = False

    def all(self, settings: Sequence[BalanceCell]) -> list[Figures]:
        """Figures of the settings, one for each seed."""
        return [self.results[setting] for setting in settings]

    def of(self, comparison: Comparison, run: Run) -> list[Figures]:
        return self.all(comparison.of(run))

    def divided(self, comparison: Comparison, run: Run) -> Middle | None:
        """JSQ's gap divided by this run's."""
        return ratio(self.of(comparison, JSQ), self.of(comparison, run), GAP)

    def faster(self, comparison: Comparison, run: Run, base: Run = JSQ) -> Middle | None:
        return ratio(self.of(comparison, run), self.of(comparison, base), TOKENS)

    def strongest(self, comparison: Comparison) -> Run:
        """The baseline that generates most tokens."""
        present = [run for run in BASELINES if run in comparison.runs]
        return max(present, key=lambda run: _median(measured(self.of(comparison, run), TOKENS)))


def _median(middle: Middle | None) -> float:
    return 0.0 if middle is None else middle.median


def shown(middle: Middle | None, form: str = ",.0f", sign: str = "") -> str:
    return NOTHING if middle is None else f"{sign}{middle.median:{form}}"


def spread(middle: Middle | None, sign: str, digits: int) -> str:
    """Median with the range over the seeds, where there are several."""
    if middle is None:
        return NOTHING
    text = f"{sign} {middle.median:.{digits}f}"
    return text if middle.low == middle.high else f"{text} ({middle.low:.{digits}f}–{middle.high:.{digits}f})"


def perfect(run: Figures) -> float:
    """Ratio of the throughput of equally loaded workers that hold the same tokens at every step to this run's."""
    kv_share: float = run["kv_share"]
    balanced: float = run["mean"] / run["largest"]
    return 1 / (1 - kv_share + kv_share * balanced)


def aims(reader: ResultReader, several: Sequence[Comparison]) -> tuple[list[tuple[str, ...]], list[int]]:
    """Rows, and the numbers of aims that are met: of imbalance, and of throughput."""
    rows: list[tuple[str, ...]] = []
    met = [0, 0]
    for each in several:
        for run in (ORACLE, EXACT, BR_0) if each.workers == 8 else ():
            divided, faster = aims_of(each.load)[run.title]
            strongest = reader.strongest(each)
            ours, gain = reader.divided(each, run), reader.faster(each, run, strongest)
            assert ours is not None
            assert gain is not None
            met = [met[0] + (ours.median >= divided), met[1] + (gain.median >= faster)]
            rows.append((
                f"{LOADS[each.load].title.split(':')[0]}; {each.regime.brief}; {run.title}",
                f"{spread(ours, '÷', 1)} of ÷ {divided}", _short(ours.median / divided - 1, "%"),
                f"{spread(gain, '×', 3)} of × {faster:g}", _short(gain.median - faster, " points"),
                shown(measured(reader.of(each, strongest), perfect), ".3f", "× "), strongest.title,
            ))  # fmt: skip
    return rows, met


def _short(by: float, unit: str) -> str:
    return "met" if by >= 0 else f"{100 * by:.0f}{unit}"


def theirs(comparison: Comparison, run: Run, name: str) -> float | None:
    """The paper's gain of a run over JSQ; None where it has no such row."""
    told = published(comparison.load, comparison.workers)
    if run.title not in told:
        return None
    one, base = getattr(told[run.title], name), getattr(told[JSQ.title], name)
    return float(base / one if name == "gap" else one / base)


def gains(reader: ResultReader, balance: BalanceConfig) -> list[tuple[float, float]]:
    """Divisor of JSQ's gap and multiple of its tokens a second, for each load and run of the sweep."""
    return [_gains(reader, load, run, balance) for load in CHOOSING for run in plan.SWEPT]


def _gains(reader: ResultReader, load: str, run: Run, balance: BalanceConfig) -> tuple[float, float]:
    base = reader.all(plan.swept(load, JSQ, plan.DEFAULT, reader.quick))
    ours = reader.all(plan.swept(load, run, balance, reader.quick))
    pairs = list(zip(ours, base, strict=True))
    return (
        geometric_mean([theirs["gap"] / each["gap"] for each, theirs in pairs]),
        geometric_mean([each["tokens_per_s"] / theirs["tokens_per_s"] for each, theirs in pairs]),
    )


def over_bound(runs: Sequence[Figures]) -> Middle | None:
    found = [run["gap"] / run["bound"] for run in runs if run["bound"]]
    return Middle(sorted(found)[len(found) // 2], min(found), max(found)) if found else None
