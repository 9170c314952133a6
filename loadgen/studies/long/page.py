"""Page of a long run: what clients saw, the faults, what processes held, and the judgement. It computes no figure that
another module measures, and must never leave out a failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from loadgen.pages.markdown import NOTHING, between
from loadgen.report import RequestReport, quantile
from loadgen.studies.long import faults, playing
from loadgen.studies.long.faults import LongFaultKind, explanation, unexplained
from loadgen.studies.long.flatness import (
    FLAT_SHARE,
    LIFE_MIN_S,
    Change,
    ProcessSample,
    change_of,
    change_per_request,
    long_lives,
    requests_between,
)
from loadgen.studies.long.playing import LongRecord
from loadgen.studies.rendering import render, shortened, signed
from loadgen.vocabulary import RequestEnd

_SECOND_NS = 1_000_000_000
PER_REQUEST = ("audit logs", "gateways' logs")
"""Kinds of bytes that grow with each request."""
PER_REQUEST_UNIT = "bytes per request"
FLAT = ("journals", "state's databases", "controller's database")
"""Kinds of bytes that stay the same once they have reached their bound."""
WRITE_AHEAD = ("state's largest write-ahead log", "controller's write-ahead log")
"""Largest SQLite write-ahead log of a kind: each grows until it is full."""
WRITE_AHEAD_MIB_MAX = 4.25
"""Bound of one: 1,000 pages of 4 KiB, and those of the transaction that fills it."""
LEAK_KIB_MAX = 1.0
"""Largest growth of a process for each request, where one life spans the run: what a request would leave, such as its
body or its record, is larger."""
SPANS_SHARE = 0.95
"""Share of the run in which a process that spans it is sampled."""
BUSY_MAX = 0.6
"""Largest share of the machine's CPU that the run may use, so that it does not measure the machine alone."""
MACHINE_BUSY_MAX = 0.8
"""The same, of all that runs on the machine."""
STRANGE_MAX = 12
"""Most failures without a fault that the page tells one by one."""


@dataclass(frozen=True, slots=True)
class JudgedChange:
    """Change of one figure of one process or of all files of a kind."""

    what: str
    unit: str
    change: Change | None
    """Change itself; None if it is not judged."""
    requests: int | None = None
    """Requests of a life, by which the change of its resident memory is divided."""
    spans: bool = False
    """True for a life that spans the run."""
    reason: str = ""
    """Text for a change that is not judged."""

    @property
    def leak_kib(self) -> float | None:
        """Growth of resident memory for each request, in KiB."""
        return 1024 * (self.change.late - self.change.early) / self.requests if self.change and self.requests else None

    @property
    def least_kib(self) -> float | None:
        """Smallest leak for each request that changes the figure by more than counts as none, in KiB; None for a figure
        that no request changes."""
        if self.change and self.unit == PER_REQUEST_UNIT:
            return self.change.early * FLAT_SHARE / 1024
        return 1024 * self.change.early * FLAT_SHARE / self.requests if self.change and self.requests else None


def page_of(record: LongRecord, machine: Mapping[str, object], machine_busy: float, cores: int, command: str) -> str:
    """Text of the page. `machine_busy` is the share of the machine's CPU that was in use by all that ran there."""
    changes = [*_changes(record)]
    busy = record.cpu_s / (cores * record.took_s)
    judged = [
        *_judged(record, changes),
        f"{_word(busy <= BUSY_MAX)}: the run takes at most {BUSY_MAX:.0%} of the machine's CPU ({busy:.0%})",
        f"{_word(machine_busy <= MACHINE_BUSY_MAX)}: at most {MACHINE_BUSY_MAX:.0%} of the machine's CPU is in use by "
        f"all that runs there ({machine_busy:.0%})",
    ]
    return render(
        "long/page.j2", record=record, machine=machine, command=command, hours=[*_hours(record)], faults=faults,
        kinds=[(kind, *_kind(kind, record)) for kind in LongFaultKind], changes=changes, playing=playing, busy=busy,
        flat_share=FLAT_SHARE, life_min_s=_life_min_s(record), failures=_failures(record), strange=_strange(record),
        judged=judged, at_rest=[*_at_rest(record)], leak_kib_max=LEAK_KIB_MAX, lasts=_in_words(record.seconds),
    )  # fmt: skip


