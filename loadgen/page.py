"""The report as one HTML file that needs no network: what was run, which run did best, plots, and tables.

It draws what `results.json` holds, and nothing that is not in it; `docs/report.md` says what each figure is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from html import escape

from loadgen.drawing import Line, Scene, boxes, key, over_time, points_max, thinned
from loadgen.figures import Figures
from loadgen.verdict import POINTS_WITHIN, SAME_WITHIN, Verdict, verdicts

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #56616d; --faint: #d8dee4; --paper: #fff; --card: #f6f8fa;
  --run0: #2f6fde; --run1: #d1672b; --run2: #2d8f6f; --run3: #9a4fc4; --run4: #a37f00; --run5: #c43d6b;
  --run6: #35809c; --run7: #6f7440; --run8: #8c6d5a; --heat: 47,111,222; --fault: 196,61,61; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa7b4; --faint: #30363d; --paper: #0d1117;
  --card: #161b22; --run0: #6ea8ff; --run1: #f2955c; --run2: #5cc9a3; --run3: #c78bf0; --run4: #e0b93a; --run5: #f0789f;
  --run6: #7cc4de; --run7: #b9bf7c; --run8: #c7a590; --heat: 110,168,255; --fault: 255,123,114; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 70rem;
  margin: 2.5rem auto; padding: 0 1.25rem; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2.75rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; font-weight: 600; } p { margin: .25rem 0 1rem; max-width: 48rem; }
.card h3, .card h4 { margin: 0 0 .25rem; font-size: .95rem; }
.soft, caption, th { color: var(--soft); } code { font-size: .85em; } ul { padding-left: 1.25rem; }
.scroll { overflow-x: auto; overflow-wrap: normal; } .scroll:focus-visible { outline: 2px solid var(--run0); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .3rem; }
th, td { text-align: right; padding: .3rem .8rem; border-bottom: 1px solid var(--faint); white-space: nowrap; }
th:first-child { text-align: left; padding-left: 0; position: sticky; left: 0; background: var(--paper); }
th { font-weight: 500; } tbody th { color: var(--ink); font-weight: 400; } .unseen { color: var(--soft); }
tr.part th { padding-top: 1rem; font-weight: 600; } td small { color: var(--soft); margin-left: .4em; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: 1rem; }
.card { background: var(--card); border: 1px solid var(--faint); border-radius: 8px; padding: .8rem 1rem;
  min-width: 0; max-width: 36rem; }
.card th:first-child { background: var(--card); }
.answers { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(9.5rem, 100%), 1fr)); gap: 1rem;
  margin: 1rem 0; }
.answers dt { color: var(--soft); } .answers dd { margin: 0; } .answers .figure { font-size: 1.5rem; line-height: 1.3; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
svg .name { fill: var(--ink); font-size: 12px; } .grid { stroke: var(--faint); }
svg.boxes { width: 100%; max-width: 54rem; height: auto; display: block; }
svg.series { width: 100%; height: auto; display: block; }
.key { margin-right: 1.2em; white-space: nowrap; } .key svg { width: 1.7em; height: .7em; margin-right: .4em; }
.fault, .warm { fill: rgba(var(--fault), .14); } .warm { fill: var(--faint); opacity: .5; }
.swatch { display: inline-block; width: 1.1em; height: .8em; vertical-align: -.05em; margin-right: .4em; }
.flow td, .flow th { text-align: center; padding: .3rem .6rem; } .flow th:first-child { text-align: left; }
@media (max-width: 40rem) { body { margin-top: 1.25rem; } svg.boxes text { font-size: 19px; }
  svg.boxes .name { font-size: 21px; } th, td { padding: .3rem .5rem; }
  tbody th { white-space: normal; min-width: 8rem; } }
"""
_REGIONS_MAX = 12
"""Drawn."""
_REGIONS_LISTED_MAX = 100
_LISTED_MAX = 20
_UNSEEN = "not measured"
_NOTHING = "–"


