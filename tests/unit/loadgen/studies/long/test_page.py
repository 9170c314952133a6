"""The page names each growth and each failure that no fault explains, and judges nothing else as missed."""

from __future__ import annotations

from dataclasses import replace

from gateway.core.vocabulary import RegionName
from loadgen.report import RequestReport
from loadgen.studies.long.faults import LongFaultKind, LongFaultPlayed, PlannedFault
from loadgen.studies.long.flatness import ProcessSample, StoredSample
from loadgen.studies.long.page import FLAT, PER_REQUEST, STORES, page_of
from loadgen.studies.long.playing import LongRecord
from loadgen.vocabulary import RequestEnd

MACHINE = dict.fromkeys(("cpu", "cores", "memory_gib", "kernel", "python", "core", "busy"), "some")
HERE = RegionName("us-east-1")
FAULT = LongFaultPlayed(PlannedFault(200.0, LongFaultKind.KILL_GATEWAY, "gw", 2.0), 200.0, 204.0)


def answered(at_s: int, end: RequestEnd = RequestEnd.COMPLETED, detail: str = "") -> RequestReport:
    at_ns = at_s * 10**9
    return RequestReport(HERE, end, at_ns, at_ns + 2 * 10**9, at_ns + 10**8, HERE, detail=detail)


def processes(grown_kib: int = 0, from_s: int = 0) -> list[ProcessSample]:
    return [ProcessSample(at, "gw", 1, 1000 + grown_kib * at // 480, 40, 17) for at in range(from_s, 480, 2)]


def files(log_bytes: int = 700, store_mib: int = 1) -> list[StoredSample]:
    def sizes(at: int) -> dict[str, int]:
        return dict.fromkeys(PER_REQUEST, log_bytes * at) | dict.fromkeys((*FLAT, *STORES), store_mib << 20)

    return [StoredSample(at, sizes(at), at) for at in range(0, 480, 2)]


REST = [ProcessSample(0.0, "gw", 1, 1000, 40, 17)]
GOOD = LongRecord(
    480.0, [answered(at) for at in range(0, 480, 5)], [FAULT], processes(), files(), REST, REST, 1, 500.0, 300.0
)


def missed(record: LongRecord) -> list[str]:
    page = page_of(record, MACHINE, 2, "make results NAME=long TRACES=dir")
    assert "**met**" in page
    return [line.removeprefix("- **not met**: ") for line in page.splitlines() if "**not met**" in line]


def test_what_stays_the_same_is_met() -> None:
    assert missed(GOOD) == []


def test_growth_is_named_with_its_figures() -> None:
    (grown,) = missed(replace(GOOD, processes=processes(500)))
    assert grown.startswith("gw, 0–478 s: resident MiB are flat (1.2, then 1.4: +")
    (files_left,) = missed(replace(GOOD, after=[replace(REST[0], descriptors=43)]))
    assert files_left == "gw: descriptors at rest are flat (40, then 43: +7.5 %)"
    assert missed(replace(GOOD, after=[replace(REST[0], descriptors=42)])) == []
    (full,) = missed(replace(GOOD, stored=files(store_mib=5)))
    assert full == "controller's store: at most 4.25 MiB, its bound (5.0 MiB)"
    assert len(missed(replace(GOOD, stored=files(700)[:120] + files(900)[120:]))) == len(PER_REQUEST)


def test_failures_without_a_fault_and_faults_that_were_not_played_are_named() -> None:
    explained = replace(GOOD, records=[*GOOD.records, answered(201, RequestEnd.FAILED, "cut")])
    assert missed(explained) == []
    strange = replace(GOOD, records=[*GOOD.records, answered(90, RequestEnd.FAILED, "odd `text`")])
    assert missed(strange) == ["a fault explains each failed request (1 failed, 1 without one)"]
    page = page_of(strange, MACHINE, 2, "a command")
    assert "- 1 × **not explained**: `odd 'text'`" in page
    assert missed(replace(GOOD, planned=2)) == ["all faults were played (1 of 2)"]


def test_a_run_that_measures_the_machine_alone_is_missed() -> None:
    assert missed(replace(GOOD, cpu_s=700.0)) == ["the run takes at most 60% of the machine's CPU (70%)"]
