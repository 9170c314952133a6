"""The report as one HTML file that needs no network: a table, box plots, series over time, and who served whom.

It draws what `results.json` holds, and nothing that is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from loadgen.figures import Figures

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5c6773; --faint: #d8dee4; --paper: #fff; --card: #f6f8fa;
  --run0: #2f6fde; --run1: #d1672b; --run2: #2d8f6f; --run3: #9a4fc4; --run4: #b08a00; --run5: #c43d6b;
  --heat: 47,111,222; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa7b4; --faint: #30363d; --paper: #0d1117;
  --card: #161b22; --run0: #6ea8ff; --run1: #f2955c; --run2: #5cc9a3; --run3: #c78bf0; --run4: #e0b93a; --run5: #f0789f;
  --heat: 110,168,255; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 70rem;
  margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; } p { margin: .25rem 0 1rem; }
h3 { font-size: .95rem; margin: 0 0 .25rem; font-weight: 600; }
.soft, caption, th { color: var(--soft); } code { font-size: .85em; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .8rem; border-bottom: 1px solid var(--faint); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; } th { font-weight: 500; }
td small { color: var(--soft); margin-left: .4em; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; }
.card { background: var(--card); border: 1px solid var(--faint); border-radius: 8px; padding: .8rem 1rem; }
svg { width: 100%; height: auto; display: block; } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
svg .name { fill: var(--ink); font-size: 12px; } .grid { stroke: var(--faint); } .key { display: inline-block;
  width: .8em; height: .8em; border-radius: 2px; margin: 0 .35em 0 1em; vertical-align: -.05em; }
.flow td, .flow th { text-align: center; } .flow td:first-child { text-align: left; }
"""
_COLOURS = 6


def page_of(document: Figures) -> str:
    """A whole page."""
    runs = document["runs"]
    first = runs[0]
    replicas = "" if document["replicas"] is None else f"{document['replicas']} replicas in "
    digest = "" if document["digest"] is None else f" · digest <code>{escape(document['digest'])}</code>"
    facts = (
        f"{replicas}{len(document['regions'])} regions · seed {first['seed']} · "
        f"{first['load_s']:g} s of load measured{digest}"
    )
    parts = [
        f"<h1>{escape(document['scenario'])}</h1>",
        f"<p>{escape(document['about'])}</p><p class=soft>{facts}</p>",
        _faults(document["faults"]),
        _origins(document.get("origins")),
        "<h2>Figures</h2>",
        _table(runs),
        "<h2>Time to first token</h2><p class=soft>Box: 25 to 75 %, whiskers 10 and 90 %, line: median, triangle: mean."
        " Seconds, on a log scale.</p>",
        _boxes(runs, "ttft_ms"),
        "<h2>Time to the last token</h2>",
        _boxes(runs, "duration_ms"),
        f"<h2>Over time</h2><p>{_key(runs)}</p>",
        _series_of(document),
        "<h2>Who served whom</h2><p class=soft>Share of each region's answered requests, by the engine's region.</p>",
        _flows(document),
        _reasons(runs),
        _failures(runs),
    ]
    return _whole(document["scenario"], "".join(parts))


def sweep_page(title: str, cells: Sequence[tuple[str, Figures]]) -> str:
    """A grid of runs as one table, each row with a link to its own page."""
    runs = [run | {"name": name} for name, document in cells for run in document["runs"]]
    return _whole(title, f"<h1>{escape(title)}</h1><h2>Figures</h2>{_table(runs)}")


def _whole(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><body>{body}</body></html>\n"
    )


def _faults(faults: Sequence[Figures]) -> str:
    if not faults:
        return ""
    rows = "".join(
        f"<li>{escape(each['fault'])}, {each['from_s']:g} to {each['to_s']:g} s</li>" for each in faults[:20]
    )
    more = f"<li>and {len(faults) - 20} more</li>" if len(faults) > 20 else ""
    return f"<h2>What goes wrong</h2><ul>{rows}{more}</ul>"


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
        f"{escape(each['region'])}, {escape(each['workload'])}: <b>shifted</b> by {each['shifted_hours']:+g} h, "
        "so that this is no curve that was measured there"
        for each in origins["clients"]
        if each["shifted_hours"]
    ]
    return f"<h2>What is asked</h2><ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>" if lines else ""


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


# The table

_Column = tuple[str, Callable[[Figures], float | None], Callable[[float], str]]


def _quantile(kind: str, name: str) -> Callable[[Figures], float | None]:
    return lambda total: None if total[kind] is None else total[kind][name] / 1000


def _plain(key: str) -> Callable[[Figures], float | None]:
    return lambda total: total[key]


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _short(value: float) -> str:
    return f"{value:,.1f}"