def page_of(document: Figures) -> str:
    """A whole page."""
    runs = document["runs"]
    parts = [
        _what_was_run(document),
        _answer(runs),
        _faults(document["faults"]),
        _origins(document.get("origins")),
        _boxes(runs),
        _series_of(document),
        _flows(document),
        "<h2>Figures</h2>",
        _overview(runs),
        _by_region(document),
        _reasons(runs),
        _failures(runs),
        _WORDS,
    ]
    return _whole(document["scenario"], "".join(parts))


def sweep_page(title: str, cells: Sequence[tuple[str, Figures]]) -> str:
    """A grid of runs as one table, each row named after its variant and run."""
    rows = [
        (f"{name} {run['name']}", _cells(run["total"], _OF_A_VARIANT))
        for name, document in cells
        for run in document["runs"]
    ]
    heads = ["variant and run", *(title for title, _, _ in _OF_A_VARIANT)]
    table = _grid("", heads, rows, label="Every variant and run")
    return _whole(title, f"<h1>{escape(title)}</h1><h2>Figures</h2>{table}{_WORDS}")


def _whole(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}: Nightside report</title><style>{_STYLE}</style>"
        f"<body><main>{body}</main></body></html>\n"
    )


# What was run, and the answer


def _what_was_run(document: Figures) -> str:
    first = document["runs"][0]
    start_s, end_s = first["measured_s"]
    replicas = "" if document["replicas"] is None else f"{document['replicas']} replicas in "
    how = "measured on live endpoints" if first["system"] == "live" else "simulated"
    facts = [
        f"{replicas}{_counted(len(document['regions']), 'region')}, {how}",
        f"{end_s - start_s:g} s of load measured" + (f", after a warm-up of {start_s:g} s" if start_s else ""),
        f"seed {first['seed']}",
        _counted(len(document["runs"]), "run"),
    ]
    digest = "" if document["digest"] is None else f" · digest <code>{escape(document['digest'])}</code>"
    partial = "<p><b>Stopped before its time.</b></p>" if any(run.get("partial") for run in document["runs"]) else ""
    return (
        f"<h1>{escape(document['scenario'])}</h1><p>{escape(document['about'])}</p>"
        f"<p class=soft>{' · '.join(facts)}{digest}</p>{partial}{_sender(first)}"
    )


def _sender(run: Figures) -> str:
    """How far a live run's figures may be those of the machine that sent it."""
    words = []
    if run.get("machine_cpu") is not None:
        words.append(f"The machine that sent was {run['machine_cpu']['mean_share'] * 100:.0f} % busy.")
    if run.get("lag_ms") is not None:
        words.append(
            f"One request in a hundred left {run['lag_ms']['p99']:.0f} ms or more after it was due; that is counted."
        )
    return f"<p class=soft>{' '.join(words)}</p>" if words else ""


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _answer(runs: Sequence[Figures]) -> str:
    tiles = "".join(_tile(each, has_others=len(runs) > 1) for each in verdicts(runs))
    note = (
        "<p class=soft>The best figure, whose it is, and how the next and the last stand to it. What is less than"
        f" {SAME_WITHIN * 100:g} % apart, or {POINTS_WITHIN * 100:g} points of a share, counts as the same. One seed is"
        " one day: it does not say how much another would differ.</p>"
        if len(runs) > 1
        else ""
    )
    return f"<h2>In short</h2><dl class=answers>{tiles}</dl>{note}"


def _tile(verdict: Verdict, *, has_others: bool) -> str:
    title = verdict.title if has_others else _of_one(verdict.title)
    others = "".join(f"<div class=soft>{escape(each)}</div>" for each in verdict.others)
    return (
        f"<div class=card><dt>{escape(title)}</dt><dd><div class=figure>{escape(verdict.answer)}</div>"
        f"<b>{escape(verdict.best)}</b>{others}</dd></div>"
    )


def _of_one(title: str) -> str:
    """Without the superlative, where there is nothing to compare with."""
    return title.split(" ", 1)[1].capitalize() if not title.startswith("Lowest ") else title.removeprefix("Lowest ")


