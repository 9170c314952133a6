"""Assembles ELDR's page from the results: the aims and by how much they are missed, then every figure with the paper's
beside it. It plays nothing."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.figures import Figures
from loadgen.pages.markdown import NOTHING, table
from loadgen.studies.eldr import paper
from loadgen.studies.eldr.notes import NOTES
from loadgen.studies.eldr.plan import BALANCERS, POLICIES, Results
from loadgen.studies.eldr.spreads import LANGUAGES, TASKS
from loadgen.studies.eldr.unions import BATCHES, mean_union
from loadgen.studies.eldr.workloads import DRIFTED, Workload

NAME = "eldr.md"
_TITLES = {
    "random": "random",
    "round_robin": "round robin",
    "power_of_two": "power of two choices",
    "join_shortest_queue": "join shortest queue",
    "domain": "Domain (told the label)",
    "eldr": "ELDR",
}


def page_of(results: Results, *, quick: bool) -> str:
    parts = [
        _head(results, quick=quick),
        _aims(results),
        _signatures(results),
        _unions(results.workloads),
        _main(results),
        *(_section(results, name) for name in _SECTIONS),
        _drift(results),
        _costs(results),
        _constants(results),
    ]
    return "\n".join(parts)


def _head(results: Results, *, quick: bool) -> str:
    sizes = results.sizes
    small = "\n**A small one**: a few requests of a small model; its figures say nothing.\n" if quick else ""
    absent = (
        "" if any(each.name == "recorded" for each in results.workloads) else " The recorded routing was not found."
    )
    return f"""# ELDR, in virtual time

Written by `make results NAME=eldr TRACES=dir`; do not edit. It holds expert locality
([docs/expert_locality.md](../expert_locality.md)) against what ELDR
(arXiv, 2026) published.{absent}
{small}
What decides is what gateways have: the decode tier, the policy `eldr`, the comparison of counts with an artifact,
and the fit. What is modelled is the pool: {sizes.prefill} prefill and {sizes.decode} decode workers
({sizes.prefill}P{sizes.decode}D), Poisson arrivals for {sizes.seconds:g} s of which the first {sizes.warm_up_s:g} s
are not counted, {sizes.output_tokens} tokens an answer whatever it says, at most 256 requests a worker. The paper
holds each rate for 120 s
with 30 s of warm-up, on MI300X; ours are shorter, and nothing ran on a GPU. A decode step takes t₀ + KV tokens read
+ Σ over layers of (a + distinct experts · b); [below](#constants) is where the constants come from. The mean number
of distinct
experts is worked out, not drawn: each request picks each expert with a probability of its own in every step. All
compared rows see the same arrivals.

Requests come from

- **recorded routing** of a real model (DeepSeek-V2-Lite, 26 layers, 6 of 64 experts) on four domains, in windows of
  128 tokens whose first half stands for a prompt and whose second half for its answer. There are 170 windows of 108
  documents; half
of the documents are calibration. They are prompts only, so prompt and answer are of one author; and 80 windows are
  drawn again and again.
- **a generator** of a model of Qwen3-30B-A3B's shape ({sizes.shape.layers} layers, {sizes.shape.picks} of
  {sizes.shape.experts} experts), whose four spreads were fitted to the recording's calibration half and committed
  before anything was routed (`spreads.py`): *as far
apart as recorded*. *As far apart as published* differs in one number alone, set likewise beforehand so that batches
  of one domain have {paper.FEWER_EXPERTS - 0.03:.0%} fewer experts than mixed ones, in the middle of the paper's
  Fig. 4. Tasks: {len(TASKS)} domains in the paper's
shares. Languages: {len(LANGUAGES)}, two of which are 75 %. {sizes.calibration:,} requests of calibration,
  {sizes.test:,} others of test. Within a domain the generator has no further structure, which a real model may have.