_COLUMNS: tuple[_Column, ...] = (
    ("requests/s", _plain("requests_per_s"), _short),
    ("tokens/s", _plain("tokens_per_s"), _count),
    ("TTFT mean, s", _quantile("ttft_ms", "mean"), _seconds),
    ("p50", _quantile("ttft_ms", "p50"), _seconds),
    ("p90", _quantile("ttft_ms", "p90"), _seconds),
    ("p99", _quantile("ttft_ms", "p99"), _seconds),
    ("answer p50, s", _quantile("duration_ms", "p50"), _seconds),
    ("p90", _quantile("duration_ms", "p90"), _seconds),
    ("TPOT p50, s", _quantile("tpot_ms", "p50"), _seconds),
    ("prefix hits", _plain("prefix_hit_rate"), _percent),
    ("forwarded", _plain("forwarded_share"), _percent),
    ("busiest / mean", _plain("outstanding_max_to_mean"), lambda value: f"{value:.2f}"),
    ("queue max", _plain("queue_max"), _count),
    ("failed", _plain("failed"), _count),
    ("unfinished", _plain("unfinished"), _count),
)


_COMPARED = _COLUMNS[:9]


def _table(runs: Sequence[Figures]) -> str:
    """Beside the figures that make a ratio, that ratio to the first run."""
    head = "".join(f"<th>{escape(title)}</th>" for title, _, _ in _COLUMNS)
    rows = "".join(
        f"<tr><td>{escape(run['name'])}</td>{''.join(_cell(run, runs[0], column) for column in _COLUMNS)}</tr>"
        for run in runs
    )
    return f"<div class=scroll><table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table></div>"


def _cell(run: Figures, first: Figures, column: _Column) -> str:
    _, value_of, shown = column
    value, base = value_of(run["total"]), value_of(first["total"])
    if value is None:
        return "<td>–</td>"
    has_ratio = run is not first and base and column in _COMPARED
    ratio = f"<small>× {value / base:.2f}</small>" if has_ratio and base else ""
    return f"<td>{shown(value)}{ratio}</td>"


def _key(runs: Sequence[Figures]) -> str:
    return "".join(
        f'<span class=key style="background:{_colour(number)}"></span>{escape(run["name"])}'
        for number, run in enumerate(runs)
    )


def _colour(number: int) -> str:
    return f"var(--run{number % _COLOURS})"


# Box plots

_WIDTH, _LEFT, _ROW = 720.0, 170.0, 34.0


def _boxes(runs: Sequence[Figures], kind: str) -> str:
    boxes = [(number, run["name"], run["total"][kind]) for number, run in enumerate(runs) if run["total"][kind]]
    if not boxes:
        return "<p class=soft>Nothing was answered.</p>"
    low = min(box["p10"] for _, _, box in boxes)
    high = max(max(box["p90"], box["mean"]) for _, _, box in boxes)
    place = _log_scale(low, high, _LEFT, _WIDTH - 20)
    height = _ROW * len(boxes) + 30
    drawn = [_ticks(low, high, place, height - 22)]
    drawn += [_box(name, box, place, _ROW * row + 20, _colour(number)) for row, (number, name, box) in enumerate(boxes)]
    return f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{kind}">{"".join(drawn)}</svg>'


def _log_scale(low: float, high: float, left: float, right: float) -> Callable[[float], float]:
    """Over whole halves of decades, so that equal values do not divide by zero."""
    start, end = math.floor(2 * math.log10(max(low, 1e-3))) / 2, math.ceil(2 * math.log10(max(high, 1e-3)) + 1e-9) / 2
    span = max(end - start, 0.5)
    return lambda value: left + (math.log10(max(value, 1e-3)) - start) / span * (right - left)


def _ticks(low: float, high: float, place: Callable[[float], float], bottom: float) -> str:
    drawn = []
    for exponent in range(math.floor(math.log10(max(low, 1e-3))), math.ceil(math.log10(max(high, 1e-3))) + 1):
        for step in (1, 2, 5):
            value, x = step * 10.0**exponent, place(step * 10.0**exponent)
            if _LEFT <= x <= _WIDTH - 20:
                drawn.append(f'<line class=grid x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{bottom:g}"/>')
                drawn.append(f'<text x="{x:.1f}" y="{bottom + 16:g}" text-anchor="middle">{value / 1000:g}</text>')
    return "".join(drawn)


def _box(name: str, box: dict[str, float], place: Callable[[float], float], y: float, colour: str) -> str:
    at = {key: place(value) for key, value in box.items()}
    title = ", ".join(f"{key} {value / 1000:.3f} s" for key, value in box.items())
    return (
        f'<g><title>{escape(name)}: {title}</title><text class=name x="0" y="{y + 4:g}">{escape(name)}</text>'
        f'<line x1="{at["p10"]:.1f}" x2="{at["p90"]:.1f}" y1="{y:g}" y2="{y:g}" stroke="{colour}" stroke-width="1.5"/>'
        f'<rect x="{at["p25"]:.1f}" y="{y - 9:g}" width="{max(at["p75"] - at["p25"], 1):.1f}" height="18" rx="2"'
        f' fill="{colour}" fill-opacity=".25" stroke="{colour}"/>'
        f'<line x1="{at["p50"]:.1f}" x2="{at["p50"]:.1f}" y1="{y - 9:g}" y2="{y + 9:g}"'
        f' stroke="{colour}" stroke-width="3"/>'
        f'<path d="M{at["mean"] - 4:.1f} {y - 15:g}h8l-4 6z" fill="{colour}"/></g>'
    )