def _faults(faults: Sequence[Figures]) -> str:
    """One line for each, with all the times at which it strikes."""
    times: dict[str, list[str]] = {}
    for each in faults:
        times.setdefault(each["fault"], []).append(f"{each['from_s']:g} to {each['to_s']:g} s")
    rows = [f"<li>{escape(fault)}, {_some(spans)}</li>" for fault, spans in times.items()]
    return f"<h2>What goes wrong</h2><ul>{_some_rows(rows)}</ul>" if rows else ""


def _some(words: Sequence[str]) -> str:
    more = len(words) - _LISTED_MAX
    return ", ".join(words[:_LISTED_MAX]) + (f", and {more} more times" if more > 0 else "")


def _some_rows(rows: Sequence[str]) -> str:
    more = len(rows) - _LISTED_MAX
    return "".join(rows[:_LISTED_MAX]) + (f"<li>and {more} more</li>" if more > 0 else "")


def _origins(origins: Figures | None) -> str:
    """Only what was recorded needs to be said: from which file, and what of it is missing."""
    if origins is None:
        return ""
    lines = [_trace_line(each) for each in origins["traces"]]
    lines += [f"{each['workload']}: {each['questions']:,} questions of {each['file']}" for each in origins["questions"]]
    lines = [
        f"{escape(line)}{_unread(each)}"
        for line, each in zip(lines, [*origins["traces"], *origins["questions"]], strict=True)
    ]
    lines += [
        f"{escape(each['region'])}, {escape(each['workload'])}: <b>shifted</b> by {_hours(each['shifted_hours'])}, "
        "so that this is no curve that was measured there"
        for each in origins["clients"]
        if each["shifted_hours"]
    ]
    return f"<h2>What is asked</h2><ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>" if lines else ""


def _hours(hours: float) -> str:
    return f"{hours:+g} h" if abs(hours) >= 1 else f"{hours * 60:+g} min"


_CHANGED = (("speed", "{:g} times as fast"), ("scale_tokens", "with {:g} times the tokens"))
_LEFT_OUT = (
    ("outside_window", "{:,} outside the window"),
    ("sampled_out", "{:,} not in the sample"),
    ("over_requests_max", "{:,} over the limit of requests"),
    ("elsewhere", "{:,} of other regions"),
    ("inputs_cut", "{:,} inputs cut short"),
    ("outputs_cut", "{:,} outputs cut short"),
    ("pauses_cut", "{:,} pauses cut short"),
)


def _trace_line(trace: Figures) -> str:
    facts = [f"{trace['replayed']:,} of {trace['rows']:,} requests of {trace['file']} ({trace['format']})"]
    facts += [words.format(trace[key]) for key, words in _CHANGED if trace[key] != 1]
    facts += [words.format(trace[key]) for key, words in _LEFT_OUT if trace[key]]
    return f"{trace['workload']}: {', '.join([*facts, *trace['notes']])}"


def _unread(origin: Figures) -> str:
    if not origin["unreadable"]:
        return ", all lines readable"
    reasons = "; ".join(origin["first_unreadable"])
    return f", <b>{origin['unreadable']:,} lines unreadable</b>, the first: {escape(reasons)}"


# Plots

_DISTRIBUTIONS = (
    ("Time to the first token", "TTFT, from asking to the first token", "ttft_ms", "s", 0.001),
    ("Time to the last token", "From asking to the end of the answer", "duration_ms", "s", 0.001),
    (
        "Time per token",
        "TPOT, between the first token and the last, for each token after the first",
        "tpot_ms",
        "ms",
        1.0,
    ),
)
_RANKS = ("p10", "p25", "p50", "p75", "p90", "p99", "mean")


