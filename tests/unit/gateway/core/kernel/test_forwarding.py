from __future__ import annotations

import random

import pytest

from gateway.core.config import CoreConfig
from gateway.core.kernel.config import PlacementPolicy, QueueConfig
from gateway.core.kernel.forwarding import leg_end_of
from gateway.core.vocabulary import LegResult, Outcome, RefusalReason
from tests.support.core import BOTH, EU, MS, SECOND, TENANT, US, policy, replica_spec, under
from tests.support.mesh import Mesh


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_means_something_and_only_refusals_have_a_reason(outcome: Outcome) -> None:
    result, refusal, detail = leg_end_of(outcome, "why")
    assert (result is LegResult.REFUSED) == (refusal is not None)
    assert detail == (f"it ended as {outcome} there: why" if result is LegResult.FAILED else "why")


def test_a_peer_that_changes_its_mind_has_not_failed() -> None:
    changes = [each for each in Outcome if each.startswith("rejected_") or each is Outcome.EXPIRED_IN_QUEUE]
    assert {leg_end_of(each, "")[0] for each in changes} == {LegResult.REFUSED}
    assert leg_end_of(Outcome.EXPIRED_IN_QUEUE, "")[1] is RefusalReason.BUSY


def test_an_error_of_a_peer_s_own_making_opens_no_breaker_against_it() -> None:
    """One request that fails at every gateway would else open the breakers of all peers."""
    assert leg_end_of(Outcome.FAILED_INTERNALLY, "why") == (LegResult.REFUSED, RefusalReason.BUSY, "why")


@pytest.mark.parametrize("placement", BOTH)
def test_a_forward_that_waited_too_long_at_a_peer_goes_on_waiting_at_home(placement: PlacementPolicy) -> None:
    mesh = Mesh(random.Random(1))
    mesh.add_gateway("us", US, [replica_spec("us-a", US)], policy(US), under(placement))
    impatient = under(placement, CoreConfig(queue=QueueConfig(wait_max_ns=100 * MS)))
    mesh.add_gateway("eu", EU, [replica_spec("eu-a", EU)], policy(EU), impatient)
    mesh.connect_all()
    takes_more_than_one = placement is PlacementPolicy.COST
    mesh.probe("us", waiting=lambda _: 1, healthy=lambda _: not takes_more_than_one)
    mesh.probe("eu", waiting=lambda _: 0, healthy=lambda _: True)
    mesh.advance(100 * MS)  # load is published
    while mesh.heartbeats:
        mesh.deliver_heartbeat(0, drop=False)
    mesh.ask("us", "q1", TENANT, "hello", 10 * SECOND)
    mesh.probe("eu", waiting=lambda _: 1, healthy=lambda _: not takes_more_than_one)
    mesh.deliver_forward(0)
    mesh.advance(200 * MS)
    (request,) = mesh.cores["us"].requests.values()
    assert (request.refusals, request.failures) == (1, 0)
    assert mesh.asks[request.request_id].ends == []