def _in_words(seconds: float) -> tuple[str, str]:
    """Simulated hours of a run, and minutes of real time, in words of the title."""
    hours, minutes = seconds * playing.SPEED / 3600, seconds / 60
    words = {8.0: "eight"}
    return words.get(hours, f"{hours:g}"), words.get(minutes, f"{minutes:g}")


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
    """Number of faults of a kind, their drawn durations, the times until all was whole, the number of those after which
    it never was, and failed requests that they explain."""
    played = [each for each in record.faults if each.fault.kind is kind]
    whole = [each.over_s - each.began_s for each in played if each.is_whole]
    explaining = [explanation(each, record.faults) for each in record.records if each.end is not RequestEnd.COMPLETED]
    failed = sum(each is not None and each.fault.kind is kind for each in explaining)
    drawn = between([each.fault.lasts_s for each in played])
    return str(len(played)), drawn, between(whole), str(len(played) - len(whole)), str(failed)


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


def _strange(record: LongRecord) -> list[str]:
    """First requests that failed without a fault that explains it, each with the last fault that began before."""
    strange = [each for each in record.records if unexplained(each, record.faults)]
    return [
        f"sent at {each.sent_ns / _SECOND_NS:.1f} s and failed at {each.ended_ns / _SECOND_NS:.1f} s, by a client of "
        f"{each.client_region}; {_fault_before(each, record)}"
        for each in sorted(strange, key=lambda each: each.sent_ns)[:STRANGE_MAX]
    ]


def _fault_before(failed: RequestReport, record: LongRecord) -> str:
    begun = [each for each in record.faults if each.began_s <= failed.ended_ns / _SECOND_NS]
    if not begun:
        return "no fault had begun"
    last = max(begun, key=lambda each: each.began_s)
    return f"last fault: {last.fault.kind}: {last.fault.target}, from {last.began_s:.1f} to {last.over_s:.1f} s"


def _changes(record: LongRecord) -> Iterator[JudgedChange]:
    for life in _lives(record):
        name = f"{life[0].name}, {life[0].at_s:.0f}–{life[-1].at_s:.0f} s"
        memory = _judge(name, "resident MiB", partial(_change, life, "resident_kib", 1 / 1024))
        with suppress(ValueError):
            requests = requests_between(record.stored, life)
            memory = replace(memory, requests=requests, spans=_spans(life, record))
        yield memory
        yield _judge(name, "threads", partial(_change, life, "threads", is_count=True))
    for kind in PER_REQUEST:
        yield _judge(kind, PER_REQUEST_UNIT, partial(_stored_per_request, record, kind))
    for kind in FLAT:
        yield _judge(kind, "KiB in all", partial(_stored, record, kind))


def _life_min_s(record: LongRecord) -> float:
    """Shortest life that is judged, in seconds; a third of a short run."""
    return min(LIFE_MIN_S, record.seconds / 3)


def _lives(record: LongRecord) -> list[list[ProcessSample]]:
    return long_lives(record.processes, _life_min_s(record))


def _judge(what: str, unit: str, change: Callable[[], Change]) -> JudgedChange:
    """The change, or the reason for which there is none."""
    try:
        return JudgedChange(what, unit, change())
    except ValueError as error:
        return JudgedChange(what, unit, None, reason=str(error))


def _change(life: Sequence[ProcessSample], figure: str, scale: float = 1.0, *, is_count: bool = False) -> Change:
    return replace(change_of([(each.at_s, getattr(each, figure) * scale) for each in life]), is_count=is_count)