def _boxes(runs: Sequence[Figures]) -> str:
    parts = ["<h2>Latency</h2><p class=soft>Box: 25 to 75 %, whiskers: 10 and 90 %, line: median, triangle: mean.</p>"]
    for title, about, kind, unit, units_per_ms in _DISTRIBUTIONS:
        rows = [(number, run["name"], run["total"][kind]) for number, run in enumerate(runs) if run["total"][kind]]
        parts.append(f"<h3>{title}</h3><p class=soft>{about}.</p>")
        if not rows:
            parts.append("<p class=soft>Nothing was answered.</p>")
            continue
        parts.append(boxes(about, rows, unit, units_per_ms))
        cells = [(name, [_cell(box[rank] * units_per_ms, _three_digits) for rank in _RANKS]) for _, name, box in rows]
        parts.append(_grid(f"{title}, {unit}", ["run", *_RANKS], cells))
    return "".join(parts)


_PLOTS: tuple[tuple[str, str, str, float, bool], ...] = (
    ("Waiting at the gateways", "at_s", "queue", 1.0, True),
    ("Requests per engine, mean", "at_s", "outstanding_mean", 1.0, False),
    ("Spread of requests between engines: p90 − p10", "at_s", "outstanding_p90_minus_p10", 1.0, False),
    ("Without a first token yet", "at_s", "waiting", 1.0, True),
    ("Streaming", "at_s", "streaming", 1.0, False),
    ("TTFT p90 of those who asked then, s", "ttft_at_s", "ttft_p90_ms", 0.001, True),
)
"""Title, times, values, what to multiply them by, and whether a long run's peaks are to be kept, or its means."""


def _series_of(document: Figures) -> str:
    runs, regions = document["runs"], _busiest(document)
    known = set.intersection(*(set(series) for run in runs for series in run["series"].values()))
    scene = _scene(document)
    points = points_max(len(runs) * len(regions) * len(_PLOTS))
    parts = [f"<h2>Over time, by region</h2><p>{key([run['name'] for run in runs])}</p>{_bands(scene)}"]
    parts += [_plots_of(plot, document, regions, scene, points) for plot in _PLOTS if plot[2] in known]
    left_out = len(document["regions"]) - len(regions)
    if left_out:
        parts.append(f"<p class=soft>The {_REGIONS_MAX} regions with most requests; {left_out} more are not drawn.</p>")
    if "queue" not in known:
        parts.append(f"<p class=soft>Queues and engines: {_UNSEEN}; clients do not see them.</p>")
    return "".join(parts)


def _plots_of(
    plot: tuple[str, str, str, float, bool], document: Figures, regions: Sequence[str], scene: Scene, points: int
) -> str:
    """One plot for each region, all with one scale, so that they can be compared."""
    title, at, name, factor, peaks = plot
    lines = {
        region: [
            thinned(Line(run["name"], each[at], [value * factor for value in each[name]]), points, peaks=peaks)
            for run in document["runs"]
            for each in [run["series"][region]]
        ]
        for region in regions
    }
    top = max((value for each in lines.values() for line in each for value in line.values), default=0)
    if not top:
        return f"<h3>{title}</h3><p class=soft>0 throughout, in all regions and runs.</p>"
    cards = "".join(
        f"<div class=card><h4>{escape(region)}</h4>{over_time(f'{title}, {region}', each, top, scene)}</div>"
        for region, each in lines.items()
    )
    return f"<h3>{title}</h3><div class=cards>{cards}</div>"


def _busiest(document: Figures) -> list[str]:
    """So many regions as one can look at, in the document's order."""
    first = document["runs"][0]["regions"]
    ranked = sorted(document["regions"], key=lambda region: -first[region]["requests"])[:_REGIONS_MAX]
    return [region for region in document["regions"] if region in ranked]


def _scene(document: Figures) -> Scene:
    sampled = [series["at_s"][-1] for run in document["runs"] for series in run["series"].values() if series["at_s"]]
    warm_up_s, end_s = document["runs"][0]["measured_s"]
    spans = [(each["from_s"], each["to_s"]) for each in document["faults"]]
    return Scene(max([end_s, *sampled]), warm_up_s, spans[:200])


def _bands(scene: Scene) -> str:
    words = []
    if scene.faults_s:
        words.append("<span class=swatch style='background:rgba(var(--fault),.3)'></span>something goes wrong")
    if scene.warm_up_s:
        words.append("<span class=swatch style='background:var(--faint)'></span>warm-up, not in the figures")
    return f"<p class=soft>{' &ensp; '.join(words)}</p>" if words else ""


