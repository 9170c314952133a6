from __future__ import annotations

from gateway.core.features.disaggregated.predictors.estimator import UNKNOWN_PROMPT
from gateway.core.features.disaggregated.predictors.history import Ended, Snapshot
from gateway.core.vocabulary import GatewayId, PoolName
from gateway.features.disaggregated.handing_over import (
    RECORDERS_MAX,
    ArrivedHistories,
    home_of,
    name_of,
    travelling,
    with_arrived,
)
from tests.support.histories import history_of

US, EU, AP = GatewayId("us-1"), GatewayId("eu-1"), GatewayId("ap-1")


def told(snapshot: Snapshot) -> list[tuple[int, int]]:
    """Length of each answer, and the requests that had ended at its admission, counted from the first one here."""
    return [(each.output_tokens, each.after - snapshot.first) for each in snapshot.ended]


def test_a_pool_has_its_homes_name_and_another_one_at_an_adopter() -> None:
    history = history_of(5, home="us-1")
    assert (name_of(history, US), name_of(history, EU)) == (PoolName("pd"), PoolName("pd@us-1"))
    assert home_of(PoolName("pd"), US) == home_of(PoolName("pd@us-1"), EU) == (US, "pd")


def test_a_history_travels_without_prompts_and_arrives_with_its_recorders_numbers() -> None:
    own = Snapshot(tuple(Ended(5, 10, output, after, 3) for output, after in ((20, 6), (30, 6), (40, 9))), 10)
    sent = travelling(own, EU, US, "pd")
    assert sent.rows() == [(10, 20, 1), (10, 30, 2), (10, 40, 0)]
    arrived = ArrivedHistories()
    assert arrived.take(sent, 77)
    (found,) = arrived.all()
    assert found.snapshot() == Snapshot(
        tuple(Ended(UNKNOWN_PROMPT, 10, output, after, 77) for output, after in ((20, 6), (30, 6), (40, 9))), 10
    )


def test_of_each_recorder_the_history_with_most_requests_is_kept_however_often_the_others_come() -> None:
    arrived = ArrivedHistories()
    home, adopter = history_of(5, 6), history_of(9, by="eu-1")
    for _ in range(3):
        arrived.take(home, 1)
        arrived.take(adopter, 2)
    assert not arrived.take(home, 3)
    assert not arrived.take(history_of(5), 3)
    assert [each.history for each in arrived.all()] == [home, adopter]
    assert [each.came_ns for each in arrived.all()] == [1, 2]
    longer = history_of(9, 10, by="eu-1")
    assert arrived.take(longer, 4), "a second stay of the pool there"
    assert [each.history for each in arrived.all()] == [home, longer]
    assert arrived.pop(US) is not None
    assert arrived.pop(US) is None


def test_the_number_of_recorders_is_bounded() -> None:
    arrived = ArrivedHistories()
    for number in range(RECORDERS_MAX + 1):
        assert arrived.take(history_of(5, by=f"g{number}"), 0)
    assert [each.history.recorded_by for each in arrived.all()] == [f"g{number + 1}" for number in range(RECORDERS_MAX)]


def test_predictors_are_fitted_to_the_requests_of_all_recorders_in_order_of_ending() -> None:
    own = Snapshot(tuple(Ended(5, 10, output, after, ended) for output, after, ended in ((1, 0, 10), (2, 0, 90))), 2)
    arrived = ArrivedHistories()
    arrived.take(history_of(20, 30, by="eu-1", added=7, meanwhile=1), 50)
    arrived.take(history_of(40, by="ap-1"), 50)
    known = with_arrived(own, arrived.all(), 100)
    assert known.added == 10
    assert told(known) == [(1, 0), (20, 0), (30, 1), (40, 3), (2, 3)]
    assert told(with_arrived(own, arrived.all(), 2)) == [(40, 0), (2, 0)]
    assert with_arrived(own, (), 1) is own
