"""The page omits no failed request, and reports no missed target as met."""

from __future__ import annotations

from dataclasses import replace

from loadgen.demo.watch import Cause
from loadgen.studies.failover.cases import CaseOutcome, EarlyCall
from loadgen.studies.failover.page import page_of

MACHINE = {"cpu": "A CPU", "cores": 2, "memory_gib": 8, "kernel": "6", "python": "CPython 3.11", "core": "plain Python"}
BENCH = {"death_ms_at_10_replicas_in_3_regions": 0.1234, "snapshot_bytes_at_10000_replicas_in_3_regions": 2048}
GOOD = CaseOutcome("1 killed", False, False, 0.1, 2.0, 1.0, 1.5, 100, ((Cause.IN_FLIGHT, True, "cut"),), 0)
BESIDE = replace(GOOD, case="1 beside", has_sibling=True, served_s=None)


def page(*outcomes: CaseOutcome) -> str:
    return page_of(outcomes, BENCH, {**MACHINE, "busy": 0.5})


def test_all_aims_are_met_by_what_meets_them() -> None:
    text = page(GOOD, BESIDE)
    assert text.count("**met**") == 6
    assert "**not met**" not in text
    assert "A CPU, 2 cores, 8 GiB" in text
    assert "| 1 killed | 0.10 (0.10–0.10) | 2.00 (2.00–2.00) | 1.00 (1.00–1.00) | 1.50 (1.50–1.50) |" in text


def test_one_bad_round_is_enough_to_miss_an_aim() -> None:
    assert "**not met**: replicas reassigned after a kill -9 within 3 s (3.01 s at worst)" in page(
        GOOD, replace(GOOD, reassigned_s=3.01), BESIDE
    )
    late = page(GOOD, replace(GOOD, renamed_s=None), BESIDE)
    assert "**not met**: the DNS answer changed after a kill -9 within 5 s (2.00 s at worst, and 1 times not" in late
    assert "**not met**: without one, an adopter" in page(replace(GOOD, served_s=None), BESIDE)


def test_a_silent_host_has_aims_of_its_own() -> None:
    silent = replace(GOOD, case="silent", is_silent=True, reassigned_s=9.0, renamed_s=2.5)
    text = page(GOOD, BESIDE, silent)
    assert "**met**: replicas reassigned after a kill -9" in text
    assert "**met**: peers stop forwarding to a silent gateway within 2 s (0.10 s at worst)" in text
    assert "**not met**: the DNS answer changed after silence within 2 s (2.50 s at worst)" in text


def test_every_failure_is_counted_and_one_without_a_class_misses_the_aim() -> None:
    unbegun, unknown = (Cause.CACHED, False, "refused"), (Cause.OTHER, False, "odd")
    text = page(replace(GOOD, failures=(*GOOD.failures, unbegun, unknown), hung=3), BESIDE)
    assert "| 1 killed | 100 | 3 | 1 | 1 | 1 | 2 | 3 |" in text
    assert "**not met**: no failed request without a class (4 had none)" in text
    assert "**met**: with a sibling, no request failed whose answer had not begun (0 did)" in text
    assert "**not met**: 1 killed, no request failed whose answer had not begun (2 did)" in text
    assert "1 × cached_answer: `refused`" in text
    assert "**not met**: with a sibling" in page(GOOD, replace(BESIDE, failures=(unbegun,)))


def test_who_hangs_where_nobody_is_silent_has_no_class() -> None:
    text = page(replace(GOOD, hung=2), BESIDE, replace(GOOD, case="silent", is_silent=True, hung=3))
    assert "**not met**: no failed request without a class (2 had none)" in text


def test_every_size_that_was_measured_is_on_the_page() -> None:
    text = page(GOOD)
    for size in (
        "10 replicas, 3",
        "1,000 replicas, 3",
        "10,000 replicas, 3",
        "10 replicas, 100",
        "10,000 replicas, 100",
    ):
        assert f"| {size} regions |" in text


def test_what_the_core_costs_is_told_by_size_and_a_dash_where_it_is_not_known() -> None:
    rows = {line.split(" | ")[0]: line for line in page(GOOD).splitlines() if line.startswith("| ")}
    assert rows["| a gateway's death, ms"].split(" | ")[1:] == ["0.123", "–", "–", "–", "–", "– |"]
    assert rows["| largest snapshot, KiB"].split(" | ")[3] == "2"


def test_calls_to_the_further_address_stand_beside_those_to_the_nearest_of_all_cases_alike_before_the_kill() -> None:
    def early(*milliseconds: int, is_further: bool, is_forwarded: bool = False) -> tuple[EarlyCall, ...]:
        return tuple(EarlyCall(is_further, is_forwarded, each * 1_000_000) for each in milliseconds)

    one = replace(GOOD, early=early(*range(1, 101), is_further=False))
    forwarded = early(300, is_further=True, is_forwarded=True)
    two = replace(GOOD, case="2 killed", early=early(200, 201, 202, is_further=True) + forwarded)
    text = page(one, two, one, replace(GOOD, case="to all", further_gateways=3, early=two.early), BESIDE)
    assert "| 1 killed and 2 killed | 204 | 2.0 % | 25.0 % | 50.0 | 99.0 | 201.0 | 300.0 |" in text
    assert "| to all | 4 | 100.0 % | 25.0 % | – | – | 201.0 | 300.0 |" in text
    assert "| 1 beside | 0 | – | – | – | – | – | – |" in text