# Flows


def _flows(document: Figures) -> str:
    if not any(run["flows"] for run in document["runs"]):
        return f"<h2>Who served whom</h2><p class=soft>{_UNSEEN.capitalize()}: no answer named a region.</p>"
    if len(document["regions"]) == 1:
        return ""
    cards = [
        f"<div class=card><h3>{escape(run['name'])}</h3>{_matrix(run, _busiest(document))}</div>"
        for run in document["runs"]
    ]
    return (
        "<h2>Who served whom</h2><p class=soft>Share of each region's answered requests, by the engine's region, and"
        f" how many they were.</p><div class=cards>{''.join(cards)}</div>"
    )


def _matrix(run: Figures, regions: Sequence[str]) -> str:
    counted = {(flow["client_region"], flow["engine_region"]): flow["requests"] for flow in run["flows"]}
    totals: Counter[str] = Counter()
    for (client, _), count in counted.items():
        totals[client] += count
    rows = [
        (client, [_flow_cell(counted.get((client, engine), 0), totals[client]) for engine in regions])
        for client in regions
    ]
    return _grid("", ["asked in \\ served in", *regions], rows, kind="flow", label=f"Who served whom, {run['name']}")


def _flow_cell(count: int, total: int) -> str:
    if not count:
        return "<td>·</td>"
    share = count / total
    return f'<td style="background:rgba(var(--heat),{0.08 + 0.5 * share:.2f})">{share:.1%}<small>{count:,}</small></td>'


# Tables

_Value = Callable[[Figures], float | None]
_Column = tuple[str, _Value, Callable[[float], str]]


def _quantile(kind: str, name: str, factor: float = 0.001) -> _Value:
    return lambda total: None if total[kind] is None else total[kind][name] * factor


def _plain(key: str) -> _Value:
    return lambda total: total.get(key)


