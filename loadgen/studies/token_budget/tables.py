"""The sections of the token-budget page: the paper's figures beside the measured ones, as tables and a plot. They show
results of cells only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from loadgen.figures import Figures
from loadgen.pages.drawing import Line, lines
from loadgen.pages.markdown import NOTHING, bullets, listed, table
from loadgen.pages.plan import in_k
from loadgen.pages.templates import picture_file
from loadgen.planner.cited import LLAMA_3_70B_A100, QWEN3_235B_MI300X
from loadgen.planner.fleet import Seats, Sizing, savings
from loadgen.studies.skywalker.reader import Section
from loadgen.studies.token_budget import days, paper, plan, tuning
from loadgen.studies.token_budget.plan import Setting
from loadgen.studies.token_budget.workloads import EARLIER_SHARE, WORKLOADS

FIGURE_6 = "token-budget-fig6.svg"


class Reader:
    """Looks up the figures of settings."""

    def __init__(self, results: Mapping[Setting, Figures], present: Sequence[str], *, quick: bool) -> None:
        self.results = results
        self.present = present
        self.quick = quick

    def of(self, setting: Setting) -> Figures:
        return self.results[setting]


# Tables 2, 5 and Fig. 6


def table_2(reader: Reader) -> Section:
    rows = []
    for load in paper.LOADS:
        found = reader.of(Setting("sized", load.name, quick=reader.quick))
        reserved, paged = found["fleets"]
        split, played = _split(reserved["formula"], paper.THRESHOLD), _split(reserved["played"], paper.THRESHOLD)
        whole, whole_played = reserved["formula"]["homogeneous"], reserved["played"]["homogeneous"]
        rows += [
            (
                f"{load.name}, the paper",
                f"{load.homogeneous}",
                f"{load.short} + {load.long}",
                f"{load.short + load.long}",
                f"{load.savings:.1%}",
            ),
            (
                f"{load.name}, by formula",
                _count(whole["instances"]),
                _parts(split, "instances"),
                _count(split["instances"]),
                _percent(split["savings_share"]),
            ),
            (
                f"{load.name}, as played",
                _count(whole_played["verified_instances"]),
                _parts(played, "verified_instances"),
                _count(played["verified_instances"]),
                _percent(played["verified_savings_share"]),
            ),
            _paged_row(load.name, paged["played"]),
        ]
    head = ("", "one pool", "short + long", "split at 8,192", "saved")
    checks = []
    for load in paper.LOADS:
        sizing = Sizing(LLAMA_3_70B_A100, load.lengths(), paper.RATE_PER_S, Seats.RESERVED)
        split_size = sizing.split(paper.THRESHOLD)
        ours = (
            sizing.homogeneous().throughput_per_s,
            split_size.short.throughput_per_s,
            split_size.long.throughput_per_s,
        )
        told = " / ".join(NOTHING if each is None else f"{each:g}" for each in load.throughputs)
        checks.append(
            f"{load.name}: μ of one pool / short / long {' / '.join(f'{each:.2f}' for each in ours)}, the paper {told};"
            f" α = {split_size.short.share:.3f}; Eq. 7 promises {_percent(split_size.closed_form)}."
        )
    return Section(
        "## Table 2: instances at 1,000 requests/s\n\nThe paper's loads are rebuilt: it published statistics of them"
        " and no curve (`loadgen/studies/token_budget/paper.py` says how).\n\n"
        + table(head, rows)
        + "\n"
        + bullets(checks)
    )


def _paged_row(name: str, fleet: Figures) -> tuple[str, str, str, str, str]:
    split, whole = _split(fleet, paper.THRESHOLD), fleet["homogeneous"]
    return (
        f"{name}, as played, paged",
        _count(whole["verified_instances"]),
        _parts(split, "verified_instances"),
        _count(split["verified_instances"]),
        _percent(split["verified_savings_share"]),
    )


def figure_6(reader: Reader) -> Section:
    curves, rows = [], []
    for load in paper.LOADS:
        fleets = reader.of(Setting("sized", load.name, quick=reader.quick))["fleets"]
        for fleet in fleets:
            splits = fleet["formula"]["splits"]
            points = [(math.log2(each["threshold_tokens"]), max(0.0, 100 * each["savings_share"])) for each in splits]
            curves.append(Line(f"{load.name}, {fleet['formula']['seats']}", points))
            rows.append((curves[-1].name, *(_percent(each["savings_share"]) for each in splits)))
    plot = picture_file(
        lines("Instances saved by formula, against the threshold", curves, "threshold, tokens", "saved, %", in_k)
    )
    told = bullets([f"{name}, the paper: {words}." for name, words in paper.FIGURE_6.items()])
    text = (
        f"## Figure 6: savings against the threshold\n\n![Savings against the threshold]({FIGURE_6})\n\n"
        + table(("by formula", *(in_k(math.log2(each)) for each in paper.GRID)), rows)
        + "\n"
        + told
    )
    return Section(text, {FIGURE_6: plot})


def table_5() -> Section:
    profile = QWEN3_235B_MI300X
    sizing = Sizing(
        profile,
        paper.AZURE.lengths().cut(profile.context_tokens_max)[0] or paper.AZURE.lengths(),
        paper.TABLE_5_RATE_PER_S,
        Seats.RESERVED,
    )
    whole, split = sizing.homogeneous(), sizing.split(paper.THRESHOLD)
    rows = []
    for name, nodes in (("homogeneous", whole.instances), ("split", split.instances)):
        told = paper.TABLE_5[name]
        cost = None if nodes is None else profile.yearly_usd(nodes)
        recomputed = profile.yearly_usd(told.nodes)
        assert recomputed is not None, "its price is the paper's"
        rows.append(
            (
                name,
                f"{told.nodes}",
                f"{told.gpus:,}",
                f"{told.musd_per_year:.1f} M$",
                f"{recomputed / 1e6:.1f} M$",
                _count(nodes),
                NOTHING if cost is None else f"{cost / 1e6:.1f} M$",
            )
        )
    slots = f"{profile.slots_at(paper.THRESHOLD)} slots at 8K and {profile.slots_at(32_768)} at 32K"
    head = ("", "nodes, the paper", "GPUs", "a year", "recomputed", "nodes, ours", "a year")
    return Section(
        "## Table 5: Qwen3-235B on MI300X at 10,000 requests/s\n\n"
        + table(head, rows)
        + f"\nEq. 1 and 2 give {slots} as the paper has it, 23.5 KiB a token on each GPU. *Recomputed*: its nodes ×"
        " 8 GPUs × 3.67 $ × 8,760 h. *Ours*: the Azure-derived load up to 32K by formula, with iteration times that we"
        " derived from the data sheet (the paper gives none, nor its load), so that only the ratio may be compared:"
        f" {_percent(savings(split.instances, whole.instances))} saved, the paper 30.5 %.\n"
    )


# Recorded loads


def real(reader: Reader) -> Section:
    rows = []
    for name in reader.present:
        found = reader.of(Setting("sized", name, quick=reader.quick))
        for fleet in found["fleets"]:
            rows += _real_rows(WORKLOADS[name].title, fleet)
    head = (
        "",
        "one pool, by formula",
        "as played",
        "threshold",
        "α",
        "split, by formula",
        "saved",
        "as played",
        "saved",
        "limited by",
    )
    titles = [
        f"{each.title}: window of {each.context_tokens:,}, TTFT ≤ {each.ttft_s:g} s; {each.note}."
        for name, each in WORKLOADS.items()
        if name in reader.present
    ]
    return Section(
        "## Recorded loads\n\nThe same profile at 1,000 requests/s: at 8,192 and at the best threshold by formula"
        " (of 1K to 32K).\n\n" + table(head, rows) + "\n" + bullets(titles)
    )


def _real_rows(title: str, fleet: Figures) -> list[tuple[str, ...]]:
    formula, played = fleet["formula"], fleet["played"]
    rows: list[tuple[str, ...]] = []
    for split in played["splits"]:
        by_formula = _split(formula, split["threshold_tokens"])
        limits = " / ".join(
            dict.fromkeys(_short(each) for each in (split["short"]["limited_by"], split["long"]["limited_by"]) if each)
        )
        rows.append(
            (
                f"{title}, {formula['seats']}",
                _count(formula["homogeneous"]["instances"]),
                _count(played["homogeneous"]["verified_instances"]),
                f"{split['threshold_tokens']:,}",
                f"{split['short_share']:.1%}",
                _count(by_formula["instances"]),
                _percent(by_formula["savings_share"]),
                f"{_count(split['verified_instances'])} ({_parts(split, 'verified_instances')})",
                _percent(split["verified_savings_share"]),
                limits or NOTHING,
            )
        )
    return rows


def _short(limit: str) -> str:
    return limit.partition(":")[0] if ":" in limit else "preemption" if "preempted" in limit else limit


# Table 3


def table_3(reader: Reader) -> Section:
    rows = []
    for design, told in paper.TABLE_3.items():
        rows.append(
            (
                f"{design}, the paper",
                f"{told.ttft_p50_s:.2f}",
                f"{told.ttft_p99_s:.2f}",
                f"{told.tpot_p50_ms:.0f}",
                f"{told.tpot_p99_ms:.0f}",
                "10,000",
            )
        )
        for moment, words in (("transient", "its ten seconds"), ("steady", "steady state")):
            found = reader.of(Setting("latency", paper.AZURE.name, design, moment, quick=reader.quick))
            rows.append(
                (
                    f"{design}, {words}",
                    f"{found['ttft_p50_s']:.2f}",
                    f"{found['ttft_p99_s']:.2f}",
                    f"{found['tpot_p50_ms']:.0f}",
                    f"{found['tpot_p99_ms']:.0f}",
                    f"{found['requests']:,}",
                )
            )
    head = ("Azure-derived, its fleet sizes", "TTFT p50, s", "p99", "TPOT p50, ms", "p99", "requests")
    return Section(
        "## Table 3: what requests wait for\n\n"
        + table(head, rows)
        + "\nThe paper sends 10,000 requests at 1,000 a second to an empty fleet, and leaves out the first fifth: its"
        " ten seconds are over before slots are taken (a long request takes 43 s). Fleets are sized for what comes"
        " after. Slices of each pool, counted by their shares of requests.\n"
    )


# Self-tuning threshold


def tuned(reader: Reader) -> Section:
    loads = [load for load in (plan.CHOSEN_ON, *plan.LOADS_TUNED) if load == plan.CHOSEN_ON or load in reader.present]
    rows, met, better = [], 0, 0
    seeds = tuning.SEEDS[:1] if reader.quick else tuning.SEEDS
    for load in loads:
        for condition in tuning.CONDITIONS:
            shares = {threshold: _good(reader, load, condition, threshold, seeds) for threshold in (*tuning.GRID, 0)}
            best = max(tuning.GRID, key=lambda threshold: shares[threshold])
            gap = shares[0] - shares[best]
            if load != plan.CHOSEN_ON:
                met += gap >= -0.02
                better += gap > 0
            title = WORKLOADS[load].title if load in WORKLOADS else f"{load} (chosen on)"
            moves = [sum(_cell(reader, load, condition, 0, seed)["moves"].values()) for seed in seeds]
            rows.append(
                (
                    f"{title}, {condition}",
                    *(_percent(shares[each]) for each in tuning.GRID),
                    _percent(shares[0]),
                    f"{in_k(math.log2(best))}",
                    f"{100 * gap:+.1f}",
                    f"{median(moves):g}",
                )
            )
    played = len(rows) - len(tuning.CONDITIONS)
    head = (
        "served in time",
        *(in_k(math.log2(each)) for each in tuning.GRID),
        "tuned",
        "best",
        "tuned − best, points",
        "moves",
    )
    said = (
        f"Of {played} rows of recorded loads, {met} are within 2 points of the best threshold that stands still,"
        f" without knowing it, and {better} above it.\n"
        if played
        else "No recorded load was found.\n"
    )
    return Section(
        f"""## A threshold that tunes itself