"""


# Aims


def _aims(results: Results) -> str:
    rows = []
    for workload in results.workloads:
        found = results.main[workload.name]
        fewer = _mean_change(found, "eldr", ("round_robin",), "experts")
        p50 = _mean_change(found, "eldr", BALANCERS, "tpot_p50_ms")
        p99 = _mean_change(found, "eldr", BALANCERS, "tpot_p99_ms")
        rows.append([workload.title, _percent(fewer), _percent(p50), _percent(p99)])
    rows.append(
        ["paper, tasks", _percent(-paper.FEWER_EXPERTS), _span(paper.TPOT_P50_TASKS), _span(paper.TPOT_P99_TASKS)]
    )
    rows.append(["paper, languages", NOTHING, _span(paper.TPOT_P50_LANGUAGES), _span(paper.TPOT_P99_LANGUAGES)])
    head = [
        "ELDR, mean over rates",
        "experts a step, to round robin",
        "TPOT p50, to the best balancer",
        "TPOT p99, likewise",
    ]
    return f"""## What was aimed at

At least 22 % fewer active experts a step than round robin, a median TPOT 7 to 14 % below the best of four balancers
and a p99 no worse, where domains are as far apart as the paper's; on the recording whatever it allows.

{table(head, rows)}
{NOTES["aims"]}"""


# Signatures


def _signatures(results: Results) -> str:
    rows = []
    for workload in results.workloads:
        scores = results.scores[workload.name]
        made = workload.fit(results.sizes.decode)
        named = scores.transformations
        kept = f"{len(made.artifact.mask)} of {workload.calibration.shape.layers}"
        rows.append(
            [
                workload.title,
                *(f"{named[name]:.3f}" for name in ("binary", "sqrt", "count", "count-idf")),
                f"{scores.masked:.3f}",
                kept,
            ]
        )
    head = ["ρ, on other documents", "binary", "sqrt", "count", "count-idf", "count-idf, chosen layers", "layers"]
    low, high = paper.MASK_GAIN
    return f"""## What a signature is made of

ρ (Eq. 1) between distances of signatures and distances of what answers pick, over pairs of test requests; weights
and layers are those of the calibration. Prompts of the two halves come from different documents, which a test
proves. Gate
probabilities and logits, the paper's two continuous ones, are not among what engines tell.

{table(head, rows)}
Paper, means of six cells: count-idf +{paper.IDF_GAIN:.3f} over count, chosen layers +{low} to +{high} over all.

{NOTES["signatures"]}"""


def _unions(workloads: Sequence[Workload]) -> str:
    rows = []
    for workload in workloads:
        cells = []
        for batch in BATCHES:
            mixed, one = (mean_union(workload.test, batch, is_mixed=each) for each in (True, False))
            cells.append(f"{mixed:.1f} → {one:.1f} ({_percent(one / mixed - 1)})")
        rows.append([workload.title, *cells])
    head = ["distinct experts a step and layer", *(f"batch of {batch}" for batch in BATCHES)]
    return f"""## What there is to win

Batches drawn from all domains, and from one (Fig. 4: 17 to 21 % fewer for tasks, 3 to 10 % for languages).

{table(head, rows)}"""


# Policies


def _main(results: Results) -> str:
    parts = ["## Beside the balancers\n"]
    for workload in results.workloads:
        found = results.main[workload.name]
        rates = sorted({rate for _, rate in found})
        rows = []
        for policy in POLICIES:
            cells = [_TITLES[policy]]
            for rate in rates:
                at = found[policy, rate]
                cells.append(
                    f"{at['experts']:.1f} · {at['tpot_p50_ms']:.2f} / {at['tpot_p99_ms']:.2f} · {at['ttft_p50_ms']:.0f}"
                )
            rows.append(cells)
        head = ["experts · TPOT p50 / p99 ms · TTFT p50 ms", *(f"{rate:g}/s" for rate in rates)]
        domain = _mean_change(found, "eldr", ("domain",), "tpot_p50_ms")
        said = f"Median TPOT of ELDR against Domain: {_percent(domain)}."
        parts.append(f"### {workload.title[0].upper()}{workload.title[1:]}\n\n{table(head, rows)}\n{said}\n")
    parts.append(f"{NOTES['main']}")
    return "\n".join(parts)


_SECTIONS = {
    "clusters": (
        "Clusters of one size",
        f"""Against round robin the paper has vanilla K-means at up to {paper.VANILLA_P50:+.1%} (p50) and
{paper.VANILLA_P99:+.1%} (p99), balanced at up to {paper.BALANCED_P50:+.1%} and {paper.BALANCED_P99:+.1%}.""",
    ),
    "bands": ("The band", f"τ; the paper's 0 has tails of up to {paper.NEAREST_P99:+.1%} against round robin."),
    "pools": (
        "Larger and smaller pools",
        "K clusters for K workers, the rate in proportion. Paper, languages, p50 / p99 against round robin: "
        + ", ".join(f"{k}: {p50:+.1%} / {p99:+.1%}" for k, (p50, p99) in paper.BY_K.items())
        + ".",
    ),
    "cache": (
        "With a prefix cache",
        """Prompts recur, and those that a prefill worker knows are not read again. Engines that count by KV block give