# Over time

_PLOTS = (
    ("Waiting at the gateways", "at_s", "queue"),
    ("Requests per engine, mean", "at_s", "outstanding_mean"),
    ("Without a first token yet", "at_s", "waiting"),
    ("Streaming", "at_s", "streaming"),
    ("TTFT p90, ms", "ttft_at_s", "ttft_p90_ms"),
)


def _series_of(document: Figures) -> str:
    cards = []
    known = set.intersection(*(set(series) for run in document["runs"] for series in run["series"].values()))
    for title, at, key in (plot for plot in _PLOTS if plot[2] in known):
        lines = {
            region: [(run["series"][region][at], run["series"][region][key]) for run in document["runs"]]
            for region in document["regions"]
        }
        top = max((max(values, default=0) for each in lines.values() for _, values in each), default=0) or 1
        for region, of_runs in lines.items():
            cards.append(
                f"<div class=card><h3>{escape(region)}</h3><p class=soft>{title}</p>{_plot(of_runs, top)}</div>"
            )
    return f"<div class=cards>{''.join(cards)}</div>"


def _plot(lines: Sequence[tuple[list[float], list[float]]], top: float) -> str:
    """All regions share one scale, so that they can be compared."""
    width, height, left = 340.0, 120.0, 38.0
    end = max((times[-1] for times, _ in lines if times), default=1) or 1
    drawn = [
        f'<line class=grid x1="{left:g}" x2="{width:g}" y1="{y:g}" y2="{y:g}"/>'
        f'<text x="{left - 5:g}" y="{y + 4:g}" text-anchor="end">'
        f"{_axis(top * (height - 20 - y) / (height - 26))}</text>"
        for y in (6.0, (6 + height - 20) / 2, height - 20)
    ]
    drawn.append(f'<text x="{left:g}" y="{height - 4:g}">0</text>')
    drawn.append(f'<text x="{width:g}" y="{height - 4:g}" text-anchor="end">{end:g} s</text>')
    for number, (times, values) in enumerate(lines):
        points = " ".join(
            f"{left + at / end * (width - left):.1f},{height - 20 - value / top * (height - 26):.1f}"
            for at, value in zip(times, values, strict=True)
        )
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{_colour(number)}" stroke-width="1.6"/>')
    return f'<svg viewBox="0 0 {width:g} {height:g}">{"".join(drawn)}</svg>'


def _axis(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


# Flows


def _flows(document: Figures) -> str:
    cards = [
        f"<div class=card><h3>{escape(run['name'])}</h3>{_matrix(run, document['regions'])}</div>"
        for run in document["runs"]
    ]
    return f"<div class=cards>{''.join(cards)}</div>"


def _matrix(run: Figures, regions: Sequence[str]) -> str:
    counted = {(flow["client_region"], flow["engine_region"]): flow["requests"] for flow in run["flows"]}
    head = "".join(f"<th>{escape(region)}</th>" for region in regions)
    rows = "".join(_matrix_row(client, regions, counted) for client in regions)
    return f"<div class=scroll><table class=flow><tr><th>from \\ at</th>{head}</tr>{rows}</table></div>"


def _matrix_row(client: str, regions: Sequence[str], counted: dict[tuple[str, str], int]) -> str:
    total = sum(counted.get((client, engine), 0) for engine in regions) or 1
    cells = []
    for engine in regions:
        count = counted.get((client, engine), 0)
        share = count / total
        style = f' style="background:rgba(var(--heat),{0.08 + 0.5 * share:.2f})"' if count else ""
        cells.append(f'<td{style} title="{count} requests">{f"{share:.1%}" if count else "·"}</td>')
    return f"<tr><td>{escape(client)}</td>{''.join(cells)}</tr>"


def _reasons(runs: Sequence[Figures]) -> str:
    counted: dict[str, dict[str, int]] = {run["name"]: {} for run in runs}
    for run in runs:
        for each in run["placements"]:
            of_run = counted[run["name"]]
            of_run[each["reason"]] = of_run.get(each["reason"], 0) + each["attempts"]
        for reason, count in run["refusals"].items():
            counted[run["name"]][f"refused: {reason}"] = count
    return _counts("Why requests went where they went", counted)


def _failures(runs: Sequence[Figures]) -> str:
    """How requests failed, as their clients saw it."""
    return _counts("What failed", {run["name"]: run["total"]["failures"] for run in runs})


def _counts(title: str, counted: dict[str, dict[str, int]]) -> str:
    """A table of what was counted in each run; nothing where nothing was."""
    reasons = sorted({reason for each in counted.values() for reason in each})
    if not reasons:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in counted)
    rows = "".join(
        f"<tr><td>{escape(reason)}</td>{''.join(_reason_cell(each, reason) for each in counted.values())}</tr>"
        for reason in reasons
    )
    return f"<h2>{title}</h2><div class=scroll><table><tr><th></th>{head}</tr>{rows}</table></div>"


def _reason_cell(counted: dict[str, int], reason: str) -> str:
    return f"<td>{counted.get(reason, 0):,}</td>"
