"""Failures that clients saw of a gateway's death are counted by cause; an unexplained failure, or an unseen death, is a
problem.
"""

from __future__ import annotations

import io
import re
from dataclasses import replace

from rich.console import Console

from gateway.core.vocabulary import GatewayId, RegionName
from loadgen.demo.failover import (
    DemoFailover,
    FailoverReport,
    failover_document,
    seen_by_clients,
    seen_by_the_mesh,
    why_lost,
)
from loadgen.demo.report import RunResult
from loadgen.demo.watch import Cause, Death, ReplicasReturned, Sightings
from loadgen.report import RequestReport
from loadgen.vocabulary import RequestEnd
from tests.support.walk import ROOT

US, AP = RegionName("us-east-1"), RegionName("ap-northeast-1")
S = 1_000_000_000
FAILOVER = DemoFailover(
    GatewayId("gw-ap"),
    Death(frozenset({"127.77.3.1"}), 5 * S, 5 * S + 1, 7 * S),
    Sightings(5 * S + S // 10, 6 * S, 7 * S),
    8 * S,
    ReplicasReturned(15 * S, 14 * S),
)
ANSWERED = RequestReport(US, RequestEnd.COMPLETED, 0, S)
IN_FLIGHT = RequestReport(AP, RequestEnd.FAILED, 4 * S, 5 * S + 2, detail="cut")
OLD_ANSWER = RequestReport(AP, RequestEnd.FAILED, 6 * S, 6 * S + 1, detail="refused ('127.77.3.1', 1)")
LATE = RequestReport(US, RequestEnd.FAILED, 9 * S, 10 * S, detail="cut")


def report(
    *records: RequestReport, failover: DemoFailover | None = FAILOVER, is_partial: bool = False
) -> FailoverReport:
    return FailoverReport(RunResult("failover", (US, AP), 13.0, records, {}, is_partial=is_partial), failover)


def told(shown: object) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_each_failure_has_its_cause_and_those_of_a_death_are_no_problem() -> None:
    good = report(ANSWERED, IN_FLIGHT, OLD_ANSWER)
    assert good.failures() == {Cause.IN_FLIGHT: 1, Cause.CACHED: 1}
    assert good.failures(US) == {}
    assert list(good.problems()) == []
    document = failover_document(good)
    assert document["failures"] == {"in_flight": 1, "cached_answer": 1, "unexplained": 0}
    assert document["seen"] == {
        "no other gateway forwards to it": 100,
        "its replicas are served by others": 1000,
        "the name leads elsewhere": 2000,
        "its replicas are home": 7000,
        "the name leads to it": 6000,
    }


def test_why_requests_were_lost_is_said_beside_how_many_of_each_region() -> None:
    told, advice = why_lost(report(ANSWERED, IN_FLIGHT, OLD_ANSWER, OLD_ANSWER))
    assert told == (
        "Of 3 requests from ap-northeast-1 3 were lost: 1 were under way at the gateway that was killed, and ended "
        "with it; 2 went to its address by an old answer of the name: clients keep one for 5 s, and these try no other "
        "address."
    )
    (page,) = re.findall(r"\((docs/\S+)\)", advice)
    assert "front" in advice
    assert (ROOT / page).is_file()
    assert len(list(why_lost(report(ANSWERED, OLD_ANSWER)))) == 1, "no stream ended"
    assert list(why_lost(report(ANSWERED, LATE))) == [], "no death explains it: it is told as a problem"


def test_what_no_death_explains_and_what_was_not_seen_are_problems() -> None:
    assert list(report(LATE).problems()) == ["failover: 1 × cut, which no death explains"]
    unseen = replace(FAILOVER, home=ReplicasReturned(None, 14 * S))
    assert list(report(failover=unseen).problems()) == ["failover: it was not seen that its replicas are home"]


def test_a_run_that_was_over_before_anybody_died_says_so_unless_it_was_stopped() -> None:
    assert list(report(failover=None).problems()) == ["failover: no gateway was killed"]
    assert list(report(failover=None, is_partial=True).problems()) == []
    assert next(report(LATE, failover=None).problems()) == "failover: 1 × cut, which no death explains"


def test_the_tables_hold_it_all() -> None:
    shown = told(seen_by_clients(report(ANSWERED, IN_FLIGHT, OLD_ANSWER)))
    assert [line.split() for line in shown.splitlines() if line.startswith(("us-", "ap-", "all"))] == [
        ["us-east-1", "1", "1", "0", "0", "0", "0"],
        ["ap-northeast-1", "2", "0", "1", "1", "0", "0"],
        ["all", "3", "1", "1", "1", "0", "0"],
    ]
    mesh = told(seen_by_the_mesh(report()))
    assert "gw-ap: kill -9 after 5.0 s of load" in mesh
    assert "the kill + 1.00 s" in mesh
    assert "its return + 7.00 s" in mesh