Requests served with TTFT ≤ {tuning.TTFT_S:g} s, TPOT ≤ {tuning.TPOT_MS:g} ms and an answer that is whole, of all. Two
pools of quarter engines (16,384 KV blocks); the short one takes {tuning.WINDOW:,} tokens with 32 slots, more than its
cache holds if all are long. Fleets are sized by the first {EARLIER_SHARE:.0%} of each load, at 8,192, for 0.8 of what
they carry by formula; the rest is played. Lengths are estimated as gateways do; half of all clients name a maximum.
*Drift*: from the middle on a fifth of all requests is taken from the longest fifth. *Burst*: for 15 % of the requests
the same, at twice the rate. The grid is {listed([f"{each:,}" for each in tuning.GRID])}; seeds
{listed([str(each) for each in seeds])}, medians; what is tuned begins at {tuning.HOME:,}. Its settings were chosen on
the Azure-derived load, and recorded loads were kept aside until then.

"""
        + table(head, rows)
        + "\n"
        + said
    )


def _cell(reader: Reader, load: str, condition: str, threshold: int, seed: int) -> Figures:
    return reader.of(Setting("tuned", load, condition=condition, threshold=threshold, seed=seed, quick=reader.quick))


def _good(reader: Reader, load: str, condition: str, threshold: int, seeds: Sequence[int]) -> float:
    found: float = median(_cell(reader, load, condition, threshold, seed)["good_share"] for seed in seeds)
    return found


# Pools and regions


def whole_days(reader: Reader) -> Section:
    rows = []
    for seats in Seats:
        base: int | None = None
        for design in days.DESIGNS:
            for routing in days.ROUTINGS:
                found = reader.of(Setting("day", str(seats), design, routing, quick=reader.quick))
                base = base or found["instances"]
                pools = "; ".join(
                    f"{name} {' + '.join(map(str, each['by_region']))}" for name, each in found["pools"].items()
                )
                requests = sum(each["requests"] for each in found["pools"].values())
                forwarded = (
                    sum(each["forwarded_share"] * each["requests"] for each in found["pools"].values()) / requests
                )
                rows.append(
                    (
                        f"{seats}: {design}, {routing}",
                        f"{found['instances']}",
                        pools,
                        f"{1 - found['instances'] / base:.1%}",
                        f"{forwarded:.1%}",
                    )
                )
    head = ("", "instances", "by region", "saved", "forwarded")
    return Section(
        f"""## Pools and regions together

The smallest fleet for one day in {listed(days.REGIONS)}, by playing it: requests as the Azure-derived load, TTFT ≤
2 s and TPOT ≤ 80 ms for all but 1 % of a day's requests, nobody preempted. Rates are one recorded weekday (Azure
2024, code), shifted in time by {listed([f"{each:g}" for each in days.AHEAD_HOURS])} hours: no region's own curve
could be had. A day is squeezed into an hour, engines have a quarter of the cache and of the slots, and each
region's peak is {days.PEAK_PER_S:g} requests/s. In the mesh a request stays while its region has a free slot, and
goes to the nearest that has one, for a round trip. Fleets are searched to
within one instance, or 2.5 %.

"""
        + table(head, rows)
    )


# Parts


def _split(fleet: Figures, threshold: int) -> Figures:
    found: Figures = next(each for each in fleet["splits"] if each["threshold_tokens"] == threshold)
    return found


def _parts(split: Figures, key: str) -> str:
    return f"{_count(split['short'][key])} + {_count(split['long'][key])}"


def _count(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f} %"
