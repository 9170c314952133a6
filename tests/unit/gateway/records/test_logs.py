from __future__ import annotations

import io
import json
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.events import AssignmentApplied, DrainRequested, TimePassed
from gateway.core.kernel.residency import LoggingRule, closed_policy
from gateway.core.vocabulary import GatewayId, Hints, ModelName, Outcome, ReplicaId, RequestId
from gateway.records.logs import RequestLog
from gateway.request.legs import RanAt, RequestSummary
from mesh.config import LogFormat, LoggingConfig
from mesh.gateway_log_events import GATEWAY
from mesh.logs import make_logger
from tests.support.core import EU, MS, SECOND, US, desk, policy, profile
from tests.support.followed import FAILS, Followed
from tests.support.log_calls import fields_of, registered_fields
from tests.support.traced import trace

JSON = LoggingConfig(format=LogFormat.JSON)


class Logged(Followed):
    """Followed core with a log line for each finished request."""

    def __init__(self, *, rule: LoggingRule | None = None, has_policy: bool = True) -> None:
        super().__init__(desk(own_policy=replace(policy(US), logging=rule or LoggingRule())))
        self.stream = io.StringIO()
        logger = make_logger(JSON, GatewayId("us-1"), self.stream)
        if not has_policy:
            self.desk.core.policy = closed_policy(US, "no policy applied yet")
        log = RequestLog(logger, GatewayId("us-1"), self.desk.core, self.desk.core.replicas.groups.serves)
        self.finished.hand_to(log.on_finished)
        self.watch()

    def line(self) -> dict[str, Any]:
        (line,) = map(json.loads, self.stream.getvalue().splitlines())
        assert isinstance(line, dict)
        return line


def test_one_json_line_tells_what_was_decided_and_what_became_of_it() -> None:
    logged = Logged()
    logged.ask("r-1")
    logged.desk.now_ns += 250 * MS
    logged.first_token("r-1")
    logged.end("r-1")
    logged.finish(
        "r-1",
        RanAt(ReplicaId("eu-a"), EU),
        prompt_tokens=5,
        output_tokens=9,
        duration_ns=1500 * MS,
        attempts=["peer:eu-1: completed"],
    )
    line = logged.line()
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


def test_a_line_has_every_registered_field_and_no_other() -> None:
    logged = Logged(rule=LoggingRule(session_key=True))
    logged.ask("r-1", hints=Hints(9, ends_session=True))
    logged.second_leg("r-1")
    logged.first_token("r-1")
    logged.two_ends("r-1", FAILS[2])
    logged.finish(
        "r-1",
        RanAt(ReplicaId("r1"), US),
        prompt_tokens=5,
        cached_tokens=1,
        output_tokens=9,
        content_events=2,
        asked_model="gpt",
        segments=1,
        notes={"unresumed": "no target is left"},
        trace=trace(),
    )
    assert fields_of(logged.line()) == registered_fields("request", GATEWAY)
    assert logged.line()["hints"] == "output_tokens 9, ends_session"


def test_hints_that_say_nothing_are_left_out() -> None:
    logged = Logged()
    logged.ask("r-1", hints=Hints())
    logged.first_token("r-1")
    logged.end("r-1")
    logged.finish("r-1", RanAt(ReplicaId("r1"), US))
    assert "hints" not in logged.line()


@pytest.mark.parametrize("named", [False, True])
def test_the_policy_says_whether_a_tenant_is_named(named: bool) -> None:
    logged = Logged(rule=LoggingRule(tenant=named))
    logged.serve("r-1")
    assert ("tenant" in logged.line()) is named


def test_before_any_policy_no_tenant_is_named() -> None:
    logged = Logged(has_policy=False)
    logged.serve("r-1")
    assert "tenant" not in logged.line()


def test_a_request_that_was_never_placed_has_its_line_too() -> None:
    logged = Logged()
    logged.desk.now_ns += 10 * SECOND
    logged.ask("q")
    logged.desk.now_ns += 60 * SECOND
    logged.tell(TimePassed())
    logged.finish("q")
    line = logged.line()
    waited_for = "replica:r0 (stale), replica:r1 (stale)"
    told = f"no replica was free for 60000 ms: it waited for {waited_for}"
    assert (line["outcome"], line["detail"]) == ("expired_in_queue", told)
    assert "placed_by" not in line
    assert "region" not in line


def test_what_came_after_a_crash_of_the_core_has_its_line_too() -> None:
    logged = Logged()
    end = EndRequest(RequestId("q"), Outcome.FAILED_BEFORE_FIRST_BYTE, "crash", 0)
    logged.finished.on_finished(profile("q"), end, RequestSummary(), None)
    assert "decision" not in logged.line()


@pytest.mark.parametrize("failing", [1, 2])
def test_of_two_legs_the_last_that_was_started_is_named(failing: int) -> None:
    logged = Logged()
    logged.two_legs("r-1")
    logged.desk.now_ns += 250 * MS
    logged.first_token("r-1")
    logged.two_ends("r-1", FAILS[failing])
    logged.finish("r-1")
    line = logged.line()
    assert (line["decision"], line["first_token_ms"]) == ("us-1:r-1.1-2", 250)
    assert line["level"] == "warning", "it failed"


SECRET = ModelName("the launch is on monday")


def test_a_model_that_nobody_serves_is_a_client_s_text_and_not_told() -> None:
    logged = Logged()
    logged.ask("q", model=SECRET)
    logged.finish("q")
    assert SECRET not in logged.stream.getvalue()
    line = logged.line()
    assert line["outcome"] == "rejected_unknown_model"
    assert {"model", "detail"} & line.keys() == set()


def test_nor_is_one_that_was_not_looked_at_because_the_gateway_drains() -> None:
    logged = Logged()
    logged.tell(DrainRequested())
    logged.ask("q", model=SECRET)
    logged.finish("q")
    assert SECRET not in logged.stream.getvalue()
    assert logged.line()["detail"] == "this gateway is going out of service"


def test_one_that_is_served_is_told_also_of_a_request_that_was_turned_away() -> None:
    logged = Logged()
    logged.tell(DrainRequested())
    logged.ask("q")
    logged.finish("q")
    assert logged.line()["model"] == "llama"


def test_one_that_was_served_when_it_was_placed_is_told() -> None:
    logged = Logged()
    logged.ask("q")
    logged.end("q")
    logged.tell(AssignmentApplied(9, (), ()))
    logged.finish("q")
    assert logged.line()["model"] == "llama"
