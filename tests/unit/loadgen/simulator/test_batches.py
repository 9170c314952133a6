"""Simulated batches: each line has one result, also where gateways die, and the store takes no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.core.vocabulary import Outcome, RegionName
from gateway.door.errors import ENDINGS
from gateway.features.batches.lines import wait_before_retry_s
from loadgen.simulator.batches import _STATUS, BatchReport, SimBatch, SimBatches, _Holder
from loadgen.simulator.checkers import Broken
from loadgen.simulator.client_requests import ClientRequest, SimRanAt
from loadgen.simulator.world import World
from mesh.faults import ConfigError
from tests.support.scenarios import small_scenario

FILE = {"region": "us", "workload": "chat", "tenant": "night", "lines": 40, "at": "1s", "window": "60s"}


def world(*files: dict[str, Any], lease: str = "2s", requests_max: int = 8, **changes: Any) -> World:
    section = {"files": [FILE | each for each in files], "lease": lease, "requests_max": requests_max}
    scenario = small_scenario(batches=section, **changes)
    return World(scenario, scenario.runs[0], every_invariant=True)


def played(*files: dict[str, Any], **changes: Any) -> tuple[BatchReport, ...]:
    one = world(*files, **changes)
    story = one.play()
    one.check_the_end()
    return story.batches


TWO_GATEWAYS = {
    "us": {"jurisdiction": "US", "gateways": 2, "replicas": 2},
    "eu": {"jurisdiction": "EU", "replicas": 1},
}


def crash(gateway: str, *, lasts: str) -> dict[str, str]:
    return {"kind": "gateway_crash", "target": gateway, "at": "2s", "lasts": lasts}


class TestSimBatches:
    def test_each_line_runs_once_where_nothing_fails(self) -> None:
        (report,) = played({})
        assert (report.completed, report.failed, report.expired) == (40, 0, 0)
        assert (report.tries, report.takeovers) == (40, 0)
        assert report.is_kept

    def test_lines_that_did_not_run_within_the_window_expire(self) -> None:
        (report,) = played({"window": "1s", "lines": 500}, requests_max=2)
        assert report.completed + report.expired == 500
        assert report.expired > 0
        assert not report.is_kept
        assert report.ended_ns is not None

    def test_files_share_the_places(self) -> None:
        first, second = played({"lines": 400}, {"tenant": "other", "lines": 400})
        assert first.is_kept
        assert second.is_kept
        assert first.ended_ns is not None
        assert second.ended_ns is not None
        assert abs(first.ended_ns - second.ended_ns) < (first.ended_ns - 1_000_000_000) // 4

    @pytest.mark.parametrize("lasts", ["500ms", "20s"])
    def test_the_other_gateway_goes_on_with_what_has_no_result(self, lasts: str) -> None:
        (report,) = played({"lines": 200}, regions=TWO_GATEWAYS, faults=[crash("us/gw0", lasts=lasts)])
        assert report.completed == 200
        assert report.takeovers == 1
        assert 200 < report.tries <= 200 + 8, "only what ran at that moment runs again"

    def test_a_stalled_holder_finds_its_batch_taken_over(self) -> None:
        stall = {"kind": "gateway_stalled", "target": "us/gw0", "at": "2s", "lasts": "6s"}
        (report,) = played({"lines": 400}, regions=TWO_GATEWAYS, faults=[stall])
        assert report.completed == 400
        assert report.takeovers == 1

    def test_the_only_gateway_of_a_region_takes_its_batch_back(self) -> None:
        (report,) = played({"lines": 200}, faults=[crash("us/gw", lasts="3s")])
        assert (report.completed, report.takeovers) == (200, 1)

    @pytest.mark.nightly
    def test_lines_are_urgent_once_the_window_is_at_risk(self) -> None:
        busy = [{"region": "us", "workload": "chat", "clients": 20}]
        (report,) = played(
            {"lines": 3000, "window": "85s"}, duration="75s", clients=busy, drain="100s", requests_max=10
        )
        assert report.urgent > 0

    def test_a_result_of_a_former_holder_is_refused(self) -> None:
        batches, batch, request = stored()
        batch.term += 1
        assert not batches.put(batch, batch.term - 1, 0, request)
        assert batch.results[0] is None

    def test_a_second_result_is_found(self) -> None:
        batches, batch, request = stored()
        assert batches.put(batch, batch.term, 0, request)
        with pytest.raises(Broken, match="each line has one result"):
            batches.put(batch, batch.term, 0, request)

    def test_a_line_that_ran_outside_its_policy_is_found(self) -> None:
        regions = {"us": {"jurisdiction": "US", "replicas": 1, "process": {"regions": ["us"]}}}
        batches, batch, request = stored(regions=TWO_GATEWAYS | regions)
        assert request.ran_at is not None
        request.ran_at = replace(request.ran_at, region=RegionName("eu"))
        with pytest.raises(Broken, match="each line runs where its policy allows"):
            batches.put(batch, batch.term, 0, request)

    def test_a_line_that_is_not_sent_again_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_Holder, "_again", lambda *_: None)
        crashes = [{"kind": "replica_crash", "target": each, "at": "3s", "lasts": "500ms"} for each in ("us/0", "eu/0")]
        with pytest.raises(Broken, match="no line is lost"):
            played({"lines": 400, "window": "20s"}, faults=crashes, runs=[{"attempt": {"attempts_max": 1}}])

    def test_a_line_without_a_result_at_the_end_is_found(self) -> None:
        batches, _, _ = stored()
        with pytest.raises(Broken, match="each batch ends"):
            batches.expect_ended()


def stored(**changes: Any) -> tuple[SimBatches, SimBatch, ClientRequest]:
    """Store of a file of two lines before it is handed in, its batch, and a request that has completed."""
    one = world({"lines": 2}, **changes)
    story: list[ClientRequest] = []
    watch, heard = one.watch, one.watch.client_ended

    def keep(request: ClientRequest, outcome: Outcome | None, now_ns: int) -> None:
        story.append(request)
        heard(request, outcome, now_ns)

    watch.client_ended = keep  # type: ignore[method-assign]
    one.play()
    batches = one._batches
    assert batches is not None
    (batch,) = batches._batches
    batch.results, batch.ended_ns = [None, None], None
    request = next(each for each in story if isinstance(each.ran_at, SimRanAt) and each.region == "us")
    return batches, batch, request


def test_lines_are_sent_again_by_the_statuses_that_gateways_answer_with() -> None:
    answered = {outcome: status for outcome, status in _STATUS.items() if outcome is not None}
    assert answered == {outcome: ENDINGS[outcome].status for outcome in answered}
    others = [ENDINGS[outcome] for outcome in ENDINGS if outcome not in answered]
    assert [each.code for each in others if each.may_retry and wait_before_retry_s(each.status, 0.0, 1)] == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"region": "mars"}, "batches.files\\[0\\].region: there is no region 'mars'"),
        ({"workload": "none"}, "batches.files\\[0\\].workload"),
        ({"window": "10ms"}, "window"),
        ({"lines": 0}, "lines"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        world(change)
