"""Assembles BalanceRoute's page from its sections: the aims, where they are missed and by how much, then every figure.
Explanations stand beside a figure that shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.figures import Figures
from loadgen.pages.markdown import NOTHING, listed, table
from loadgen.studies.balanceroute import plan, tables
from loadgen.studies.balanceroute.aside import EXPECTED, FOUND
from loadgen.studies.balanceroute.loads import LOADS, TABLES
from loadgen.studies.balanceroute.paper import AIMS, HEAVY, running_at_most
from loadgen.studies.balanceroute.plan import BR_0, EXACT, JSQ, ORACLE, Comparison
from loadgen.studies.balanceroute.tables import Reader
from loadgen.studies.numbers import measured
from loadgen.studies.skywalker.reader import Section

NAME = "balanceroute.md"


def page_of(
    reader: Reader, present: Sequence[str], *, look: bool, table_3: str | None, ticks: Mapping[str, Any] | None
) -> dict[str, str]:
    """Contents by file name: the page and its plots."""
    several = [each for each in plan.comparisons(reader.quick) if each.load in present]
    found = [
        _aims(reader, several),
        tables.at_eight(reader, several),
        tables.scaling(reader, several),
        tables.loads_over_time(reader, several),
        tables.swept(reader),
        _predictors(table_3),
        tables.bounds(reader, [each for each in several if each.workers <= 16]),
        _ticks(ticks),
        tables.sent(reader, [load for load in plan.SENT if load in present]),
        tables.mattered(reader, [load for load in plan.SENT if load in present]),
        _aside(reader, present, look=look),
        tables.everything(reader, several),
    ]
    text = "\n".join([_head(reader, present), *(each.text for each in found)])
    plots = {name: plot for each in found for name, plot in each.plots.items()}
    return {NAME: text} | plots


def _head(reader: Reader, present: Sequence[str]) -> str:
    missing = [LOADS[load].title for load in TABLES if load not in present]
    lacking = f" Not found, and left out: {listed(missing)}." if missing else ""
    small = (
        "\n**A small one**: every cell is played with a few requests; its figures say nothing.\n"
        if reader.quick
        else ""
    )
    most = [f"{running_at_most(HEAVY[g], JSQ.title, g):.1f} at {g}" for g in HEAVY]
    return f"""# BalanceRoute, in virtual time

Written by `make results NAME=balanceroute TRACES=dir`; do not edit. It holds the gateway's decode tier against what
BalanceRoute (arXiv, 2026) published; [docs/predictors.md](../predictors.md) says what predicts.{lacking}
{small}
What plays is the tier that gateways have (`gateway/core/features/disaggregated`): its pool and the bound of that, a
tick at most every 10 ms, progress asked for at most every 100 ms, KV transfer (2 ms and 6.5 µs a token) after a slot is
free. Workers are modelled (`loadgen/engine/decode_group.py`): each step of all takes 10 ms and 250 ns for each KV token
of the fullest;
prompts have been read when they come. At the start workers are full of requests in mid-life; a quarter of those that
follow is not counted. A prompt's KV cache is kept for 480 s, as by the connector that the paper had; what the gateway's
default of 30 s changes stands below. Where nothing else is said, a worker runs at most {plan.BATCH} requests at a
time: the paper's text lost its batch limit, and by Little's law its figures leave room, in the mean, for at most
{listed(most)} workers.

*max − min* is the mean over all steps; *Σ (max − L)* is what the derivation has. Ratios compare runs that were asked
the same: medians of {len(plan.SEEDS)} seeds at 8 workers, in brackets the lowest and the highest; one seed elsewhere.

Of what a request holds, its prompt is known when it is placed, and nothing else can be chosen. ServeGen's reasoning is
real, and has short prompts and long answers; Azure's is capped, and only answers of at least 400 tokens are taken, as
the paper took the 2024 trace, which is not published by request; the third is made up: prompts log-normal around 1,100
tokens, answers around 270.
"""


def _aims(reader: Reader, several: Sequence[Comparison]) -> Section:
    rows, met = [], [0, 0]
    for each in several:
        if each.workers != 8:
            continue
        for run in (ORACLE, EXACT, BR_0):
            divided, faster = AIMS[run.title]
            strongest = reader.strongest(each)
            ours, gain = reader.divided(each, run), reader.faster(each, run, strongest)
            assert ours is not None
            assert gain is not None
            met = [met[0] + (ours.median >= divided), met[1] + (gain.median >= faster)]
            most = measured(reader.of(each, strongest), tables.perfect)
            rows.append(
                (
                    f"{LOADS[each.load].title.split(':')[0]}; {tables.brief(each.regime)}; {run.title}",
                    f"{tables.spread(ours, '÷', 1)} of ÷ {divided}",
                    _short(ours.median / divided - 1, "%"),
                    f"{tables.spread(gain, '×', 3)} of × {faster:.2f}",
                    _short(gain.median - faster, " points"),
                    tables.shown(most, ".3f", "× "),
                    strongest.title,
                )
            )
    head = ("", "JSQ's max − min over it, of the aim", "", "tokens/s to the strongest baseline, of the aim", "",
            "in perfect balance", "the strongest")  # fmt: skip
    text = "\n".join(
        [
            "## Aims\n",
            "The paper's gains at 8 workers, in its own metric, at each load: the paper says *heavy*, and not which."
            f" Of {len(rows)} rows, {met[0]} reach its imbalance and {met[1]} its throughput.\n",
            table(head, rows),
            "*In perfect balance*: what that baseline's own requests would give, equally spread at every step. Whoever"
            " takes others first may hold less for a while, and pass it.\n",
            _WHY,
        ]
    )
    return Section(text)


def _short(by: float, unit: str) -> str:
    return "met" if by >= 0 else f"{100 * by:.0f}{unit}"


_LITTLE = [running_at_most(HEAVY[8], run.title, 8) for run in (JSQ, ORACLE)]
_WHY = f"""Why, as far as the figures below tell:

- **A policy chooses with prompts alone.** What a worker loses when an answer ends is a prompt and an answer; what it
  can be given is a prompt. On ServeGen's reasoning a prompt of 200 tokens follows an answer of many times that, so
  that most of a gap stays until later slots fill it; where prompts are most of what a request holds (the third load,
  and both of those kept aside) the same code gains several times more.
- **How many slots get free.** With batches of 64 a worker is corrected four times as often as with 16.
- **The pool.** In balance, those who leave the pool are as heavy as those who come: the heaviest go first, and light
  ones remain, however many wait. Only while far more comes than fits are there heavy ones to choose among, which is
  what a trace replayed at *heavy load* has until it ends (the third kind of load here), and no service has for long.
  The gateway lets in 32 more than there is room for, since waiting belongs before prefill.
- **The baselines here are stronger.** They, too, wait in the pool for a free slot, and never queue at a full worker
  while another has room. The paper's send at once. By Little's law its figures are {_LITTLE[0]:.1f} requests at a time
  on each worker with JSQ and {_LITTLE[1]:.1f} with oracle BR-H: much of its throughput is slots that stood empty.
- **Throughput** is won from what steps wait for the fullest worker. Where perfect balance
  would give little, as on the capped load, nobody can win more.
"""


def _predictors(table_3: str | None) -> Section:
    told = table_3 or "Not scored in this run; [docs/predictors.md](../predictors.md) has the table.\n"
    return Section(
        "## Table 3: predictors\n\n`nightside results predictors`, H = 48: AUC and Brier of whether a request leaves"
        " within the horizon, MAE of when, in tokens. None of the recorded loads of long answers has prompts that"
        f" recur; on those ExactMatch goes by the length of the prompt.\n\n{told}"
    )


_STAGES = (("p50_ms", "p50"), ("p99_ms", "p99"), ("prepare_p50_ms", "prepare"), ("aged_p50_ms", "aged"),
           ("greedy_p50_ms", "stage 1"), ("refined_p50_ms", "stage 2"))  # fmt: skip


def _ticks(ticks: Mapping[str, Any] | None) -> Section:
    parts = ["## What a tick costs\n"]
    if ticks is None:
        parts.append(
            "Not measured in this run: `nightside bench decode --json > docs/results/decode.json`, then again.\n"
        )
    for kind, cells in (ticks or {}).items():
        rows = [
            (name, *(f"{cell[key]:.3f}" if key in cell else NOTHING for key, _ in _STAGES), f"{cell['admitted']:.1f}")
            for name, cell in cells.items()
            if name != "growth"
        ]
        growth = [f"{name.replace('_', ' ')} {value:.2f}" for name, value in cells.get("growth", {}).items()]
        parts += [f"### The {kind} core\n",
                  "CPU time in milliseconds, by `nightside bench decode`; stages at their medians.\n",
                  table(("", *(title for _, title in _STAGES), "admitted"), rows)]  # fmt: skip
        if growth:
            parts.append(f"It grows as a power of workers and of those who wait: {listed(growth)}.\n")
    return Section("\n".join(parts))


def _aside(reader: Reader, present: Sequence[str], *, look: bool) -> Section:
    parts = ["## Kept aside\n", "Two loads that nothing was chosen on. Expected, before they were played:\n",
             f"> {' '.join(EXPECTED.split())}\n"]  # fmt: skip
    if not look:
        parts.append("They were not played in this run (`--look`).\n")
        return Section("\n".join(parts))
    parts += [f"Found: {FOUND}\n"] if FOUND else []
    for each in plan.aside(reader.quick):
        if each.load in present:
            parts += [f"### {LOADS[each.load].title}; {each.regime.title}\n", tables.comparison_table(reader, each)]
    return Section("\n".join(parts))


def rows_of(reader: Reader) -> list[Figures]:
    """Every cell as a flat JSON row."""
    return [
        {"load": s.load, "policy": str(s.policy), "predictor": s.predictor, "workers": s.workers, "batch": s.batch,
         "offered": s.offered, "room_margin": s.room_margin, "seed": s.seed}
        | {key: value for key, value in figures.items() if key != "loads"}
        for s, figures in reader.results.items()
    ]  # fmt: skip
