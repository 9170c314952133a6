from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.core.kernel.residency import LoggingRule
from gateway.core.vocabulary import LegResult, Outcome, PlaceRule, ReplicaId, TenantName
from gateway.request.engine_api import EMBEDDINGS_PATH, MESSAGES_PATH
from gateway.request.legs import RanAt
from gateway.tracing.spans import Kind, Span
from tests.support.core import EU, LAYERED, MS, SECOND, US, desk, occupy, peer_spec
from tests.support.traced import ENGINE, OWN, PARENT, Traced, one, trace


def served() -> Traced:
    """A request placed at once, with its first token after 250 ms and its end after a second."""
    traced = Traced()
    traced.ask("r-1", output_tokens_max=64)
    traced.desk.now_ns += 250 * MS
    traced.first_token("r-1")
    traced.desk.now_ns += 750 * MS
    traced.end("r-1", prompt_tokens=5, output_tokens=9)
    traced.finish(
        "r-1",
        RanAt(ReplicaId("r0"), US),
        trace=trace(),
        first_token_ns=250 * MS,
        prompt_tokens=5,
        output_tokens=9,
        cached_tokens=3,
        duration_ns=SECOND,
    )
    return traced


def test_a_request_that_was_served_is_one_span_with_its_placement_and_its_leg_below() -> None:
    whole, placement, leg, first = served().spans()
    assert [each.name for each in (whole, placement, leg, first)] == [
        "chat llama",
        "placement",
        "chat llama",
        "first_token",
    ]
    assert (whole.span_id, whole.parent_id, whole.kind, whole.has_remote_parent) == (OWN, PARENT, Kind.SERVER, True)
    assert placement.parent_id == leg.parent_id == OWN
    assert first.parent_id == leg.span_id
    assert whole.end_ns - whole.start_ns == leg.end_ns - leg.start_ns == SECOND
    assert first.end_ns - first.start_ns == 250 * MS
    assert placement.start_ns == placement.end_ns == leg.start_ns
    assert not whole.is_error
    assert not leg.is_error


def test_the_request_s_own_span_tells_what_it_came_to() -> None:
    whole = served().spans()[0].attributes
    assert whole == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "llama",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 9,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.response.time_to_first_chunk": 0.25,
        "http.route": "/v1/chat/completions",
        "nightside.request.id": "r-1",
        "nightside.outcome": "completed",
        "nightside.attempts": 1,
        "nightside.kept": "head",
        "nightside.tenant": "default",
        "nightside.service_class": "interactive",
        "nightside.prompt.bytes": whole["nightside.prompt.bytes"],
        "nightside.ran.region": "us-east-1",
        "nightside.ran.jurisdiction": "US",
        "nightside.ran.replica": "r0",
        "nightside.residency.policy": whole["nightside.residency.policy"],
        "nightside.hops.in_region": 0,
        "nightside.hops.cross_region": 0,
    }


def test_a_placement_tells_why_and_names_its_decision() -> None:
    placement = one(served().spans(), "placement")
    assert placement.attributes["nightside.decision.id"] == "us-1:r-1.1"
    assert placement.attributes["nightside.placement.candidates"] == 2
    assert placement.attributes["nightside.target.region"] == "us-east-1"
    assert str(placement.attributes["nightside.residency.rule"]).startswith("process names")
    assert {each.name for each in placement.happenings} == {"candidate"}
    assert [each.attributes["nightside.standing"] for each in placement.happenings] == ["available"] * 2


def test_a_leg_tells_whom_it_asked_and_what_that_said() -> None:
    leg = served().spans()[2]
    assert leg.kind is Kind.CLIENT
    assert leg.attributes["gen_ai.provider.name"] == "vllm"
    assert (leg.attributes["server.address"], leg.attributes["server.port"]) == (ENGINE.host, ENGINE.port)
    assert leg.attributes["gen_ai.usage.output_tokens"] == 9
    assert leg.attributes["nightside.leg.result"] == "completed"


def test_waiting_is_a_span_where_there_was_any() -> None:
    traced = Traced()
    occupy(traced.desk)
    traced.ask("r-1")
    traced.desk.now_ns += 300 * MS
    traced.probe()
    traced.end("r-1")
    traced.finish("r-1", trace=trace())
    wait = one(traced.spans(), "wait")
    assert wait.end_ns - wait.start_ns == one(traced.spans(), "placement").start_ns - wait.start_ns
    assert wait.end_ns - wait.start_ns >= 300 * MS
    assert wait.parent_id == OWN


def test_one_that_was_never_placed_waited_to_its_end() -> None:
    traced = Traced()
    occupy(traced.desk)
    traced.ask("r-1")
    traced.desk.now_ns += 61 * SECOND
    traced.probe()
    traced.finish("r-1", trace=trace(), duration_ns=61 * SECOND)
    whole, wait = traced.spans()
    assert (whole.attributes["nightside.outcome"], whole.is_error) == ("expired_in_queue", True)
    assert whole.attributes["error.type"] == "expired_in_queue"
    assert wait.end_ns - wait.start_ns == 61 * SECOND


def test_a_failed_leg_is_an_error_and_the_next_one_has_a_span_of_its_own() -> None:
    traced = Traced()
    traced.ask("r-1")
    traced.end("r-1", LegResult.FAILED, detail="it said: the prompt was hello")
    traced.end("r-1", attempt=2)
    traced.finish("r-1", trace=trace())
    spans = traced.spans()
    legs = [each for each in spans if each.kind is Kind.CLIENT]
    assert [(each.is_error, each.attributes.get("error.type")) for each in legs] == [(True, "failed"), (False, None)]
    assert len({each.span_id for each in spans}) == len(spans)
    assert [each.attributes["nightside.decision.id"] for each in legs] == ["us-1:r-1.1", "us-1:r-1.2"]
    assert not spans[0].is_error
    assert "hello" not in repr(spans), "what somebody else says of a failure stays out"