def _needed(how: str) -> _Value:
    return lambda total: None if total.get("replicas_needed") is None else total["replicas_needed"][how]


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _three_digits(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _short(value: float) -> str:
    return f"{value:,.1f}"


def _two_digits(value: float) -> str:
    return f"{value:.2f}"


_ASKED: tuple[_Column, ...] = (
    ("requests asked", _plain("requests"), _count),
    ("failed", _plain("failed"), _count),
    ("unfinished", _plain("unfinished"), _count),
)
_SPEED: tuple[_Column, ...] = (
    ("requests/s", _plain("requests_per_s"), _short),
    ("output tokens/s", _plain("tokens_per_s"), _count),
    ("TTFT p50, s", _quantile("ttft_ms", "p50"), _three_digits),
    ("TTFT p90, s", _quantile("ttft_ms", "p90"), _three_digits),
    ("last token p50, s", _quantile("duration_ms", "p50"), _three_digits),
    ("last token p90, s", _quantile("duration_ms", "p90"), _three_digits),
    ("TPOT p50, ms", _quantile("tpot_ms", "p50", 1.0), _three_digits),
)
_PLACES: tuple[_Column, ...] = (
    ("prefix hits, in engines", _plain("prefix_hit_rate"), _percent),
    ("cached prompt tokens, as answers say", _plain("cached_share"), _percent),
    ("served in another region", _plain("forwarded_share"), _percent),
)
_ENGINES: tuple[_Column, ...] = (
    ("requests per engine, mean", _plain("outstanding_mean"), _short),
    ("busiest engine / mean", _plain("outstanding_max_to_mean"), _two_digits),
    ("busiest / idlest engine", _plain("outstanding_max_to_min"), _two_digits),
    ("spread of engines, p90 − p10", _plain("outstanding_p90_minus_p10"), _short),
    ("waiting at gateways, mean", _plain("queue_mean"), _short),
    ("waiting at gateways, most", _plain("queue_max"), _count),
)
_FLEET: tuple[_Column, ...] = (
    ("open at once, most", _plain("in_flight_max"), _count),
    ("replicas needed, regions together", _needed("together"), _count),
    ("replicas needed, regions apart", _needed("apart"), _count),
)
_PARTS = (
    ("Load", _ASKED),
    ("Speed", _SPEED),
    ("Places and caches", _PLACES),
    ("Engines and queues", _ENGINES),
    ("Fleet", _FLEET),
)
_OF_A_REGION: tuple[_Column, ...] = (
    *_ASKED,
    *_SPEED,
    *_PLACES,
    ("open at once, most", _plain("in_flight_max"), _count),
)
_OF_A_VARIANT: tuple[_Column, ...] = tuple(column for _, columns in _PARTS for column in columns)
_LATENCIES = ("ttft_ms", "duration_ms", "tpot_ms")


def _overview(runs: Sequence[Figures]) -> str:
    """A row for each figure, a column for each run; beside those that make a ratio, that ratio to the first run."""
    body = "".join(
        _part(part, 1 + len(runs))
        + "".join(
            _row(column[0], [_compared(run, runs[0], column, has_ratio=columns is _SPEED) for run in runs])
            for column in columns
        )
        for part, columns in _PARTS
    )
    about = "All regions together" + (f"; × is beside {runs[0]['name']}" if len(runs) > 1 else "")
    heads = ["figure", *(run["name"] for run in runs)]
    return _scrolled(about, f"<caption>{escape(about)}</caption>{_head(heads)}<tbody>{body}</tbody>")


def _part(title: str, columns: int) -> str:
    return f'<tr class=part><th scope=rowgroup colspan="{columns}">{escape(title)}</th></tr>'


def _compared(run: Figures, first: Figures, column: _Column, *, has_ratio: bool) -> str:
    _, value_of, shown = column
    value, base = value_of(run["total"]), value_of(first["total"])
    if value is None or not base or run is first or not has_ratio:
        return _cell(value, shown, is_unseen=not has_ratio)
    return f"<td>{shown(value)}<small>× {value / base:.2f}</small></td>"


def _cells(total: Figures, columns: Sequence[_Column]) -> list[str]:
    return [
        _cell(value_of(total), shown, is_unseen=(title, value_of, shown) not in _SPEED)
        for title, value_of, shown in columns
    ]


def _cell(value: float | None, shown: Callable[[float], str], *, is_unseen: bool = False) -> str:
    """What has no value was not measured, or there was nothing to measure."""
    if value is None:
        return f"<td class=unseen>{_UNSEEN if is_unseen else _NOTHING}</td>"
    return f"<td>{shown(value)}</td>"


def _by_region(document: Figures) -> str:
    """A part for each region, in it a row for each run."""
    regions = document["regions"][:_REGIONS_LISTED_MAX]
    body = "".join(
        _part(region, 1 + len(_OF_A_REGION))
        + "".join(_row(run["name"], _cells(run["regions"][region], _OF_A_REGION)) for run in document["runs"])
        for region in regions
    )
    more = len(document["regions"]) - len(regions)
    heads = ["run", *(title for title, _, _ in _OF_A_REGION)]
    table = _scrolled("By region and run", f"{_head(heads)}<tbody>{body}</tbody>")
    return (
        "<h2>By region</h2><p class=soft>Of the clients who ask there; prefix hits are of the engines that stand"
        f" there.{f' {more} more regions are in results.json.' if more else ''}</p>"
        f"{table}"
    )


def _reasons(runs: Sequence[Figures]) -> str:
    """Which rule sent requests where: those that stayed, those that were forwarded, and refusals."""
    if not any(run["placements"] for run in runs):
        return (
            f"<h2>Why requests went where they went</h2><p class=soft>{_UNSEEN.capitalize()}: only gateways know.</p>"
        )
    counted = {run["name"]: _attempts(run) for run in runs}
    totals = {run["name"]: sum(each["attempts"] for each in run["placements"]) for run in runs}
    reasons = sorted({reason for each in counted.values() for reason in each})
    rows = [
        (reason, [_share_cell(each.get(reason, 0), totals[name]) for name, each in counted.items()])
        for reason in reasons
    ]
    grid = _grid("", ["where, and by which rule", *counted], rows, label="Why requests went where they went")
    return (
        "<h2>Why requests went where they went</h2><p class=soft>Placements of the whole run, warm-up and repeated"
        f" attempts included, and their share of all.</p>{grid}"
    )


def _attempts(run: Figures) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for each in run["placements"]:
        where = "stayed" if each["from"] == each["to"] else "forwarded"
        counted[f"{where}: {each['reason']}"] += each["attempts"]
        if where == "forwarded":
            counted["forwarded, all"] += each["attempts"]
    for reason, count in run["refusals"].items():
        counted[f"then refused by the peer: {reason}"] = count
    return dict(counted)


def _share_cell(count: int, total: int) -> str:
    return f"<td>{count:,}<small>{count / total:.1%}</small></td>" if count and total else f"<td>{count}</td>"


def _failures(runs: Sequence[Figures]) -> str:
    """How requests failed, as their clients saw it."""
    details = sorted({detail for run in runs for detail in run["total"]["failures"]})
    if not details:
        return "<h2>What failed</h2><p class=soft>Nothing.</p>"
    rows = [
        (detail, [_cell(run["total"]["failures"].get(detail, 0), _count) for run in runs]) for detail in details[:200]
    ]
    return (
        f"<h2>What failed</h2>{_grid('', ['as clients saw it', *(r['name'] for r in runs)], rows, label='What failed')}"
    )


def _grid(
    caption: str, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], *, kind: str = "", label: str = ""
) -> str:
    """A table from names and finished cells."""
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "".join(_row(name, cells) for name, cells in rows)
    return _scrolled(label or caption, f"{above}{_head(heads)}<tbody>{body}</tbody>", kind)


