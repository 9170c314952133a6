"""The page names each growth and each failure that no fault explains, and judges nothing else as missed."""

from __future__ import annotations

from dataclasses import replace

from gateway.core.vocabulary import RegionName
from loadgen.pages.markdown import NOTHING
from loadgen.report import RequestReport
from loadgen.studies.long.faults import LongFaultKind, LongFaultPlayed, PlannedFault
from loadgen.studies.long.flatness import ProcessSample, StoredSample
from loadgen.studies.long.page import FLAT, PER_REQUEST, WRITE_AHEAD, page_of
from loadgen.studies.long.playing import LongRecord
from loadgen.vocabulary import RequestEnd

MACHINE = dict.fromkeys(("cpu", "cores", "memory_gib", "kernel", "python", "core", "busy"), "some")
HERE = RegionName("us-east-1")
FAULT = LongFaultPlayed(PlannedFault(200.0, LongFaultKind.KILL_GATEWAY, "gw", 2.0), 200.0, 204.0, HERE)


def answered(at_s: int, end: RequestEnd = RequestEnd.COMPLETED, detail: str = "") -> RequestReport:
    at_ns = at_s * 10**9
    return RequestReport(HERE, end, at_ns, at_ns + 2 * 10**9, at_ns + 10**8, HERE, detail=detail)