def _stored_per_request(record: LongRecord, kind: str) -> Change:
    _refuse_none(record, kind)
    return change_per_request(record.stored, kind)


def _refuse_none(record: LongRecord, kind: str) -> None:
    """Raise ValueError if there never was a byte of the kind."""
    if not any(each.stored[kind] for each in record.stored):
        raise ValueError("there is no such file")


def _stored(record: LongRecord, kind: str) -> Change:
    _refuse_none(record, kind)
    return change_of([(each.at_s, each.stored[kind] / 1024) for each in record.stored])


def _spans(life: Sequence[ProcessSample], record: LongRecord) -> bool:
    return life[-1].at_s - life[0].at_s >= SPANS_SHARE * record.seconds


def _at_rest(record: LongRecord) -> Iterator[JudgedChange]:
    """Descriptors of each process at rest, after the warm-up and after the last request."""
    before, after = ({each.name: each.descriptors for each in samples} for samples in (record.before, record.after))
    for name in sorted({*before, *after}):
        if name in before and name in after:
            yield JudgedChange(name, "descriptors", Change(before[name], after[name], is_count=True))
        else:
            yield JudgedChange(name, "descriptors", None, reason="it did not run then")


def _judged(record: LongRecord, changes: Sequence[JudgedChange]) -> Iterator[str]:
    failed = [each for each in record.records if each.end is not RequestEnd.COMPLETED]
    strange = sum(unexplained(each, record.faults) for each in failed)
    yield f"{_word(not strange)}: a fault explains each failed request ({len(failed)} failed, {strange} without one)"
    in_time = sum(each.is_in_time(record.seconds) for each in record.faults)
    yield f"{_word(in_time == record.planned)}: each fault was played in its slot ({in_time} of {record.planned})"
    whole = sum(each.is_whole for each in record.faults)
    yield (
        f"{_word(whole == len(record.faults))}: all is whole again within {playing.WHOLE_S:g} s of each fault's end "
        f"({whole} of {len(record.faults)})"
    )
    spanning = {life[0].name for life in _lives(record) if _spans(life, record)}
    for name in record.spared:
        yield f"{_word(name in spanning)}: {name}: one life spans the run"
    for each in (*changes, *_at_rest(record)):
        yield from _judged_change(each)
    for kind in WRITE_AHEAD:
        most = max((each.stored[kind] for each in record.stored), default=0) / 2**20
        bound = WRITE_AHEAD_MIB_MAX
        yield f"{_word(0 < most <= bound)}: {kind}: at most {bound:g} MiB, its bound ({most:.1f} MiB)"


def _judged_change(each: JudgedChange) -> Iterator[str]:
    """Lines about one figure: whether it is flat, and for a life that spans the run how much a request leaves."""
    at_rest = " at rest" if each.unit == "descriptors" else ""
    if each.change is None:
        yield f"{_word(False)}: {each.what}: {each.unit}{at_rest}: not judged: {each.reason}"
        return
    form = ".1f" if each.unit == "resident MiB" else ",.0f"
    values = f"{each.change.early:{form}}, then {each.change.late:{form}}: {signed(each.change.share)}"
    least = "" if each.least_kib is None else f"; shows a leak from {each.least_kib:.2f} KiB per request on"
    yield f"{_word(each.change.is_flat)}: {each.what}: {each.unit}{at_rest} are flat ({values}{least})"
    if each.unit != "resident MiB" or not (each.spans or each.leak_kib is None):
        return
    if each.leak_kib is None:
        yield f"{_word(False)}: {each.what}: KiB per request: not judged: in its life no request has ended"
    else:
        told = f"{each.leak_kib:.2f} KiB, over {each.requests:,} requests".replace("-", "−")
        is_met = each.leak_kib <= LEAK_KIB_MAX
        yield f"{_word(is_met)}: {each.what}: at most {LEAK_KIB_MAX:g} KiB stay per request ({told})"


def _word(is_met: bool) -> str:
    return "**met**" if is_met else "**not met**"
