"""Page of a fleet's plan: the needs of one pool and of two, at every threshold, by formula and as simulated. It shows
the document that it is given, and nothing that is not in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from loadgen.figures import Figures
from loadgen.pages.drawing import Line, Picture, lines
from loadgen.pages.markdown import NOTHING
from loadgen.pages.tables import Table, TableCell, TablePart, TableRow
from loadgen.pages.templates import render

MISSING = "price missing"
_HEADS = ("α", "ρ", "Eq. 7", "by formula", "saved", "as played", "saved", "GPUs", "a year")
SEATS = {
    "reserved": "slots reserve whole windows (as the token-budget paper counts)",
    "paged": "slots by what requests are likely to hold (paged KV, as vLLM allocates)",
}


def plan_page(document: Figures) -> str:
    return render(
        "plan.html",
        title=f"{document['load']['source']} on {document['profile']['name']}",
        document=document,
        facts=facts(document),
        seats=SEATS,
        fleets=[
            {
                **fleet,
                "table": fleet_table(fleet),
                "pools": pools_table(fleet),
                "region_table": region_table(fleet),
                "price_table": price_table(fleet),
            }
            for fleet in document["fleets"]
        ],
        picture=savings_picture(document["fleets"]),
    )


def savings_picture(fleets: Sequence[Figures]) -> Picture:
    """Picture of savings against the threshold, relative to one pool with the same kind of slots."""
    curves = []
    for fleet in fleets:
        for key, how in (("savings_share", "by formula"), ("verified_savings_share", "as played")):
            points = [
                (math.log2(each["threshold_tokens"]), max(0.0, 100 * each[key]))
                for each in fleet["splits"]
                if each[key] is not None
            ]
            if points:
                curves.append(Line(f"{fleet['seats']}, {how}", points))
    return lines(
        "Instances saved by a split, against its threshold",
        curves,
        "threshold, tokens",
        "saved, % of one pool's (0: none, or more are needed)",
        in_k,
    )


def in_k(power: float) -> str:
    tokens = round(2**power)
    return f"{tokens / 1024:g}K" if tokens >= 1024 else f"{tokens}"


def facts(document: Figures) -> list[str]:
    """Assumptions of the plan, in sentences."""
    profile, load, slo, trial = (document[key] for key in ("profile", "load", "slo", "trial"))
    price = profile["price"]
    told = [
        f"{profile['model']} on {profile['tensor_parallel']} × {profile['gpu']}: {profile['kv_tokens']:,} tokens of KV"
        f" cache, windows of up to {profile['context_tokens_max']:,}. {profile['source']}.",
        *(f"Override: {each}." for each in profile["overrides"]),
        f"One GPU for an hour: {price['usd_per_hour']:.2f} $ ({price['source']}; {price['date']})."
        if price
        else "One GPU for an hour: missing; a profile of your own, or --price, says it.",
        f"{load['rate_per_s']:,.6g} requests/s as in {load['source']}: prompts of {load['prompt_tokens_mean']:,.0f} and"
        f" answers of {load['output_tokens_mean']:,.0f} tokens in the mean, together"
        f" {load['total_tokens']['p50']:,} (p50), {load['total_tokens']['p99']:,} (p99).",
        f"Objectives: TTFT at most {slo['ttft_s']:g} s and TPOT at most {slo['tpot_ms']:g} ms, each for all but"
        f" {slo['late_share']:.0%} of all requests, of which each of two pools may have half; none preempted.",
    ]
    if load["too_long_share"] > 0:
        told.append(f"{load['too_long_share']:.2%} of requests fit into no window and are refused, not planned for.")
    if trial:
        told.append(
            f"As played: a slice of {trial['instances']} instances in virtual time, steady state,"
            f" {trial['requests_min']:,} to {trial['requests_max']:,} requests, seed {trial['seed']}."
        )
    return [*told, *(f"Supposed: {each}." for each in load["notes"])]


def fleet_table(fleet: Figures) -> Table:
    rows = [TableRow("one pool", _whole_cells(fleet["homogeneous"]))]
    rows += [
        TableRow(
            f"{each['threshold_tokens']:,}"
            + (" (best)" if each["threshold_tokens"] == fleet["best_threshold_tokens"] else ""),
            _split_cells(each),
        )
        for each in fleet["splits"]
    ]
    return Table("Fleets by threshold", ["split at", *_HEADS], [TablePart("", rows)])


def _whole_cells(whole: Figures) -> list[TableCell]:
    instances, verified = TableCell(count(whole["instances"])), TableCell(count(whole["verified_instances"]))
    totals = TableCell(count(_gpus(whole))), TableCell(money(_cost(whole)))
    return [*_dashes(3), instances, *_dashes(1), verified, *_dashes(1), *totals]


def _split_cells(each: Figures) -> list[TableCell]:
    return [
        TableCell(f"{each['short_share']:.1%}"),
        TableCell(NOTHING if each["gain"] is None else f"{each['gain']:.2f}"),
        TableCell(percent(each["closed_form_savings_share"])),
        TableCell(count(each["instances"]), _parts(each, "instances")),
        TableCell(percent(each["savings_share"])),
        TableCell(count(each["verified_instances"]), _parts(each, "verified_instances")),
        TableCell(percent(each["verified_savings_share"])),
        TableCell(count(_gpus(each))),
        TableCell(money(_cost(each))),
    ]


def _parts(each: Figures, key: str) -> str:
    return f"{count(each['short'][key])} + {count(each['long'][key])}"


def _gpus(whole: Figures) -> int | None:
    found: int | None = whole["gpus"] if whole["verified_gpus"] is None else whole["verified_gpus"]
    return found


def _cost(whole: Figures) -> float | None:
    found: float | None = whole["usd_per_year"] if whole["verified_gpus"] is None else whole["verified_usd_per_year"]
    return found


_POOL_HEADS = ("window", "slots", "requests/s", "μ by formula", "carried as played", "TTFT p99, s", "TPOT p99, ms",
               "limited by")  # fmt: skip


def pools_table(fleet: Figures) -> Table:
    """Table of the single pool, and of the best split."""
    parts = [TablePart("one pool", [_pool_row(fleet["homogeneous"]["pool"])])]
    parts += [
        TablePart(f"split at {each['threshold_tokens']:,}", [_pool_row(each["short"]), _pool_row(each["long"])])
        for each in fleet["splits"]
        if each["threshold_tokens"] == fleet["best_threshold_tokens"]
    ]
    return Table("One instance of each pool", ["", *_POOL_HEADS], parts)


def _pool_row(pool: Figures) -> TableRow:
    played: dict[str, Any] = pool["played"] or {}
    texts = (f"{pool['context_tokens']:,}", f"{pool['slots']}", f"{pool['rate_per_s']:,.1f}",
             _figure(pool["throughput_per_s"]), _figure(pool["carried_per_s"]), _figure(played.get("ttft_p99_s")),
             _figure(played.get("tpot_p99_ms"), 0), pool["limited_by"] or NOTHING)  # fmt: skip
    return TableRow(pool["name"], [TableCell(text) for text in texts])


def region_table(fleet: Figures) -> Table | None:
    designs = fleet["regions"]
    if not designs:
        return None
    rows = []
    for name, told in designs.items():
        if told is None:
            rows.append(TableRow(name, _dashes(2)))
            continue
        local, pooled = told["region_local_instances"], told["pooled_instances"]
        by_region = "; ".join(f"{region} {sum(pools.values())}" for region, pools in told["by_region"].items())
        rows.append(TableRow(name, [TableCell(f"{local:,}", by_region), TableCell(f"{pooled:,}")]))
    return Table(
        "By region", ["", "each region for its own peak", "all regions for their common peak"], [TablePart("", rows)]
    )


def price_table(fleet: Figures) -> Table | None:
    """Costs of each design over a day; None where no prices were given."""
    designs = {name: told for name, told in (fleet["regions"] or {}).items() if told and "day" in told}
    if not designs:
        return None
    rows: list[TableRow] = []
    for name, told in designs.items():
        day = told["day"]
        rows.append(TableRow(name, _priced_cells(day["weekday"], day["weekend"])))
        rows += [
            TableRow(f"  {region}", _priced_cells(each, day["weekend"]["regions"][region]))
            for region, each in day["weekday"]["regions"].items()
        ]
        rows += [
            TableRow(f"  {region}", [TableCell("not in the price list"), *_dashes(3)]) for region in day["unpriced"]
        ]
    currency = next(iter(designs.values()))["day"]["currency"]
    heads = ["", f"{currency} a weekday", "kg CO2", f"{currency} a day of a weekend", "kg CO2"]
    return Table("Over a day", heads, [TablePart("", rows)])


def _priced_cells(*days: Figures) -> list[TableCell]:
    return [TableCell(text) for each in days for text in (f"{each['money']:,.2f}", f"{each['carbon_kg']:,.1f}")]


def _dashes(number: int) -> list[TableCell]:
    return [TableCell(NOTHING)] * number


def count(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1%}"


def money(usd: float | None) -> str:
    """Amount of money as text; a missing price is never shown as zero."""
    if usd is None:
        return MISSING
    return f"{usd / 1e6:,.2f} M$" if usd >= 1e6 else f"{usd:,.0f} $"


def _figure(value: float | None, digits: int = 2) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"