the same signature all the same; the last row is one that counts only what it reads.""",
    ),
    "sharded": (
        "Experts sharded over ranks",
        f"""Each decode worker is four engines that have a quarter of each layer's experts; a layer takes as long as the
one that reads most. Paper, 235 B, with placement: median TPOT {paper.SHARDED[0]:+.1%} to {paper.SHARDED[1]:+.1%}.""",
    ),
    "bases": (
        "What t₀ does",
        """t₀ is what a step takes besides experts and KV. It is not published, and was not measured: gains in TPOT
shrink with it, those in experts do not.""",
    ),
    "together": (
        "Together with BR-H",
        """Four groups of four ranks that step in time, or sixteen that stand alone; answers log-normal (σ = 0.8) around
the same mean, prompts ten times as long, and an oracle that knows lengths, so that what looking ahead can give is
there. *In bands* is `br_h_local`; *λ* adds the cosine to the score instead.""",
    ),
}


def _section(results: Results, name: str) -> str:
    title, said = _SECTIONS[name]
    found = results.sections[name]
    parts = [f"## {title}\n\n{said}\n"]
    for workload in results.workloads:
        rows = [(row, each) for (of, row), each in found.items() if of == workload.name]
        if rows:
            parts.append(f"{workload.title[0].upper()}{workload.title[1:]}:\n\n{_figures(rows)}")
    parts.append(NOTES.get(name, ""))
    return "\n".join(parts)


def _figures(rows: Sequence[tuple[str, Figures]]) -> str:
    head = ["", "experts a step", "TPOT p50 ms", "TPOT p99 ms", "TTFT p50 ms", "tokens/s", "busiest worker"]
    cells = [
        [
            row,
            f"{each['experts']:.1f}",
            f"{each['tpot_p50_ms']:.2f}",
            f"{each['tpot_p99_ms']:.2f}",
            f"{each['ttft_p50_ms']:.0f}",
            f"{each['tokens_per_s']:,.0f}",
            f"× {each['busiest']:.2f}",
        ]
        for row, each in rows
    ]
    return table(head, cells)


def _drift(results: Results) -> str:
    rows = []
    for (_, row), each in results.sections["drift"].items():
        parts = [f"{part:.1f}" for part in each["experts_by_part"]]
        before, after = parts[0], parts[1]
        last = parts[2] if len(parts) > 2 else after
        rows.append([row, before, after, last, f"{each['tpot_p50_ms']:.2f}", f"{each['tpot_p99_ms']:.2f}"])
    head = ["experts a step", "before", "after the shift", "after the re-fit", "TPOT p50 ms", "p99 ms"]
    share = sum(DRIFTED[name] for name in DRIFTED if name not in TASKS) / sum(DRIFTED.values())
    return f"""## Drift

Tasks as far apart as published; halfway the mix changes, and {share:.0%} of what comes then is of two domains that
the calibration has never seen. *Fitted again*: from three quarters on, to another draw of the new mix, with
centroids where the old
ones stood that they are most like.

