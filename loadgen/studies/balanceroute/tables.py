"""Tables of BalanceRoute's page: its settings' results, with the paper's figures beside them. It shows counted figures
only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from gateway.core.features.disaggregated.config import BalanceConfig
from loadgen.figures import Figures
from loadgen.pages.markdown import NOTHING, table
from loadgen.studies.balanceroute import plan
from loadgen.studies.balanceroute.loads import CHOOSING, LOADS
from loadgen.studies.balanceroute.paper import AIMS, PaperRow, published
from loadgen.studies.balanceroute.plan import BASELINES, BR_0, EXACT, FEW, JSQ, ORACLE, Comparison, Run
from loadgen.studies.balanceroute.world import BalanceCell
from loadgen.studies.numbers import Measure, Middle, measured, ratio


def figure(name: str) -> Measure:
    return lambda run: run[name]


GAP, DEFICIT, TPOT, TOKENS, BOUND = map(figure, ("gap", "deficit", "tpot_p95_ms", "tokens_per_s", "bound"))


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


def brief(regime: plan.Regime) -> str:
    return regime.title.split(":")[0].split(",")[0]


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
            divided, faster = AIMS[run.title]
            strongest = reader.strongest(each)
            ours, gain = reader.divided(each, run), reader.faster(each, run, strongest)
            assert ours is not None
            assert gain is not None
            met = [met[0] + (ours.median >= divided), met[1] + (gain.median >= faster)]
            rows.append((
                f"{LOADS[each.load].title.split(':')[0]}; {brief(each.regime)}; {run.title}",
                f"{spread(ours, '÷', 1)} of ÷ {divided}", _short(ours.median / divided - 1, "%"),
                f"{spread(gain, '×', 3)} of × {faster:.2f}", _short(gain.median - faster, " points"),
                shown(measured(reader.of(each, strongest), perfect), ".3f", "× "), strongest.title,
            ))  # fmt: skip
    return rows, met


def _short(by: float, unit: str) -> str:
    return "met" if by >= 0 else f"{100 * by:.0f}{unit}"


_HEAD = ("", "max − min", "JSQ ÷", "paper ÷", "Σ (max − L)", "JSQ ÷", "TPOT p95, ms", "to JSQ", "paper", "tokens/s",
         "to JSQ", "paper")  # fmt: skip


def comparison_table(reader: ResultReader, comparison: Comparison) -> str:
    theirs = published(comparison.load, comparison.workers)
    base = reader.of(comparison, JSQ)
    rows = []
    for run in comparison.runs:
        ours = reader.of(comparison, run)
        rows.append((
            run.title,
            shown(measured(ours, GAP)), spread(ratio(base, ours, GAP), "÷", 1), _theirs(theirs, run, "gap"),
            shown(measured(ours, DEFICIT)), shown(ratio(base, ours, DEFICIT), ".1f", "÷ "),
            shown(measured(ours, TPOT), ".1f"), shown(ratio(ours, base, TPOT), ".3f", "× "),
            _theirs(theirs, run, "tpot_ms"),
            shown(measured(ours, TOKENS)), spread(ratio(ours, base, TOKENS), "×", 3),
            _theirs(theirs, run, "tokens_per_s"),
        ))  # fmt: skip
    return table(_HEAD, rows)


def _theirs(theirs: dict[str, PaperRow], run: Run, name: str) -> str:
    if run.title not in theirs:
        return NOTHING
    one, base = getattr(theirs[run.title], name), getattr(theirs[JSQ.title], name)
    return f"÷ {base / one:.1f}" if name == "gap" else f"× {one / base:.3f}"


def by_workers(reader: ResultReader, found: Sequence[Comparison]) -> str:
    """Table 2 of one load in one regime."""
    head = ["workers", *(f"{run.title}: max − min" for run in FEW),
            *(f"{run.title}: ÷, tokens/s" for run in FEW[1:])]  # fmt: skip
    rows = []
    for each in found:
        gaps = [shown(measured(reader.of(each, run), GAP)) if run in each.runs else NOTHING for run in FEW]
        gains = [
            f"{shown(reader.divided(each, run), '.1f', '÷ ')}, {shown(reader.faster(each, run), '.3f', '× ')}"
            if run in each.runs
            else NOTHING
            for run in FEW[1:]
        ]
        rows.append((str(each.workers), *gaps, *gains))
    return table(head, rows)


def swept(reader: ResultReader) -> str:
    head = ("", "", *(f"{load}, {run.title}" for load in CHOOSING for run in plan.SWEPT), "together: ÷", "together: ×")
    rows = []
    for axis in plan.axes():
        for value, balance in zip(axis.values, axis.balances, strict=True):
            found = [_gains(reader, load, run, balance) for load in CHOOSING for run in plan.SWEPT]
            divided, faster = (geometric_mean(each) for each in zip(*found, strict=True))
            cells = (f"÷ {one:.2f}, × {other:.3f}" for one, other in found)
            mark = " (default)" if balance == plan.DEFAULT else ""
            rows.append((axis.name, f"{value}{mark}", *cells, f"{divided:.2f}", f"{faster:.3f}"))
    return table(head, rows)


def _gains(reader: ResultReader, load: str, run: Run, balance: BalanceConfig) -> tuple[float, float]:
    base = reader.all(plan.swept(load, JSQ, plan.DEFAULT, reader.quick))
    ours = reader.all(plan.swept(load, run, balance, reader.quick))
    pairs = list(zip(ours, base, strict=True))
    return (
        geometric_mean([theirs["gap"] / each["gap"] for each, theirs in pairs]),
        geometric_mean([each["tokens_per_s"] / theirs["tokens_per_s"] for each, theirs in pairs]),
    )


def bounds(reader: ResultReader, several: Sequence[Comparison]) -> str:
    rows = []
    for each in several:
        ours = reader.of(each, ORACLE)
        gaps = (shown(measured(reader.of(each, run), GAP)) for run in (BR_0, JSQ))
        rows.append((LOADS[each.load].title, brief(each.regime), str(each.workers), shown(measured(ours, BOUND)),
                     shown(measured(ours, GAP)), shown(_over(ours), ".1f", "× "), *gaps))  # fmt: skip
    return table(("load", "", "workers", "bound", "oracle BR-H", "of the bound", "BR-0", "JSQ"), rows)


def _over(runs: Sequence[Figures]) -> Middle | None:
    found = [run["gap"] / run["bound"] for run in runs if run["bound"]]
    return Middle(sorted(found)[len(found) // 2], min(found), max(found)) if found else None


def sent(reader: ResultReader, load: str) -> str:
    rows = []
    for speed, token_ns in plan.SPEEDS:
        runs = [reader.all(plan.sending(load, each, token_ns, reader.quick)) for each in plan.SENDINGS]
        cells = (
            f"{shown(ratio(ours, runs[0], TOKENS), '.3f', '× ')}, {shown(ratio(runs[0], ours, GAP), '.2f', '÷ ')}"
            for ours in runs
        )
        rows.append((speed, *cells))
    return table(("KV over", *(each.title for each in plan.SENDINGS)), rows)


def mattered(reader: ResultReader, load: str) -> str:
    rows = []
    for matter in plan.MATTERS:
        base, *others = (reader.all(plan.mattering(load, run, matter, reader.quick)) for run in FEW)
        cells = (
            f"{shown(ratio(base, ours, GAP), '.1f', '÷ ')}, {shown(ratio(ours, base, TOKENS), '.3f', '× ')},"
            f" {shown(measured(ours, figure('aged')))} aged"
            for ours in others
        )
        rows.append((matter.title, *cells))
    return table(("", *(run.title for run in FEW[1:])), rows)