def _head(titles: Sequence[str]) -> str:
    return f"<thead><tr>{''.join(f'<th scope=col>{escape(title)}</th>' for title in titles)}</tr></thead>"


def _row(name: str, cells: Sequence[str]) -> str:
    return f"<tr><th scope=row>{escape(name)}</th>{''.join(cells)}</tr>"


def _scrolled(label: str, inside: str, kind: str = "") -> str:
    """A table that scrolls by itself where it is wider than the page, with the keyboard too."""
    of_kind = f" class={kind}" if kind else ""
    return (
        f'<div class=scroll role=region tabindex=0 aria-label="{escape(label)}"><table{of_kind}>{inside}</table></div>'
    )


_WORDS = (
    "<h2>What the words mean</h2><ul class=soft>"
    "<li>Figures count requests asked after the warm-up. Rates count answers that were completed, and tokens that came,"
    " while load was sent.</li>"
    "<li><b>TTFT</b>: from asking to the first token as the client sees it, every queue and every way included, of all"
    " who got one. <b>Last token</b> and <b>TPOT</b> (between the first token and the last, for each token after the"
    " first) are of completed requests. Who got nothing is in no latency, but among the failed or unfinished."
    " Percentiles are nearest ranks: values that were measured.</li>"
    "<li><b>Prefix hits</b>: prompt tokens found in the engines' caches, of those looked up there, as engines count."
    " <b>Cached prompt tokens</b>: the same, of the answers that tell their clients.</li>"
    "<li><b>Busiest / idlest, p90 − p10</b>: requests at each engine, running or waiting, at every sampled moment."
    " Busiest / idlest divides the mean of the highest by the mean of the lowest; it has no value where one engine"
    " always idles.</li>"
    "<li><b>Replicas needed</b>: engines whose slots would hold all requests that were open at the busiest moment,"
    " wherever they waited or ran. <i>Together</i> takes the busiest moment of all regions in one fleet, <i>apart</i>"
    " each region's own, added up; what lies between is what pooling saves. It counts slots, not speed, and a fleet"
    " that is too slow keeps requests open longer: whether a fleet of that size is quick enough, only a sweep over"
    " <code>replicas</code> tells.</li></ul>"
)
