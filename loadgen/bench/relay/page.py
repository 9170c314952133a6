"""Presents the bench's figures as rows for a terminal and as a page of Markdown. It judges only by the aims it is
given.

The page is rewritten each time; notes by people are in a file of their own and are inserted unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from loadgen.bench.relay.figures import DIRECT, RelayFigure, RelayReading, by_round, parts_of, ratio
from loadgen.bench.relay.published import PUBLISHED
from loadgen.pages import markdown
from loadgen.pages.markdown import NOTHING
from loadgen.studies.numbers import Middle, middle_of

TITLES = {
    RelayFigure.CPU_PER_REQUEST: "CPU per request, not streamed (µs)",
    RelayFigure.CPU_PER_LONG_REQUEST: "the same with an 8 KB prompt (µs)",
    RelayFigure.CPU_PER_CHUNK: "CPU per streamed chunk (µs)",
    RelayFigure.CPU_PER_CHUNK_STALLED: "the same, 1,000 streams of which 1 % are not read (µs)",
    RelayFigure.CPU_PER_LARGE_BODY: "CPU per body of 32 MB beside 200 streams (ms)",
    RelayFigure.LARGE_BODY_GAP: "longest pause in any of them meanwhile, pace subtracted (ms)",
    RelayFigure.TTFT_P50: "time to the first token, p50 (ms)",
    RelayFigure.ADDED_TTFT_P50: "added to it, p50 (ms)",
    RelayFigure.TTFT_P99: "time to the first token, p99 (ms)",
    RelayFigure.ADDED_TTFT_P99: "added to it, p99 (ms)",
    RelayFigure.REQUESTS_PER_S: "rate at saturation (requests/s)",
    RelayFigure.REQUESTS_PER_CPU_S: "requests per second of its CPU time",
    RelayFigure.MEMORY_PER_STREAM: "memory per open stream (KiB)",
    RelayFigure.IDLE_CPU: "CPU without requests (% of a core)",
    RelayFigure.LONG_PROMPTS_PER_CPU_S: "LiteLLM's load: prompts of 50,000–100,000 tokens (requests/s a core)",
    RelayFigure.SHORT_JOB_CORES: "llm-d's short job: 500 requests/s of 200 and 100 tokens (cores)",
    RelayFigure.LONG_JOB_CORES: "llm-d's long job: 98.8 requests/s of 100,000 and 1,000 tokens (cores)",
}
_IN_MAIN_TABLE = [each for each in TITLES if each not in PUBLISHED]
RATIOS = (
    RelayFigure.CPU_PER_REQUEST,
    RelayFigure.CPU_PER_LONG_REQUEST,
    RelayFigure.CPU_PER_CHUNK,
    RelayFigure.CPU_PER_CHUNK_STALLED,
    RelayFigure.CPU_PER_LARGE_BODY,
    RelayFigure.REQUESTS_PER_S,
    RelayFigure.MEMORY_PER_STREAM,
)

_PUBLISHED_NOTE = (
    "Measured on one core and scaled: cores are CPU time a request at their rate. Other machines and other features"
    " lie behind the published figures, so only the rows measured here compare. Prompts have 4 bytes a token."
)
SETTING_FIGURES = (
    RelayFigure.CPU_PER_REQUEST,
    RelayFigure.CPU_PER_LONG_REQUEST,
    RelayFigure.CPU_PER_CHUNK,
    RelayFigure.TTFT_P50,
)


@dataclass(frozen=True, slots=True)
class Aim:
    """Target value of a figure for the gateway: an absolute value, or a ratio to another relay."""

    figure: RelayFigure
    limit: float
    base: str | None = None
    of: str = ""
    """Variant of the gateway that the aim is about; empty for the plain one."""
    is_least: bool = False
    """True if the figure has to be at least the limit; else it is at most the limit."""


@dataclass(frozen=True, slots=True)
class RelayStory:
    """Results of one run of the bench, with its conditions."""

    readings: Sequence[RelayReading]
    relays: Mapping[str, str]
    """Description of each relay's configuration, by name."""
    faults: Mapping[str, str]
    """Reason per relay that is missing, or missing in some figures."""
    machine: Mapping[str, object]
    conditions: Sequence[str]
    command: str
    date: str
    ours: str
    aims: Sequence[Aim] = field(default_factory=tuple)
    siblings: str = ""
    """Name of the relay of two processes, if it was measured."""
    siblings_note: str = ""
    set_otherwise: Sequence[str] = ()
    """Variants of the gateway with another setting, shown in a table of their own."""


