"""The sections of BalanceRoute's page: tables and plots of its settings' results, with the paper's figures beside them.
It shows counted figures only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from gateway.core.kernel.decode_config import BalanceConfig
from loadgen.figures import Figures
from loadgen.pages.drawing import Line, Scene, lines, over_time
from loadgen.pages.markdown import NOTHING, table
from loadgen.pages.templates import picture_file
from loadgen.studies.balanceroute import notes, plan
from loadgen.studies.balanceroute.loads import CHOOSING, LOADS, TABLES
from loadgen.studies.balanceroute.paper import Published, published
from loadgen.studies.balanceroute.plan import BASELINES, BR_0, FEW, JSQ, ORACLE, Comparison, Run
from loadgen.studies.balanceroute.world import Setting
from loadgen.studies.numbers import Measure, Middle, measured, ratio
from loadgen.studies.skywalker.reader import Section


def figure(name: str) -> Measure:
    return lambda run: run[name]


GAP, DEFICIT, TPOT, TOKENS, BOUND = map(figure, ("gap", "deficit", "tpot_p95_ms", "tokens_per_s", "bound"))
AGED, WAIT, KV_SHARE, MEAN = map(figure, ("aged", "wait_mean_ms", "kv_share", "mean"))


@dataclass(frozen=True, slots=True)
class Reader:
    """Looks up the results of settings."""

    results: Mapping[Setting, Figures]
    quick: bool = False

    def all(self, settings: Sequence[Setting]) -> list[Figures]:
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


# Tables 1 and 2

_HEAD = ("", "max − min", "JSQ ÷", "paper ÷", "Σ (max − L)", "JSQ ÷", "TPOT p95, ms", "to JSQ", "paper", "tokens/s",
         "to JSQ", "paper")  # fmt: skip


def comparison_table(reader: Reader, comparison: Comparison) -> str:
    theirs = published(comparison.load, comparison.workers)
    base = reader.of(comparison, JSQ)
    rows = []
    for run in comparison.runs:
        ours = reader.of(comparison, run)
        rows.append(
            (
                run.title,
                shown(measured(ours, GAP)),
                spread(ratio(base, ours, GAP), "÷", 1),
                _theirs(theirs, run, "gap"),
                shown(measured(ours, DEFICIT)),
                shown(ratio(base, ours, DEFICIT), ".1f", "÷ "),
                shown(measured(ours, TPOT), ".1f"),
                shown(ratio(ours, base, TPOT), ".3f", "× "),
                _theirs(theirs, run, "tpot_ms"),
                shown(measured(ours, TOKENS)),
                spread(ratio(ours, base, TOKENS), "×", 3),
                _theirs(theirs, run, "tokens_per_s"),
            )
        )
    return table(_HEAD, rows)


def _theirs(theirs: dict[str, Published], run: Run, name: str) -> str:
    if run.title not in theirs:
        return NOTHING
    one, base = getattr(theirs[run.title], name), getattr(theirs[JSQ.title], name)
    return f"÷ {base / one:.1f}" if name == "gap" else f"× {one / base:.3f}"


def at_eight(reader: Reader, several: Sequence[Comparison]) -> Section:
    """Section of Table 1."""
    parts = ["## Table 1: 8 workers\n"]
    for each in several:
        if each.workers == 8:
            parts += [f"### {LOADS[each.load].title}; {each.regime.title}\n", _about(reader, each),
                      comparison_table(reader, each)]  # fmt: skip
    return Section("\n".join(parts))


def perfect(run: Figures) -> float:
    """Ratio of the throughput of equally loaded workers that hold the same tokens at every step to this run's."""
    kv_share: float = run["kv_share"]
    balanced: float = run["mean"] / run["largest"]
    return 1 / (1 - kv_share + kv_share * balanced)


def _about(reader: Reader, each: Comparison) -> str:
    base = reader.of(each, JSQ)
    kv, mean, wait = (measured(base, measure) for measure in (KV_SHARE, MEAN, WAIT))
    assert kv is not None
    return (
        f"With JSQ, reading KV is {kv.median:.0%} of a step, a worker holds {shown(mean)} tokens in the mean, and a"
        f" request waits {shown(wait)} ms in the pool. Were the same requests equally spread at every step, they would"
        f" be decoded {shown(measured(base, perfect), '.3f', '× ')} as fast.\n"
    )


