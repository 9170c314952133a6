"""The digest of what gateways decide."""

from __future__ import annotations

from gateway.core.kernel.effects import EndRequest, StopLeg
from gateway.core.kernel.events import FirstToken, LegEnded, RequestAbandoned, TimePassed
from gateway.core.vocabulary import GatewayId, LegResult, Outcome, RequestId
from loadgen.simulator.decision_digest import DecisionDigest, input_line, order_line

GATEWAY = GatewayId("gw")
ID = RequestId("q")


def test_equal_steps_have_equal_digests_and_another_order_has_another() -> None:
    ended = LegEnded(ID, 1, 1, LegResult.COMPLETED)

    def digest_of(*effects: StopLeg | EndRequest, at_ns: int = 5) -> str:
        one = DecisionDigest()
        one.on_step(at_ns, GATEWAY, ended, list(effects))
        return one.digest()

    end = EndRequest(ID, Outcome.COMPLETED, "", 1)
    assert digest_of(end) == digest_of(end)
    others = [digest_of(), digest_of(end, at_ns=6), digest_of(EndRequest(ID, Outcome.COMPLETED, "", 2))]
    assert len({digest_of(end), *others}) == 4


def test_what_only_passes_time_leaves_no_trace() -> None:
    told: list[str] = []
    one = DecisionDigest(told.append)
    one.on_step(5, GATEWAY, TimePassed(), [])
    assert told == []
    one.on_step(6, GATEWAY, RequestAbandoned(ID), [])
    assert told == ["6 gw abandoned q"]


def test_lines_name_legs_and_no_classes() -> None:
    assert input_line(FirstToken(ID, 2, 1)) == "first_token q/2.1 True"
    assert order_line(StopLeg(ID, 2, 1, "deadline")) == "stop_leg q/2.1 deadline"
