from __future__ import annotations

from typing import Any

import pytest

from gateway.core.kernel import events
from gateway.core.kernel.description import gauges_of
from gateway.core.kernel.effects import EndRequest
from gateway.core.vocabulary import (
    GatewayId,
    LegResult,
    LoadReport,
    ModelCapacity,
    Outcome,
    PeerObservation,
    RequestId,
    TenantName,
)
from gateway.door.limits import KeyMeter
from gateway.records.metrics import GatewayMetrics
from gateway.records.tenant_labels import TENANTS_MAX
from gateway.request.callers import KeyLimits
from gateway.request.legs import RequestSummary
from gateway.request.usage import tokens_used
from tests.support.core import EU, MODEL, MS, SECOND, desk, peer_spec, profile, replica_spec
from tests.support.followed import Followed
from tests.support.metrics_pages import sums_by_name

TOLD: dict[str, Any] = {
    "first_token_ns": 1,
    "is_event_stream": True,
    "prompt_tokens": 7,
    "output_tokens": 11,
    "cached_tokens": 3,
}
UNTOLD: dict[str, Any] = {"first_token_ns": 1, "is_event_stream": True, "content_events": 11}


class Used(Followed):
    """A gateway that streams answers for its own clients and for a peer's."""

    def __init__(self, replicas: int = 2) -> None:
        super().__init__(desk(replicas=replicas, peers=(peer_spec("eu-1", EU),)))
        self.metrics = GatewayMetrics(
            lambda: gauges_of(self.desk.core, self.desk.now_ns), self.desk.core, self.requests
        )
        self.finished.hand_to(self.metrics.on_finished)
        self.finished.hand_to(self.metrics.usage.on_finished)
        self.watch([self.metrics])

    def stream(self, request_id: str, result: LegResult = LegResult.COMPLETED, **told: Any) -> None:
        """Stream the first token at once, and ten more in a second."""
        self.first_token(request_id)
        self.desk.now_ns += SECOND
        self.end(request_id, result)
        self.finish(request_id, **told)

    def hear(self) -> None:
        capacities = (ModelCapacity(MODEL, replica_spec("x").pool, EU, 1, 1, room=1),)
        report = LoadReport(GatewayId("eu-1"), EU, self.desk.now_ns, True, 1, "d", capacities)
        now_ns = self.desk.now_ns
        self.tell(events.PeersObserved((PeerObservation(report, now_ns, now_ns, 80 * MS, 90 * MS),)))

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"nightside_{name}", labels) or 0.0

    def total(self, name: str) -> float:
        return sums_by_name(self.metrics.render().decode()).get(f"nightside_{name}", 0.0)


def test_a_client_s_stream_counts_where_it_came_in() -> None:
    used = Used()
    used.ask("a")
    used.stream("a", **TOLD)
    where = {"model": "llama", "ran": "local"}
    assert used.value("prompt_tokens_total", **where, counted="usage") == 7
    assert used.value("output_tokens_total", **where, counted="usage") == 11
    assert used.value("cached_tokens_total", **where) == 3
    assert used.value("prefix_cached_share_sum", model="llama") == pytest.approx(3 / 7)
    assert used.value("output_token_seconds_sum", **where, counted="usage") == pytest.approx(0.1)
    assert used.total("forwards_output_tokens_total") == 0


def test_lengths_are_kept_of_clients_requests_that_completed() -> None:
    used = Used()
    used.ask("a")
    used.stream("a", **TOLD)
    assert used.value("request_prompt_tokens_sum", model="llama") == 7
    assert used.value("request_total_tokens_sum", model="llama") == 18
    assert used.value("request_total_tokens_bucket", model="llama", le="32.0") == 1
    used.ask("b")
    used.stream("b", LegResult.FAILED, **TOLD)
    assert used.total("request_total_tokens_count") == 1, "it was cut off"
    runner = Used()
    runner.forward("c")
    runner.stream("c", **TOLD)
    assert runner.total("request_total_tokens_count") == 0, "its origin counts it"


def test_one_that_tells_no_usage_counts_by_its_events_and_says_so() -> None:
    used = Used()
    used.ask("a", prompt_bytes=40)
    used.stream("a", **UNTOLD)
    where = {"model": "llama", "ran": "local"}
    assert used.value("output_tokens_total", **where, counted="events") == 11
    assert used.value("prompt_tokens_total", **where, counted="bytes") == 10
    assert used.value("output_token_seconds_sum", **where, counted="events") == pytest.approx(0.1)