def scaling(reader: Reader, several: Sequence[Comparison]) -> Section:
    """Section of Table 2, and of fleet sizes that the paper does not have."""
    parts, plots = ["## Table 2: from 4 to 144 workers\n"], {}
    for load in dict.fromkeys(each.load for each in several):
        for regime in (plan.NEAR, plan.STANDING):
            found = sorted((e for e in several if e.load == load and e.regime == regime), key=lambda e: e.workers)
            name = f"balanceroute-scaling-{load}-{plan.REGIMES.index(regime)}.svg"
            title = f"{LOADS[load].title}; {brief(regime)}"
            parts += [f"### {title}\n", _by_workers(reader, found), f"![{title}: JSQ's max − min over ours]({name})\n"]
            curves = [Line(run.title, _points(reader, found, run)) for run in FEW[1:]]
            curves += [Line("paper, BR-0", _published(load, BR_0)), Line("paper, oracle", _published(load, ORACLE))]
            drawn = [curve for curve in curves if curve.points]
            plots[name] = picture_file(lines(title, drawn, "workers", "JSQ's max − min over it"))
    return Section("\n".join(parts), plots)


def _points(reader: Reader, found: Sequence[Comparison], run: Run) -> list[tuple[float, float]]:
    return [
        (each.workers, middle.median)
        for each in found
        if run in each.runs and (middle := reader.divided(each, run)) is not None
    ]


def _published(load: str, run: Run) -> list[tuple[float, float]]:
    if load == "capped":
        return []
    return [(g, theirs[JSQ.title].gap / theirs[run.title].gap) for g in (4, 8, 16) if (theirs := published(load, g))]


def _by_workers(reader: Reader, found: Sequence[Comparison]) -> str:
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


def everything(reader: Reader, several: Sequence[Comparison]) -> Section:
    """Section of all policies at the other sizes."""
    parts = ["## All policies at the other sizes\n"]
    for each in sorted(several, key=lambda e: (e.workers, e.load)):
        if each.workers != 8:
            parts += [f"### {each.workers} workers; {LOADS[each.load].title}; {each.regime.title}\n",
                      comparison_table(reader, each)]  # fmt: skip
    return Section("\n".join(parts))


# Fig. 3


def loads_over_time(reader: Reader, several: Sequence[Comparison]) -> Section:
    parts = [
        "## Fig. 3: the load of each worker\n",
        "Thousands of KV tokens of each of 8 workers over the same 600 steps of a standing backlog, on one scale for"
        " each load.\n",
    ]
    plots = {}
    for each in several:
        if each.workers != 8 or each.regime != plan.STANDING:
            continue
        runs = {run: reader.of(each, run)[0] for run in plan.SHOWN}
        top = max((max(worker) for run in runs.values() for worker in run["loads"]), default=1)
        cells = []
        for run, figures in runs.items():
            name = f"balanceroute-loads-{each.load}-{plan.SHOWN.index(run)}.svg"
            end_s = max(1.0, round(plan.KEPT * figures["running"] / figures["tokens_per_s"]))
            curves = [Line(f"worker {g}", _over_time(worker, end_s)) for g, worker in enumerate(figures["loads"])]
            about = f"{run.title}: thousands of KV tokens of each worker"
            plots[name] = picture_file(over_time(about, curves, top / 1000, Scene(end_s, 0.0, ())))
            cells.append(f"![{about}]({name})")
        heads = [f"{run.title}: max − min {figures['gap']:,.0f}" for run, figures in runs.items()]
        parts += [f"### {LOADS[each.load].title}\n", table(heads, [cells])]
    return Section("\n".join(parts), plots)


def _over_time(loads: Sequence[int], end_s: float) -> list[tuple[float, float]]:
    """Points in seconds and thousands of tokens, over the duration of the kept steps."""
    last = max(1, len(loads) - 1)
    return [(end_s * number / last, load / 1000) for number, load in enumerate(loads)]


# The sweep


def swept(reader: Reader) -> Section:
    head = ("", "", *(f"{load}, {run.title}" for load in CHOOSING for run in plan.SWEPT), "together: ÷", "together: ×")
    rows = []
    for axis in plan.axes():
        for value, balance in zip(axis.values, axis.balances, strict=True):
            found = [_gains(reader, load, run, balance) for load in CHOOSING for run in plan.SWEPT]
            mark = " (default)" if balance == plan.DEFAULT else ""
            rows.append(
                (
                    axis.name,
                    f"{value}{mark}",
                    *(f"÷ {divided:.2f}, × {faster:.3f}" for divided, faster in found),
                    f"{geometric_mean([divided for divided, _ in found]):.2f}",
                    f"{geometric_mean([faster for _, faster in found]):.3f}",
                )
            )
    return Section(
        "## The sweep\n\nOn two loads that are in no table above "
        f"({'; '.join(LOADS[load].title for load in CHOOSING)}): 8 workers, a standing backlog, one parameter changed"
        " at a time. JSQ's max − min over it, and its tokens a second to JSQ's: geometric means of the seeds.\n\n"
        + table(head, rows)
        + f"\n{notes.CHOSEN}"
    )


