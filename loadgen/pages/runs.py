"""Report as one HTML file that needs no network: the scenario, the best run by each measure, plots, and tables.

It shows what `results.json` holds, and nothing that is not in it; `docs/reference/report.md` explains each figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from loadgen.figures import Figures
from loadgen.pages import tables
from loadgen.pages.drawing import Boxes, Line, Picture, Scene, over_time, points_max, rows, sample, thinned
from loadgen.pages.tables import Table
from loadgen.pages.templates import render
from loadgen.pages.verdict import POINTS_WITHIN, SAME_WITHIN, verdicts

_REGIONS_MAX = 12
"""Maximum number of regions that are drawn."""
_FAULTS_DRAWN_MAX = 200
_LISTED_MAX = 20


def page_of(document: Figures) -> str:
    """Report page of a results document."""
    runs, regions, scene = document["runs"], _busiest(document), _scene(document)
    has_flows, has_places = (any(run[what] for run in runs) for what in ("flows", "placements"))
    return render(
        "report.html",
        title=document["scenario"],
        document=document,
        facts=_facts(document),
        is_partial=any(run.get("partial") for run in runs),
        sender=_sender(runs[0]),
        runs=runs,
        verdicts=verdicts(runs),
        same_percent=SAME_WITHIN * 100,
        same_points=POINTS_WITHIN * 100,
        faults=_faults(document["faults"]),
        listed_max=_LISTED_MAX,
        asked=_asked(document.get("origins")),
        distributions=[_distribution(runs, each) for each in _DISTRIBUTIONS],
        key=[(sample(number), run["name"]) for number, run in enumerate(runs)],
        scene=scene,
        series=_series(document, regions, scene),
        regions_drawn=len(regions),
        regions_left_out=len(document["regions"]) - len(regions),
        is_queue_known="queue" in _known_series(runs),
        flows=[(run["name"], tables.flow(run, regions)) for run in runs] if has_flows else [],
        overview=tables.overview(runs),
        by_region=tables.by_region(document),
        regions_unlisted=tables.regions_left_out(document),
        reasons=tables.reasons(runs) if has_places else None,
        failures=tables.failures(runs),
        unseen=tables.UNSEEN,
    )


def sweep_page(title: str, cells: Sequence[tuple[str, Figures]]) -> str:
    """Page of a grid of runs, as one table."""
    return render("sweep.html", title=title, table=tables.sweep(cells))


# Description of the runs


def _facts(document: Figures) -> list[str]:
    first = document["runs"][0]
    start_s, end_s = first["measured_s"]
    replicas = "" if document["replicas"] is None else f"{document['replicas']} replicas in "
    how = "measured on live endpoints" if first["system"] == "live" else "simulated"
    return [
        f"{replicas}{_counted(len(document['regions']), 'region')}, {how}",
        f"{end_s - start_s:g} s of load measured" + (f", after a warm-up of {start_s:g} s" if start_s else ""),
        f"seed {first['seed']}",
        _counted(len(document["runs"]), "run"),
    ]


def _sender(run: Figures) -> str:
    """Notes on how far the load generator's machine affects a live run's figures."""
    words = []
    if run.get("machine_cpu") is not None:
        words.append(f"The machine that sent was {run['machine_cpu']['mean_share'] * 100:.0f} % busy.")
    if run.get("lag_ms") is not None:
        words.append(
            f"One request in a hundred left {run['lag_ms']['p99']:.0f} ms or more after it was due; that is counted."
        )
    return " ".join(words)


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _faults(faults: Sequence[Figures]) -> list[str]:
    """One line per kind of fault, with all the times at which it strikes."""
    times: dict[str, list[str]] = {}
    for each in faults:
        times.setdefault(each["fault"], []).append(f"{each['from_s']:g} to {each['to_s']:g} s")
    return [f"{fault}, {_some(spans)}" for fault, spans in times.items()]


def _some(words: Sequence[str]) -> str:
    more = len(words) - _LISTED_MAX
    return ", ".join(words[:_LISTED_MAX]) + (f", and {more} more times" if more > 0 else "")


class _Asked(NamedTuple):
    """Recorded source of a run, and its differences from the recording."""

    line: str
    unreadable: int = 0
    first_unreadable: str = ""
    shifted_by: str = ""


def _asked(origins: Figures | None) -> list[_Asked]:
    """Recorded sources only: their files, and the rows that are missing."""
    if origins is None:
        return []
    lines = [(_trace_line(each), each) for each in origins["traces"]]
    lines += [
        (f"{each['workload']}: {each['questions']:,} questions of {each['file']}", each)
        for each in origins["questions"]
    ]
    return [
        *(_Asked(line, each["unreadable"], "; ".join(each["first_unreadable"])) for line, each in lines),
        *(
            _Asked(f"{each['region']}, {each['workload']}", shifted_by=_hours(each["shifted_hours"]))
            for each in origins["clients"]
            if each["shifted_hours"]
        ),
    ]


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


# Plots


class _Kind(NamedTuple):
    """One of the durations measured per request."""

    title: str
    about: str
    name: str
    unit: str
    units_per_ms: float


_DISTRIBUTIONS = (
    _Kind("Time to the first token", "TTFT, from asking to the first token", "ttft_ms", "s", 0.001),
    _Kind("Time to the last token", "From asking to the end of the answer", "duration_ms", "s", 0.001),
    _Kind(
        "Time per token",
        "TPOT, between the first token and the last, for each token after the first",
        "tpot_ms",
        "ms",
        1.0,
    ),
)


class _Distribution(NamedTuple):
    """A box for each run, with a table of its figures; both None where no request was answered."""

    title: str
    about: str
    picture: Picture | None = None
    table: Table | None = None


def _distribution(runs: Sequence[Figures], kind: _Kind) -> _Distribution:
    boxes = {
        run["name"]: {rank: value * kind.units_per_ms for rank, value in (run["total"][kind.name] or {}).items()}
        for run in runs
    }
    answered = {name: box for name, box in boxes.items() if box}
    if not answered:
        return _Distribution(kind.title, kind.about)
    picture = rows(kind.about, list(boxes), [Boxes(kind.title, kind.unit, list(boxes.values()))], names_above=True)
    return _Distribution(kind.title, kind.about, picture, tables.distribution(kind.title, kind.unit, answered))


class _Plot(NamedTuple):
    title: str
    times: str
    values: str
    factor: float
    peaks: bool
    """Keep the maximum of each stretch when a long run is thinned; otherwise the mean."""


_PLOTS = (
    _Plot("Waiting at the gateways", "at_s", "queue", 1.0, True),
    _Plot("Requests per engine, mean", "at_s", "outstanding_mean", 1.0, False),
    _Plot("Spread of requests between engines: p90 − p10", "at_s", "outstanding_p90_minus_p10", 1.0, False),
    _Plot("Without a first token yet", "at_s", "waiting", 1.0, True),
    _Plot("Streaming", "at_s", "streaming", 1.0, False),
    _Plot("TTFT p90 of those who asked then, s", "ttft_at_s", "ttft_p90_ms", 0.001, True),
)


def _known_series(runs: Sequence[Figures]) -> set[str]:
    return set.intersection(*(set(series) for run in runs for series in run["series"].values()))


def _series(document: Figures, regions: Sequence[str], scene: Scene) -> list[tuple[str, Sequence[tuple[str, Picture]]]]:
    """Pictures by title, one for each region; a plot whose values are all zero has none."""
    runs = document["runs"]
    known, points = _known_series(runs), points_max(len(runs) * len(regions) * len(_PLOTS))
    return [(plot.title, _pictures(plot, runs, regions, scene, points)) for plot in _PLOTS if plot.values in known]


def _pictures(
    plot: _Plot, runs: Sequence[Figures], regions: Sequence[str], scene: Scene, points: int
) -> list[tuple[str, Picture]]:
    """Pictures of one plot, one for each region, all with one scale for comparison."""
    curves = {region: [_curve(plot, run, region, points) for run in runs] for region in regions}
    top = max((value for each in curves.values() for line in each for _, value in line.points), default=0)
    if not top:
        return []
    return [(region, over_time(f"{plot.title}, {region}", each, top, scene)) for region, each in curves.items()]


def _curve(plot: _Plot, run: Figures, region: str, points: int) -> Line:
    series = run["series"][region]
    values = [value * plot.factor for value in series[plot.values]]
    return thinned(Line(run["name"], list(zip(series[plot.times], values, strict=True))), points, peaks=plot.peaks)


def _busiest(document: Figures) -> list[str]:
    """Busiest regions, as many as fit a page, in the document's order."""
    first = document["runs"][0]["regions"]
    ranked = sorted(document["regions"], key=lambda region: -first[region]["requests"])[:_REGIONS_MAX]
    return [region for region in document["regions"] if region in ranked]


def _scene(document: Figures) -> Scene:
    sampled = [series["at_s"][-1] for run in document["runs"] for series in run["series"].values() if series["at_s"]]
    warm_up_s, end_s = document["runs"][0]["measured_s"]
    spans = [(each["from_s"], each["to_s"]) for each in document["faults"]]
    return Scene(max([end_s, *sampled]), warm_up_s, spans[:_FAULTS_DRAWN_MAX])