def test_one_that_ran_at_a_peer_counts_here_and_not_among_the_peer_s() -> None:
    origin, runner = Used(replicas=0), Used()
    origin.hear()
    origin.ask("a")
    origin.stream("a", **TOLD)
    runner.forward("a")
    runner.stream("a", **TOLD)
    assert origin.value("output_tokens_total", model="llama", ran="forward", counted="usage") == 11
    assert runner.value("forwards_output_tokens_total", model="llama", counted="usage") == 11
    assert runner.value("forwards_prompt_tokens_total", model="llama", counted="usage") == 7
    assert runner.value("forwards_cached_tokens_total", model="llama") == 3
    assert runner.value("forwards_output_token_seconds_count", model="llama", counted="usage") == 1
    assert runner.value("forwards_first_token_seconds_count", model="llama") == 1
    for name in ("requests_total", "prompt_tokens_total", "output_tokens_total", "tenant_requests_total"):
        assert origin.total(name) > 0
        assert runner.total(name) == 0, "a sum over both would be too high"
    assert origin.total("forwards_output_tokens_total") == 0
    assert origin.total("prefix_cached_share_count") == 0, "it was another gateway's engine"


def test_a_stored_answer_that_is_looked_at_again_counts_no_token_again() -> None:
    used = Used()
    used.ask("a")
    used.stream("a", **TOLD, generates=False)
    assert used.total("output_tokens_total") == used.total("tenant_tokens_total") == 0
    assert used.total("output_token_seconds_count") == 0


def test_a_stream_that_was_left_counts_what_came_of_it_and_not_how_fast() -> None:
    used = Used()
    used.ask("a", prompt_bytes=40)
    used.first_token("a")
    used.tell(events.RequestAbandoned(RequestId("a")))
    used.end("a", LegResult.CANCELLED)
    used.finish("a", **UNTOLD)
    assert used.value("output_tokens_total", model="llama", ran="local", counted="events") == 11
    assert used.total("output_token_seconds_count") == 0
    assert used.value("tenant_requests_total", tenant="default", outcome="abandoned") == 1


def test_an_answer_in_one_piece_has_no_time_per_token() -> None:
    used = Used()
    used.ask("a")
    used.stream("a", **{**TOLD, "is_event_stream": False})
    assert used.total("output_tokens_total") == 11
    assert used.total("output_token_seconds_count") == 0
    used.forward("b")
    used.stream("b", **{**TOLD, "is_event_stream": False})
    assert used.total("forwards_output_tokens_total") == 11
    assert used.total("forwards_first_token_seconds_count") == used.total("forwards_output_token_seconds_count") == 0


@pytest.mark.parametrize("told", [TOLD, UNTOLD, {"prompt_taken": True}, {}])
def test_a_tenant_s_tokens_are_those_that_its_key_is_charged(told: dict[str, Any]) -> None:
    used = Used()
    used.ask("a", tenant=TenantName("acme"), prompt_bytes=400)
    asked = used.profiles["a"]
    summaries = []
    used.finished.hand_to(lambda profile, end, summary, record: summaries.append(summary))
    used.stream("a", **told)
    meter = KeyMeter()
    meter.follow(KeyLimits(tokens_per_minute=60_000))
    meter.settle_tokens(0, tokens_used(asked, summaries[0]).total, now_ns=0)
    assert meter.tokens is not None
    charged = 60_000 - meter.tokens.remaining(0)
    kinds = [used.value("tenant_tokens_total", tenant="acme", kind=kind) for kind in ("prompt", "output")]
    assert sum(kinds) == charged


def test_tenants_beyond_the_first_share_one_label() -> None:
    used = Used()
    for number in range(TENANTS_MAX + 5):
        request_id = f"r{number}"
        used.ask(request_id, tenant=TenantName(f"t{number}"))
        used.tell(events.RequestAbandoned(RequestId(request_id)))
        used.finish(request_id)
    assert used.value("tenant_requests_total", tenant="t0", outcome="abandoned") == 1
    assert used.value("tenant_requests_total", tenant="other", outcome="abandoned") == 5


def test_a_request_after_a_crash_of_the_core_counts_for_its_tenant() -> None:
    used = Used()
    end = EndRequest(RequestId("a"), Outcome.COMPLETED, "", 1)
    used.metrics.usage.on_finished(profile("a"), end, RequestSummary(first_token_ns=1, output_tokens=5), None)
    used.tell(events.TimePassed())
    assert used.value("tenant_tokens_total", tenant="default", kind="output") == 5
    assert used.total("output_tokens_total") == 0