def _gains(reader: Reader, load: str, run: Run, balance: BalanceConfig) -> tuple[float, float]:
    base = reader.all(plan.swept(load, JSQ, plan.DEFAULT, reader.quick))
    ours = reader.all(plan.swept(load, run, balance, reader.quick))
    pairs = list(zip(ours, base, strict=True))
    return (
        geometric_mean([theirs["gap"] / each["gap"] for each, theirs in pairs]),
        geometric_mean([each["tokens_per_s"] / theirs["tokens_per_s"] for each, theirs in pairs]),
    )


# Further questions


_BOUND = """A bound from below on the mean of max − min, for whoever runs the requests of the oracle BR-H's run in the
same steps and chooses nothing but their workers, knowing all of them beforehand. What ends leaves a gap that only
those can fill who are admitted: if X(t) is max − min, and between t and t + τ d < G requests end that held Σs tokens
at t, the largest of them s₁, while prompts of A tokens are admitted, then X(t) + X(t + τ) ≥ max(s₁ − A, (Σs − A)/d) −
f·τ, where f slots were free. Half the mean of its positive part over t is the bound, for the best of several τ. It is
true and not tight: it lets each choice undo all the past; and where more end than there are workers it says nothing.

"""


def bounds(reader: Reader, several: Sequence[Comparison]) -> Section:
    rows = []
    for each in several:
        ours = reader.of(each, ORACLE)
        rows.append(
            (
                LOADS[each.load].title,
                brief(each.regime),
                str(each.workers),
                shown(measured(ours, BOUND)),
                shown(measured(ours, GAP)),
                shown(_over(ours), ".1f", "× "),
                shown(measured(reader.of(each, BR_0), GAP)),
                shown(measured(reader.of(each, JSQ), GAP)),
            )
        )
    head = ("load", "", "workers", "bound", "oracle BR-H", "of the bound", "BR-0", "JSQ")
    return Section("## How much is left\n\n" + _BOUND + table(head, rows) + f"\n{notes.LEFT}")


def _over(runs: Sequence[Figures]) -> Middle | None:
    found = [run["gap"] / run["bound"] for run in runs if run["bound"]]
    return Middle(sorted(found)[len(found) // 2], min(found), max(found)) if found else None


_SENDINGS = """*From the pool*: a request is sent when a slot is free, and its KV cache comes over then. *Past the pool*
(D.6): it is sent at once, wherever fewer than two beyond the batch are in flight. *Two early*: each worker is sent two
more than its batch, chosen from the pool as ever, so that their KV caches come over while they wait for a slot; all
others are decided as late as before. For that the tier is told of a batch of two more than the engine's
(`decode_batch_max`), and nothing else. To BR-0 from the pool at the same speed: tokens a second, and max − min.
"""


def sent(reader: Reader, loads: Sequence[str]) -> Section:
    parts = [
        "## When the KV cache is sent for\n",
        _SENDINGS,
    ]
    for load in loads:
        rows = []
        for speed, token_ns in plan.SPEEDS:
            base = reader.all(plan.sending(load, plan.SENDINGS[0], token_ns, reader.quick))
            cells = []
            for each in plan.SENDINGS:
                ours = reader.all(plan.sending(load, each, token_ns, reader.quick))
                cells.append(
                    f"{shown(ratio(ours, base, TOKENS), '.3f', '× ')}, {shown(ratio(base, ours, GAP), '.2f', '÷ ')}"
                )
            rows.append((speed, *cells))
        parts += [f"### {LOADS[load].title}\n", table(("KV over", *(each.title for each in plan.SENDINGS)), rows)]
    return Section("\n".join([*parts, notes.SENDING]))


def mattered(reader: Reader, loads: Sequence[str]) -> Section:
    parts = ["## What the gain depends on\n", "8 workers, a standing backlog; one thing changed at a time.\n"]
    for load in loads:
        rows = []
        for matter in plan.MATTERS:
            base = reader.all(plan.mattering(load, JSQ, matter, reader.quick))
            cells = []
            for run in FEW[1:]:
                ours = reader.all(plan.mattering(load, run, matter, reader.quick))
                aged = measured(ours, AGED)
                cells.append(
                    f"{shown(ratio(base, ours, GAP), '.1f', '÷ ')}, {shown(ratio(ours, base, TOKENS), '.3f', '× ')},"
                    f" {shown(aged)} aged"
                )
            rows.append((matter.title, *cells))
        parts += [f"### {LOADS[load].title}\n", table(("", *(run.title for run in FEW[1:])), rows)]
    return Section("\n".join([*parts, notes.MATTERS]))


def of_tables(several: Sequence[Comparison]) -> list[str]:
    return [load for load in TABLES if any(each.load == load for each in several)]