{table(head, rows)}
{NOTES["drift"]}"""


def _costs(results: Results) -> str:
    rows, aim = [], paper.ROUTE_MS
    for (workers, core), each in results.costs.items():
        cells = [
            f"{each[name]['p50_ms']:.3f} / {each[name]['p99_ms']:.3f}"
            for name in ("unpacked", "compared", "chosen", "all")
        ]
        rows.append([str(workers), core, *cells])
    within = [f"{workers} {core}" for (workers, core), each in results.costs.items() if each["all"]["p50_ms"] <= aim]
    head = ["workers", "core", "unpacked", "compared", "chosen", "together"]
    kept = []
    for workers, journal in results.journal.items():
        kept.append(
            [
                str(workers),
                f"{journal['cosines']:,}",
                f"{journal['counts_packed']:,}",
                f"{journal['counts_unpacked']:,}",
                f"{journal['encode_cosines_ms'] * 1e3:.1f} / {journal['encode_counts_ms'] * 1e3:.1f}",
            ]
        )
    kept_head = ["workers", "cosines, bytes", "counts as they came", "counts unpacked", "writing, µs"]
    sizes = results.sizes
    return f"""## What a decision costs

Milliseconds of computing at p50 / p99 on the machine that wrote this page, with the core in plain Python and as mypyc
compiles it: from what a prefill says (48 × 128 counts) to a worker, with a signature of 2,048 dimensions and 30
requests in flight at each worker (aim: {aim} ms; the paper's router takes that at K = 16).

{table(head, rows)}
Within the aim at the median: {", ".join(within) or "none"}. With 144 workers the choice looks at each one's cosine and
at how much each has in flight; most of the rest is unpacking, which is inflating twelve kilobytes.

What a request adds to the journal, beside {results.journal[min(results.journal)]["plain"]} bytes of the event that
carries it ([decision](../decisions/0011-cosines-not-counts.md)):

{table(kept_head, kept)}
A fit to {sizes.calibration:,} requests of {sizes.shape.layers} × {sizes.shape.experts} for {sizes.decode} workers
took {results.fit["s"]:.1f} s on the clock and {results.fit["computed_s"]:.1f} s of computing (aim: under
{paper.FIT_S} s on two cores). It holds about as much as four calibrations: 200 MB.
"""


def _constants(results: Results) -> str:
    lines = []
    for workload in results.workloads:
        costs = workload.costs
        lines.append(
            [
                workload.title,
                f"{costs.base_ns / 1e6:g} ms",
                f"{costs.layer_ns / 1e3:.1f} µs",
                f"{costs.expert_ns / 1e3:.2f} µs",
                f"{costs.kv_token_ns} ns",
            ]
        )
    head = ["", "t₀", "a, a layer", "b, an expert", "a KV token"]
    return f"""## Constants

No GPU was at hand: nothing here was measured on one. `python -m loadgen.bench.moe_layer` measures Fig. 2 and a sweep
of decode attention where there is one, and prints device, date and constants.

- **a : b, from the paper**: {paper.MOE_LAYER_RATIO} times as long with 128 active experts as with 16 means a =
  {paper.intercept_in_experts():.1f} · b. Used from 16 to 128 experts, which is where it was measured, and of a layer
  of Qwen3-30B-A3B; for the recording's
  model and for batches that read fewer it is a supposition.
- **b and KV, by arithmetic**: bytes of an expert and of a token's keys and values, over the 5.3 TB/s of an MI300X's
  data sheet. Real kernels reach less, and all of it alike would change no ratio but t₀'s share.
- **t₀: supposed**, see above. Reading a prompt takes 20 ms and 60 µs a token, handing it over 5 ms: for TTFT only,
  and supposed too.

{table(head, lines)}"""


def _mean_change(found: dict[tuple[str, float], Figures], policy: str, others: Sequence[str], figure: str) -> float:
    """Mean change over rates, against the best of the others at each rate."""
    rates = sorted({rate for _, rate in found})
    changes = [found[policy, rate][figure] / min(found[each, rate][figure] for each in others) - 1 for rate in rates]
    return float(sum(changes) / len(changes))


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")


def _span(span: tuple[float, float]) -> str:
    return f"{_percent(span[0])} to {_percent(span[1])}"
