from __future__ import annotations

import io
import json

from gateway.core.effects import EndRequest
from gateway.core.events import FirstToken, PolicyApplied, RequestArrived
from gateway.core.residency import LoggingRule, ResidencyPolicy
from gateway.core.vocabulary import GatewayId, Outcome, ReplicaId, RequestId
from gateway.ground.config import LogFormat, LoggingConfig
from gateway.ground.logs import make_logger
from gateway.records.logs import RequestLog
from gateway.request.legs import RanAt, RequestSummary
from tests.support.core import ANYWHERE, EU, MS, SECOND, US, desk, profile

JSON = LoggingConfig(format=LogFormat.JSON)


def request_log(stream: io.StringIO, rule: LoggingRule | None = None) -> RequestLog:
    log = RequestLog(make_logger(JSON, GatewayId("us-1"), stream), GatewayId("us-1"))
    if rule is not None:
        log.on_step(0, PolicyApplied(ResidencyPolicy(US, ANYWHERE, ANYWHERE, logging=rule)), [])
    return log


def finish(log: RequestLog, outcome: Outcome = Outcome.COMPLETED, detail: str = "") -> None:
    summary = RequestSummary(
        ran_at=RanAt(ReplicaId("eu-a"), EU),
        prompt_tokens=5,
        output_tokens=9,
        duration_ns=1500 * MS,
        attempts=["peer:eu-1: completed"],
    )
    log.on_finished(profile("r-1"), EndRequest(RequestId("r-1"), outcome, detail, 1), summary)


def test_one_json_line_tells_what_was_decided_and_what_became_of_it() -> None:
    stream = io.StringIO()
    log = request_log(stream, LoggingRule())
    gateway = desk()
    arrived = RequestArrived(profile("r-1"), 60 * SECOND)
    log.on_step(gateway.now_ns, arrived, gateway.tell(arrived))
    gateway.now_ns += 250 * MS
    first = FirstToken(RequestId("r-1"), 1, 1)
    log.on_step(gateway.now_ns, first, gateway.tell(first))
    finish(log)
    (line,) = map(json.loads, stream.getvalue().splitlines())
    del line["timestamp"]
    assert line == {
        "event": "request",
        "level": "info",
        "gateway": "us-1",
        "request_id": "r-1",
        "model": "llama",
        "tenant": "default",
        "outcome": "completed",
        "region": "eu-west-1",
        "replica": "eu-a",
        "attempts": ["peer:eu-1: completed"],
        "duration_ms": 1500,
        "prompt_bytes": profile("r-1").prompt_bytes,
        "prompt_tokens": 5,
        "output_tokens": 9,
        "decision": "us-1:r-1.1",
        "placed_by": "local_explore",
        "candidates": 2,
        "matched_share": 0.0,
        "waited_ms": 0,
        "first_token_ms": 250,
    }


def test_the_policy_says_whether_a_tenant_is_named() -> None:
    for rule, named in ((None, False), (LoggingRule(tenant=False), False), (LoggingRule(tenant=True), True)):
        stream = io.StringIO()
        finish(request_log(stream, rule))
        assert ("tenant" in json.loads(stream.getvalue())) is named


def test_a_request_that_was_never_placed_has_its_line_too() -> None:
    stream = io.StringIO()
    log = request_log(stream)
    log.on_finished(profile("q"), EndRequest(RequestId("q"), Outcome.EXPIRED_IN_QUEUE, "full", 0), RequestSummary())
    line = json.loads(stream.getvalue())
    assert (line["outcome"], line["detail"]) == ("expired_in_queue", "full")
    assert "placed_by" not in line
    assert "region" not in line


def test_failures_are_warnings() -> None:
    stream = io.StringIO()
    finish(request_log(stream), Outcome.FAILED_MIDSTREAM)
    assert json.loads(stream.getvalue())["level"] == "warning"


def test_a_decision_is_forgotten_with_its_line() -> None:
    log = request_log(io.StringIO())
    gateway = desk()
    arrived = RequestArrived(profile("r-1"), 60 * SECOND)
    log.on_step(0, arrived, gateway.tell(arrived))
    assert len(log._followed) == 1
    finish(log)
    assert log._followed == {}