def number(value: float) -> str:
    """Value with three significant digits."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def cell(summary: Middle | None) -> str:
    """Median, with the spread where rounds differ."""
    if summary is None:
        return NOTHING
    text = number(summary.median)
    return text if summary.low == summary.high else f"{text} ({number(summary.low)}–{number(summary.high)})"


def table(story: RelayStory) -> list[list[str]]:
    """Header and a row for each figure: its median with the spread, relay by relay."""
    columns = [*_columns(story), *([DIRECT] if _has_any(story, DIRECT) else [])]
    rows = [["", *columns]]
    for figure in _IN_MAIN_TABLE:
        cells = [cell(_summary(story, name, figure)) for name in columns]
        if any(each != NOTHING for each in cells):
            rows.append([TITLES[figure], *cells])
    return rows


def _columns(story: RelayStory) -> list[str]:
    """Relays shown as columns of the main table."""
    apart = {story.siblings, *story.set_otherwise}
    return [name for name in story.relays if name not in apart and _has_any(story, name)]


def _summary(story: RelayStory, relay: str, figure: RelayFigure, part: str = "") -> Middle | None:
    return middle_of(by_round(story.readings, relay, figure, part).values())


def _has_any(story: RelayStory, relay: str) -> bool:
    return any(each.relay == relay for each in story.readings)


def ratio_rows(story: RelayStory) -> list[list[str]]:
    """Ratios of the gateway to each other relay, and of each variant of the gateway to the plain one."""
    others = [name for name in _columns(story) if name != story.ours]
    rows = [["", *(_ratio_title(story, name) for name in others)]]
    for figure in RATIOS:
        cells = [cell(_ratio(story, figure, name)) for name in others]
        if any(each != NOTHING for each in cells):
            rows.append([TITLES[figure], *cells])
    return rows if len(rows) > 1 else []


def _is_ours(story: RelayStory, name: str) -> bool:
    return name.startswith(story.ours)


def _ratio_title(story: RelayStory, name: str) -> str:
    return f"{name} / {story.ours}" if _is_ours(story, name) else f"{story.ours} / {name}"


def _ratio(story: RelayStory, figure: RelayFigure, name: str) -> Middle | None:
    relay, base = (name, story.ours) if _is_ours(story, name) else (story.ours, name)
    return ratio(story.readings, figure, relay, base)


def aim_rows(story: RelayStory) -> list[list[str]]:
    """Each aim with its measured value and whether it is reached; aims without a measurement are left out."""
    rows = [["aim", "measured", "reached"]]
    for aim in story.aims:
        measured = (
            _summary(story, aim.of or story.ours, aim.figure)
            if aim.base is None
            else ratio(story.readings, aim.figure, aim.of or story.ours, aim.base)
        )
        if measured is not None:
            rows.append([_aim_text(aim), cell(measured), "yes" if _is_reached(aim, measured.median) else "no"])
    return rows if len(rows) > 1 else []


def _is_reached(aim: Aim, value: float) -> bool:
    return value >= aim.limit if aim.is_least else value <= aim.limit


def _aim_text(aim: Aim) -> str:
    against = f" × {aim.base}" if aim.base else ""
    whose = f" of {aim.of}" if aim.of else ""
    sign = "≥" if aim.is_least else "≤"
    return f"{TITLES[aim.figure].rsplit(' (', 1)[0]}{whose} {sign} {aim.limit:,g}{against or ' ' + _unit(aim.figure)}"


def _unit(figure: RelayFigure) -> str:
    return TITLES[figure].rsplit("(", 1)[1].removesuffix(")")


def part_rows(story: RelayStory) -> list[list[str]]:
    """Cost of each process of a relay, for relays with several."""
    rows = [["relay", "process", "figure", "value"]]
    for relay in story.relays:
        for part in parts_of(story.readings, relay):
            for figure, title in TITLES.items():
                summary = _summary(story, relay, figure, part)
                if summary is not None:
                    rows.append([relay, part, title, cell(summary)])
    return rows if len(rows) > 1 else []


def sibling_rows(story: RelayStory) -> list[list[str]]:
    """Figures of one process and of two siblings, and their ratio."""
    if not _has_any(story, story.siblings):
        return []
    rows = [["", "one process", "two siblings", "two / one"]]
    for figure in (RelayFigure.REQUESTS_PER_S, RelayFigure.REQUESTS_PER_CPU_S):
        one, two = (_summary(story, name, figure) for name in (story.ours, story.siblings))
        times = ratio(story.readings, figure, story.siblings, story.ours)
        rows.append([TITLES[figure], cell(one), cell(two), cell(times)])
    return rows


def setting_rows(story: RelayStory) -> list[list[str]]:
    """Row for each variant: its figures, and their ratios to the plain gateway."""
    measured = [name for name in story.set_otherwise if _has_any(story, name)]
    figures = [each for each in SETTING_FIGURES if any(_summary(story, name, each) for name in measured)]
    if not figures:
        return []
    rows = [["", *(column for each in figures for column in (TITLES[each], "times"))]]
    for name in (story.ours, *measured):
        cells = [name]
        for figure in figures:
            times = None if name == story.ours else ratio(story.readings, figure, name, story.ours)
            cells += [cell(_summary(story, name, figure)), cell(times)]
        rows.append(cells)
    return rows


def published_rows(story: RelayStory) -> list[list[str]]:
    """Row for each relay with the figures of other projects' published loads, and a last one with what they published;
    empty where none was measured."""
    names = [name for name in _columns(story) if any(_summary(story, name, each) for each in PUBLISHED)]
    if not names:
        return []
    measured = [[name, *(cell(_summary(story, name, each)) for each in PUBLISHED)] for name in names]
    theirs = [f"{each.whose}: {each.value:,g}" for each in PUBLISHED.values()]
    return [["", *(TITLES[each] for each in PUBLISHED)], *measured, ["published, not measured here", *theirs]]


def page_of(story: RelayStory, notes: str = "") -> str:
    """The whole page. `notes` is put before the conditions, unchanged."""
    return "\n\n".join(each.strip() for each in _sections(story, notes) if each.strip()) + "\n"


def _sections(story: RelayStory, notes: str) -> Iterator[str]:
    yield "# What a relay costs"
    yield (
        f"Measured on {story.date} with `{story.command}`, which makes this page. Medians of its rounds, with the"
        " lowest and the highest in brackets; ratios are taken within a round. Compare columns, not machines."
    )
    yield _table(table(story))
    yield _titled("Ratios", ratio_rows(story))
    yield _titled("Aims", aim_rows(story))
    yield _titled("By process", part_rows(story))
    if sibling_rows(story):
        yield _titled("Two processes on one host", sibling_rows(story))
        yield story.siblings_note
    yield _titled("The same gateway, set otherwise", setting_rows(story))
    if published_rows(story):
        yield _titled("Loads that others publish", published_rows(story))
        yield _PUBLISHED_NOTE
        yield markdown.bullets([f"{each.whose}, {each.value:,g}: {each.conditions}" for each in PUBLISHED.values()])
    yield notes
    yield "## Conditions"
    yield markdown.bullets([*(f"{name}: {value}" for name, value in story.machine.items()), *story.conditions])
    yield markdown.bullets([f"`{name}`: {what}" for name, what in story.relays.items() if _has_any(story, name)])
    if story.faults:
        yield "## Not measured"
        yield markdown.bullets([f"`{name}`: {why}" for name, why in story.faults.items()])


def _titled(title: str, rows: Sequence[Sequence[str]]) -> str:
    return f"## {title}\n\n{_table(rows)}" if rows else ""


def _table(rows: Sequence[Sequence[str]]) -> str:
    return markdown.table(rows[0], rows[1:])
