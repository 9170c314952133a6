"""Plans of faults come from a seed alone, leave nothing out, and explain only failures that they can cause."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import aiohttp
import pytest

from gateway.core.vocabulary import RegionName
from loadgen.names import NameAnswer, NameResolver
from loadgen.report import RequestReport
from loadgen.studies.long.faults import (
    RETURN_S,
    SLOT_S,
    WARM_S,
    LongFaultKind,
    LongFaultPlayed,
    PlannedFault,
    explanation,
    plan_faults,
    targets_of,
    unexplained,
)
from loadgen.vocabulary import RequestEnd
from mesh.clock import Clock

GATEWAYS, ENGINES, REGIONS = ("g1", "g2", "g3"), ("e1", "e2"), ("r1", "r2", "r3")
HERE = RegionName("r1")


def plan(seconds: float = 480.0, seed: int = 1) -> list[PlannedFault]:
    return plan_faults(seconds, seed, targets_of(GATEWAYS, ENGINES, "c", REGIONS, spared="g2"))


def test_a_seed_is_one_plan_and_another_seed_another() -> None:
    assert plan() == plan()
    assert plan() != plan(seed=2)
    assert plan(60.0) == plan()[:1], "a longer run begins as a shorter one"


def test_every_kind_and_every_target_comes_before_any_comes_again() -> None:
    planned = plan(3 * len(LongFaultKind) * SLOT_S + WARM_S + RETURN_S)
    for begin in range(0, len(planned), len(LongFaultKind)):
        assert {each.kind for each in planned[begin : begin + len(LongFaultKind)]} == {*LongFaultKind}
    killed = [each.target for each in planned if each.kind is LongFaultKind.KILL_GATEWAY]
    assert {*killed} == {"g1", "g3"}, "one life spans the run"
    assert {each.target for each in planned if each.kind is LongFaultKind.CUT} == {*REGIONS}


def test_faults_follow_each_other_and_leave_time_to_fill_and_to_return() -> None:
    planned = plan()
    assert all(one.at_s + one.lasts_s < other.at_s for one, other in pairwise(planned))
    assert planned[0].at_s >= WARM_S
    assert planned[-1].at_s + planned[-1].lasts_s < 480.0 - RETURN_S
    assert plan(WARM_S + RETURN_S) == []


def failed(sent_s: float, ended_s: float, detail: str = "ClientPayloadError: cut off") -> RequestReport:
    return RequestReport(HERE, RequestEnd.FAILED, round(sent_s * 1e9), round(ended_s * 1e9), detail=detail)


def played(kind: LongFaultKind, region: str = HERE, began_s: float = 50.0) -> LongFaultPlayed:
    return LongFaultPlayed(PlannedFault(began_s, kind, "some", 5.0), began_s, began_s + 6.0, region)


@pytest.mark.parametrize(("sent_s", "ended_s", "is_open"), [
    (40.0, 49.9, False), (40.0, 50.0, True), (51.0, 52.0, True), (64.0, 65.0, True), (64.1, 65.0, False),
])  # fmt: skip
def test_a_fault_explains_failures_of_requests_that_were_open(sent_s: float, ended_s: float, is_open: bool) -> None:
    assert unexplained(failed(sent_s, ended_s), [played(LongFaultKind.KILL_GATEWAY)]) is not is_open


def test_a_fault_explains_failures_of_requests_that_were_sent_to_its_gateway_from_elsewhere() -> None:
    lost = replace(failed(51.0, 52.0, "ServerDisconnectedError: Server disconnected"), sent_to="192.0.2.1")
    elsewhere = replace(played(LongFaultKind.KILL_GATEWAY, "r9"), address="192.0.2.1")
    assert not unexplained(lost, [elsewhere])
    assert unexplained(lost, [replace(elsewhere, address="192.0.2.2")])
    assert unexplained(replace(lost, sent_to=""), [replace(elsewhere, address="")])


def test_engines_and_the_controller_explain_no_failure() -> None:
    explaining = {each for each in LongFaultKind if not unexplained(failed(51.0, 52.0), [played(each)])}
    assert explaining == {LongFaultKind.KILL_GATEWAY, LongFaultKind.HALT_GATEWAY, LongFaultKind.CUT}


def test_only_requests_of_the_struck_region_or_answered_there_are_explained() -> None:
    elsewhere = played(LongFaultKind.KILL_GATEWAY, "r2")
    assert unexplained(failed(51.0, 52.0), [elsewhere])
    assert explanation(replace(failed(51.0, 52.0), served_by=RegionName("r2")), [elsewhere]) == elsewhere
    assert unexplained(replace(failed(51.0, 52.0), served_by=RegionName("r3")), [elsewhere])
    assert unexplained(failed(51.0, 52.0), [played(LongFaultKind.KILL_GATEWAY, "")])


GATEWAY_FAULTS = {LongFaultKind.KILL_GATEWAY, LongFaultKind.HALT_GATEWAY}
ANY = {*GATEWAY_FAULTS, LongFaultKind.CUT}


@pytest.mark.parametrize(("detail", "explaining"), [
    ("ClientConnectorError: Cannot connect to host x:1", {LongFaultKind.KILL_GATEWAY}),
    ("ClientOSError: [Errno 104] Connection reset by peer", GATEWAY_FAULTS),
    ("ServerDisconnectedError: Server disconnected", GATEWAY_FAULTS),
    ("the stream ended without [DONE]", ANY),
    ('error event: {"code":"engine_failed_midstream"}', ANY),
    ("TimeoutError: ", ANY),
    ('HTTP 503: {"error":{}}', ANY),
    ("ClientConnectorDNSError: Cannot connect to host x:1 ssl:default [x leads nowhere]", set()),
    ('HTTP 403: {"error":{"type":"residency_error"}}', set()),
    ('HTTP 500: {"error":{"message":"HTTP 503: TimeoutError:"}}', set()),
    ('error event: {"code":"internal_error"}', set()),
    ("the answer held no token", set()),
    ("", set()),
])  # fmt: skip
def test_each_kind_of_fault_explains_its_kinds_of_failure(detail: str, explaining: set[LongFaultKind]) -> None:
    assert {each for each in LongFaultKind if not unexplained(failed(51.0, 52.0, detail), [played(each)])} == explaining


_SILENCING = (LongFaultKind.KILL_GATEWAY, LongFaultKind.HALT_GATEWAY)


class TestNamesThatLeadNowhere:
    """Clients of a region whose only gateway is killed or halted have no other that they may be led to."""

    NAMELESS = failed(
        51.0, 52.0, "ClientConnectorDNSError: Cannot connect to host x:1 ssl:default [x leads nowhere for clients]"
    )
    KILLED = replace(played(LongFaultKind.KILL_GATEWAY), is_only_one=True)

    def test_they_are_explained_while_it_is_away(self) -> None:
        assert explanation(self.NAMELESS, [self.KILLED]) == self.KILLED
        halted = replace(played(LongFaultKind.HALT_GATEWAY), is_only_one=True)
        assert explanation(self.NAMELESS, [halted]) == halted
        last = replace(self.NAMELESS, sent_ns=round(self.KILLED.over_s * 1e9), ended_ns=round(70e9))
        assert explanation(last, [self.KILLED]) == self.KILLED

    def test_not_before_nor_once_all_is_whole(self) -> None:
        assert unexplained(replace(self.NAMELESS, sent_ns=round(49e9), ended_ns=round(49.9e9)), [self.KILLED])
        late_ns = round((self.KILLED.over_s + 0.1) * 1e9)
        assert unexplained(replace(self.NAMELESS, sent_ns=late_ns, ended_ns=late_ns + 1), [self.KILLED])

    def test_not_where_another_gateway_may_serve_them(self) -> None:
        assert unexplained(self.NAMELESS, [replace(self.KILLED, is_only_one=False)])

    def test_not_for_clients_of_another_region_wherever_they_were_answered(self) -> None:
        elsewhere = replace(self.KILLED, region="r2")
        assert unexplained(self.NAMELESS, [elsewhere])
        assert unexplained(replace(self.NAMELESS, served_by=RegionName("r2")), [elsewhere])

    @pytest.mark.parametrize("kind", [each for each in LongFaultKind if each not in _SILENCING])
    def test_not_by_any_other_fault(self, kind: LongFaultKind) -> None:
        assert unexplained(self.NAMELESS, [replace(played(kind), is_only_one=True)])

    async def test_what_a_client_says_of_a_name_without_addresses_is(self) -> None:
        class Nameless(NameResolver):
            async def ask(self, name: str) -> NameAnswer:
                return NameAnswer((), 0, f"NXDOMAIN: {name}")

        connector = aiohttp.TCPConnector(resolver=Nameless([], "198.51.100.0/24", Clock()))
        async with aiohttp.ClientSession(connector=connector) as session:
            with pytest.raises(aiohttp.ClientError) as caught:
                await session.get("http://mesh.example/")
        told = f"{type(caught.value).__name__}: {caught.value}"
        assert not unexplained(replace(self.NAMELESS, detail=told), [self.KILLED])

    @pytest.mark.parametrize("detail", [
        "ClientConnectorDNSError: Cannot connect to host x:1 ssl:default [no name server answers for x]",
        'HTTP 403: {"error":{"message":"leads nowhere"}}',
    ])  # fmt: skip
    def test_no_other_failure_is(self, detail: str) -> None:
        assert unexplained(replace(self.NAMELESS, detail=detail), [self.KILLED])


def test_a_request_without_an_end_is_never_explained() -> None:
    assert unexplained(replace(failed(51.0, 52.0), end=RequestEnd.UNFINISHED), [played(LongFaultKind.CUT)])


def test_the_latest_fault_counts() -> None:
    first, second = played(LongFaultKind.KILL_GATEWAY), played(LongFaultKind.CUT, began_s=55.0)
    later = played(LongFaultKind.CUT, began_s=57.0)
    assert explanation(failed(51.0, 56.0), [first, second, later]) == second


@pytest.mark.parametrize(("began_s", "is_in_time"), [(21.0, True), (39.9, True), (40.0, False)])
def test_a_fault_is_in_time_within_its_slot(began_s: float, is_in_time: bool) -> None:
    late = LongFaultPlayed(PlannedFault(21.0, LongFaultKind.CUT, "r1", 2.0), began_s, began_s + 2.0)
    assert late.is_in_time(480.0) is is_in_time
    assert not late.is_in_time(21.0), "the load has ended"


def test_what_did_not_fail_needs_no_fault() -> None:
    assert not unexplained(replace(failed(1.0, 2.0), end=RequestEnd.COMPLETED), [])