def processes(grown_kib: int = 0, from_s: int = 0) -> list[ProcessSample]:
    return [ProcessSample(at, "gw", 1, 1000 + grown_kib * at // 480, 40, 17) for at in range(from_s, 480, 2)]


def files(log_bytes: int = 700, wal_mib: int = 1, requests: int = 1) -> list[StoredSample]:
    def sizes(at: int) -> dict[str, int]:
        return (
            dict.fromkeys(PER_REQUEST, log_bytes * at)
            | dict.fromkeys(FLAT, 1 << 20)
            | dict.fromkeys(WRITE_AHEAD, wal_mib << 20)
        )

    return [StoredSample(at, sizes(at), requests * at) for at in range(0, 480, 2)]


REST = [ProcessSample(0.0, "gw", 1, 1000, 40, 17)]
GOOD = LongRecord(
    480.0, [answered(at) for at in range(0, 480, 5)], [FAULT], processes(), files(), REST, REST, 1, 500.0, 300.0, ["gw"]
)


def missed(record: LongRecord, machine_busy: float = 0.4) -> list[str]:
    page = page_of(record, MACHINE, machine_busy, 2, "make results NAME=long TRACES=dir")
    assert "**met**" in page
    return [line.removeprefix("- **not met**: ") for line in page.splitlines() if "**not met**" in line]


def test_what_stays_the_same_is_met() -> None:
    assert missed(GOOD) == []


def test_growth_is_named_with_its_figures() -> None:
    (grown, leak) = missed(replace(GOOD, processes=processes(500)))
    assert grown.startswith("gw, 0–478 s: resident MiB are flat (1.2, then 1.4: +")
    assert grown.endswith("; shows a leak from 0.25 KiB per request on)")
    assert leak == "gw, 0–478 s: at most 1 KiB stay per request (1.05 KiB, over 238 requests)"
    (files_left,) = missed(replace(GOOD, after=[replace(REST[0], descriptors=43)]))
    assert files_left == "gw: descriptors at rest are flat (40, then 43: +7.5 %)"
    assert missed(replace(GOOD, after=[replace(REST[0], descriptors=42)])) == []
    full = missed(replace(GOOD, stored=files(wal_mib=5)))
    assert full == [f"{kind}: at most 4.25 MiB, its bound (5.0 MiB)" for kind in WRITE_AHEAD]
    none = missed(replace(GOOD, stored=[replace(each, stored=dict.fromkeys(each.stored, 0)) for each in files()]))
    assert none == [
        *(f"{kind}: bytes per request: not judged: there is no such file" for kind in PER_REQUEST),
        *(f"{kind}: KiB in all: not judged: there is no such file" for kind in FLAT),
        *(f"{kind}: at most 4.25 MiB, its bound (0.0 MiB)" for kind in WRITE_AHEAD),
    ]
    growing = [replace(each, stored={**each.stored, FLAT[2]: round(each.at_s) << 10}) for each in files()]
    (database,) = missed(replace(GOOD, stored=growing))
    assert database.startswith("controller's database: KiB in all are flat (")
    assert len(missed(replace(GOOD, stored=files(700)[:120] + files(900)[120:]))) == len(PER_REQUEST)


def test_failures_without_a_fault_and_faults_that_were_not_played_are_named() -> None:
    explained = replace(GOOD, records=[*GOOD.records, answered(201, RequestEnd.FAILED, "ServerDisconnectedError: cut")])
    assert missed(explained) == []
    strange = replace(GOOD, records=[*GOOD.records, answered(90, RequestEnd.FAILED, "odd `text`")])
    assert missed(strange) == ["a fault explains each failed request (1 failed, 1 without one)"]
    page = page_of(strange, MACHINE, 0.4, 2, "a command")
    assert "- 1 × **not explained**: `odd 'text'`" in page
    assert "- sent at 90.0 s and failed at 92.0 s, by a client of us-east-1; no fault had begun" in page
    after = page_of(replace(strange, records=[answered(250, RequestEnd.FAILED, "odd")]), MACHINE, 0.4, 2, "a command")
    assert "by a client of us-east-1; last fault: gateway killed: gw, from 200.0 to 204.0 s" in after
    refused = replace(GOOD, records=[*GOOD.records, answered(201, RequestEnd.FAILED, "HTTP 403: residency_error")])
    assert missed(refused) == ["a fault explains each failed request (1 failed, 1 without one)"]
    assert missed(replace(GOOD, planned=2)) == ["each fault was played in its slot (1 of 2)"]
    late = replace(FAULT, began_s=221.0, over_s=225.0)
    assert missed(replace(GOOD, faults=[late])) == ["each fault was played in its slot (0 of 1)"]


def test_a_failed_request_counts_under_one_fault_and_drawn_and_measured_times_are_apart() -> None:
    cut = LongFaultPlayed(PlannedFault(203.0, LongFaultKind.CUT, HERE, 1.5), 203.0, 210.0, HERE)
    lost = answered(202, RequestEnd.FAILED, "ClientPayloadError: cut")
    page = page_of(replace(GOOD, records=[lost], faults=[FAULT, cut]), MACHINE, 0.4, 2, "a command")
    assert "| gateway killed | 1 | 2.0 | 4.0 | 0 | 0 |" in page
    assert "| links cut | 1 | 1.5 | 7.0 | 0 | 1 |" in page


def test_a_fault_after_which_all_never_was_whole_is_named() -> None:
    never = replace(GOOD, faults=[replace(FAULT, is_whole=False)])
    assert missed(never) == ["all is whole again within 45 s of each fault's end (0 of 1)"]
    assert f"| gateway killed | 1 | 2.0 | {NOTHING} | 1 | 0 |" in page_of(never, MACHINE, 0.4, 2, "a command")


def test_a_spared_process_without_a_life_that_spans_the_run_is_named() -> None:
    assert missed(replace(GOOD, processes=processes(from_s=60))) == ["gw: one life spans the run"]
    assert missed(replace(GOOD, spared=["gw", "controller"])) == ["controller: one life spans the run"]


def test_what_cannot_be_judged_is_missed_and_loses_no_page() -> None:
    quiet = missed(replace(GOOD, stored=files(requests=0)))
    assert "audit logs: bytes per request: not judged: in a quarter no request has ended" in quiet
    assert "gw, 0–478 s: KiB per request: not judged: in its life no request has ended" in quiet
    assert missed(replace(GOOD, after=[])) == ["gw: descriptors at rest: not judged: it did not run then"]
    assert missed(replace(GOOD, stored=[], processes=[]))


def test_eight_simulated_hours_are_told_as_eight_minutes() -> None:
    page = page_of(GOOD, MACHINE, 0.4, 2, "a command")
    assert page.startswith("# Eight simulated hours in eight minutes\n")
    assert "are eight minutes of real time" in page


def test_a_run_that_measures_the_machine_alone_is_missed() -> None:
    assert missed(GOOD, 0.9) == ["at most 80% of the machine's CPU is in use by all that runs there (90%)"]
    assert missed(replace(GOOD, cpu_s=700.0)) == ["the run takes at most 60% of the machine's CPU (70%)"]