def forwarded() -> Traced:
    """A request forwarded to the peer eu-1."""
    traced = Traced(desk(peers=[peer_spec("eu-1", EU)], placement=LAYERED))
    occupy(traced.desk)
    traced.desk.hear("eu-1", EU)
    traced.ask("r-1")
    return traced


def test_a_leg_at_a_peer_is_a_forward_and_asks_no_model() -> None:
    traced = forwarded()
    traced.end("r-1", LegResult.REFUSED)
    traced.probe()
    traced.end("r-1", attempt=2)
    traced.finish("r-1", trace=trace())
    leg = one(traced.spans(), "forward")
    assert leg.attributes["nightside.target.region"] == "eu-west-1"
    assert leg.attributes["error.type"] == "busy", "the reason says more than that it was refused"
    assert not any(name.startswith("gen_ai.") for name in leg.attributes)


def test_a_forward_that_was_taken_back_is_no_error() -> None:
    traced = forwarded()
    traced.end("r-1", LegResult.TAKEN_BACK)
    traced.probe()
    traced.end("r-1", attempt=2)
    traced.finish("r-1", trace=trace())
    forwards = [each for each in traced.spans() if each.name == "forward"]
    assert [each.is_error for each in forwards] == [False, False]


def test_one_that_came_as_a_forward_tells_from_where() -> None:
    traced = Traced(desk(peers=[peer_spec("eu-1", EU)]))
    traced.forward("r-1")
    traced.end("r-1")
    traced.finish("r-1", trace=trace())
    whole = traced.spans()[0].attributes
    assert (whole["nightside.origin.gateway"], whole["nightside.origin.region"]) == ("eu-1", "eu-west-1")
    assert whole["nightside.hops.cross_region"] == 1


def test_where_an_answer_went_on_the_pause_is_a_span() -> None:
    traced = Traced()
    traced.ask("r-1")
    traced.desk.now_ns += 100 * MS
    traced.first_token("r-1")
    broken_ns = traced.desk.now_ns = traced.desk.now_ns + 100 * MS
    rest = replace(traced.profiles["r-1"], appends=True)
    traced.end("r-1", LegResult.FAILED, remainder=rest)  # type: ignore[arg-type]
    traced.desk.now_ns += 50 * MS
    traced.first_token("r-1", attempt=2)
    traced.end("r-1", attempt=2)
    traced.finish("r-1", trace=trace(), segments=1)
    resume = one(traced.spans(), "pause")
    assert (resume.start_ns, resume.end_ns - resume.start_ns) == (broken_ns, 50 * MS)
    assert resume.attributes["nightside.resume"] == 1
    assert traced.spans()[0].attributes["nightside.resumes"] == 1


def test_one_that_nobody_followed_is_told_in_one_span() -> None:
    traced = served()
    finished = traced.kept[0]
    traced.kept = [replace(finished, record=None)]
    (whole,) = traced.spans()
    assert whole.end_ns - whole.start_ns == SECOND
    assert whole.attributes["nightside.outcome"] == "completed"


@pytest.mark.parametrize(
    ("path", "name", "provider"),
    [
        (MESSAGES_PATH, "chat llama", "anthropic"),
        (EMBEDDINGS_PATH, "embeddings llama", "openai"),
        ("/v1/responses/resp_1?stream=true", "stored_response llama", "openai"),
    ],
)
def test_its_name_is_what_was_asked_for(path: str, name: str, provider: str) -> None:
    traced = Traced()
    traced.ask("r-1")
    traced.end("r-1")
    traced.finish("r-1", trace=trace(path=path))
    whole = traced.spans()[0]
    assert (whole.name, whole.attributes["gen_ai.provider.name"]) == (name, provider)
    assert "resp_1" not in repr(traced.spans())


class TestNotTold:
    def told(self, traced: Traced) -> list[Span]:
        traced.ask("r-1", tenant=TenantName("acme"))
        traced.end("r-1")
        traced.finish("r-1", trace=trace())
        return traced.spans()

    def test_no_tenant_where_logs_name_none(self) -> None:
        assert "acme" in repr(self.told(Traced()))
        assert "acme" not in repr(self.told(Traced(logging=LoggingRule(tenant=False))))

    def test_no_model_that_nobody_serves(self) -> None:
        spans = self.told(Traced(is_known=False))
        assert "llama" not in repr(spans)
        assert spans[0].name == "chat"

    def test_a_client_s_own_failure_is_no_error_of_ours(self) -> None:
        traced = Traced()
        traced.ask("r-1")
        traced.end("r-1", LegResult.CLIENT_ERROR)
        traced.finish("r-1", trace=trace())
        assert traced.spans()[0].attributes["nightside.outcome"] == Outcome.CLIENT_ERROR
        assert not traced.spans()[0].is_error

    def test_a_key_s_own_rule_is_told_as_such(self) -> None:
        traced = Traced()
        traced.ask("r-1", process=PlaceRule(regions=frozenset({US.region})))
        traced.end("r-1")
        traced.finish("r-1", trace=trace())
        rule = one(traced.spans(), "placement").attributes["nightside.residency.rule"]
        assert str(rule).endswith("and the key's rule allows it")
