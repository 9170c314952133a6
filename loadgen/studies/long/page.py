"""Page of a long run: what clients saw, the faults, what processes held, and the judgement. It computes no figure that
another module measures, and must never leave out a failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from loadgen.pages.markdown import NOTHING
from loadgen.report import RequestReport, quantile
from loadgen.studies.long import faults, playing
from loadgen.studies.long.faults import LongFaultKind, LongFaultPlayed, unexplained
from loadgen.studies.long.flatness import (
    FLAT_SHARE,
    LIFE_MIN_S,
    Change,
    ProcessSample,
    change_of,
    change_per_request,
    long_lives,
)
from loadgen.studies.long.playing import LongRecord
from loadgen.studies.rendering import render, shortened, signed
from loadgen.vocabulary import RequestEnd

_SECOND_NS = 1_000_000_000
PER_REQUEST = ("audit logs", "gateways' logs")
"""Kinds of bytes that grow with each request."""
FLAT = ("journals",)
"""Kinds of bytes that stay the same once they have reached their bound."""
STORES: Mapping[str, int] = {"state": 3, "controller's store": 1}
"""Kinds of bytes that are SQLite's, with the number of databases: these grow until their write-ahead log is full."""
STORE_MIB_MAX = 4.25
"""Bound of one: a write-ahead log of 1,000 pages of 4 KiB, and a database of 256 KiB."""
BUSY_MAX = 0.6
"""Largest share of the machine's CPU that the run may use, so that it does not measure the machine alone."""


@dataclass(frozen=True, slots=True)
class JudgedChange:
    """Change of one figure of one process or of all files of a kind."""

    what: str
    unit: str
    change: Change


def page_of(record: LongRecord, machine: Mapping[str, object], cores: int, command: str) -> str:
    changes = [*_changes(record)]
    busy = record.cpu_s / (cores * record.took_s)
    return render(
        "long/page.j2", record=record, machine=machine, command=command, hours=[*_hours(record)], faults=faults,
        kinds=[(kind, *_kind(kind, record)) for kind in LongFaultKind], changes=changes, playing=playing, busy=busy,
        flat_share=FLAT_SHARE, life_min_s=min(LIFE_MIN_S, record.seconds / 3), failures=_failures(record),
        judged=[*_judged(record, changes, busy)], at_rest=[*_at_rest(record)], busy_max=BUSY_MAX,
    )  # fmt: skip


def _hours(record: LongRecord) -> Iterator[tuple[str, ...]]:
    """Row of each simulated hour: requests, failed, time to the first token, and answered by another region."""
    hour_s = 3600 / playing.SPEED
    for number in range(round(record.seconds / hour_s + 0.49)):
        within = [each for each in record.records if number <= each.sent_ns / _SECOND_NS / hour_s < number + 1]
        begun = [(each.sent_ns, each.first_token_ns) for each in within]
        waits = [(first_ns - sent_ns) / _SECOND_NS for sent_ns, first_ns in begun if first_ns is not None]
        away = sum(each.served_by not in (None, each.client_region) for each in within)
        times = f"{quantile(waits, 0.5):.2f} / {quantile(waits, 0.99):.2f}" if waits else NOTHING
        failed = sum(each.end is not RequestEnd.COMPLETED for each in within)
        yield str(number + 1), f"{len(within):,}", str(failed), times, f"{away:,}"


def _kind(kind: LongFaultKind, record: LongRecord) -> tuple[str, ...]:
    """Number of faults of a kind, the time until all was restored, and requests open meanwhile that failed."""
    played = [each for each in record.faults if each.fault.kind is kind]
    if not played:
        return "0", NOTHING, NOTHING
    lasted = [each.over_s - each.began_s for each in played]
    failed = sum(
        _is_open_in(each, played)
        for each in record.records
        if each.end is not RequestEnd.COMPLETED and (kind in faults.EXPLAINS or unexplained(each, record.faults))
    )
    return str(len(played)), f"{min(lasted):.1f}–{max(lasted):.1f}", str(failed)


def _is_open_in(record: RequestReport, played: Sequence[LongFaultPlayed]) -> bool:
    return any(
        record.sent_ns / _SECOND_NS <= each.over_s + faults.NAMED_S and record.ended_ns / _SECOND_NS >= each.began_s
        for each in played
    )


def _failures(record: LongRecord) -> list[str]:
    """Failures in the client's own words, with those that no fault explains first."""
    said = Counter(
        (not unexplained(each, record.faults), shortened(each.detail) or str(each.end))
        for each in record.records
        if each.end is not RequestEnd.COMPLETED
    )
    return [
        f"{count} × {'explained' if is_explained else '**not explained**'}: `{text}`"
        for (is_explained, text), count in sorted(said.items(), key=lambda each: (each[0][0], -each[1]))[:24]
    ]


def _changes(record: LongRecord) -> Iterator[JudgedChange]:
    for life in long_lives(record.processes, min(LIFE_MIN_S, record.seconds / 3)):
        name = f"{life[0].name}, {life[0].at_s:.0f}–{life[-1].at_s:.0f} s"
        yield JudgedChange(name, "resident MiB", _change(life, "resident_kib", 1 / 1024))
        yield JudgedChange(name, "threads", replace(_change(life, "threads"), is_count=True))
    for kind in PER_REQUEST:
        yield JudgedChange(kind, "bytes per request", change_per_request(record.stored, kind))
    for kind in (*FLAT, *STORES):
        points = [(each.at_s, each.stored[kind] / 1024) for each in record.stored]
        yield JudgedChange(kind, "KiB in all", change_of(points))


def _change(life: Sequence[ProcessSample], figure: str, scale: float = 1.0) -> Change:
    return change_of([(each.at_s, getattr(each, figure) * scale) for each in life])


def _at_rest(record: LongRecord) -> Iterator[JudgedChange]:
    """Descriptors of each process at rest, before the first request and after the last."""
    before = {each.name: each.descriptors for each in record.before}
    for each in record.after:
        yield JudgedChange(each.name, "descriptors", Change(before[each.name], each.descriptors, is_count=True))


def _judged(record: LongRecord, changes: Sequence[JudgedChange], busy: float) -> Iterator[str]:
    failed = [each for each in record.records if each.end is not RequestEnd.COMPLETED]
    strange = sum(unexplained(each, record.faults) for each in failed)
    yield f"{_word(not strange)}: a fault explains each failed request ({len(failed)} failed, {strange} without one)"
    played = len(record.faults)
    yield f"{_word(played == record.planned)}: all faults were played ({played} of {record.planned})"
    for each in (*(each for each in changes if each.what not in STORES), *_at_rest(record)):
        at_rest = " at rest" if each.unit == "descriptors" else ""
        form = ".1f" if each.unit == "resident MiB" else ",.0f"
        values = f"{each.change.early:{form}}, then {each.change.late:{form}}: {signed(each.change.share)}"
        yield f"{_word(each.change.is_flat)}: {each.what}: {each.unit}{at_rest} are flat ({values})"
    for kind, count in STORES.items():
        most = max(each.stored[kind] for each in record.stored) / 2**20
        bound = STORE_MIB_MAX * count
        yield f"{_word(most <= bound)}: {kind}: at most {bound:g} MiB, its bound ({most:.1f} MiB)"
    yield f"{_word(busy <= BUSY_MAX)}: the run takes at most {BUSY_MAX:.0%} of the machine's CPU ({busy:.0%})"


def _word(is_met: bool) -> str:
    return "**met**" if is_met else "**not met**"
