from __future__ import annotations

from gateway.core.features.disaggregated.books import Group, Worker
from gateway.core.features.disaggregated.predictor import Facts
from gateway.core.features.disaggregated.seats import Seats
from gateway.core.nearness import UNIT, Nearness, SignatureState
from gateway.core.vocabulary import ReplicaId, RequestId
from tests.support.locality import near


def facts(nearness: Nearness | None) -> Facts:
    return Facts(RequestId("r"), 10, nearness=nearness)


def workers(*names: str) -> list[Worker]:
    return [Worker(ReplicaId(name), number, Group(name)) for number, name in enumerate(names)]


def seated(*names: str, clusters: int | None = None) -> Seats:
    seats = Seats()
    for name in names:
        seats.join(name)
    seats.take("a1", len(names) if clusters is None else clusters)
    return seats


def names(band: list[Worker] | None) -> list[str] | None:
    return None if band is None else [worker.id for worker in band]


def test_the_band_has_all_that_are_about_as_near_as_the_nearest() -> None:
    seats = seated("a", "b", "c")
    one = facts(near(0.5, 0.61, 0.55))
    assert names(seats.band(one, workers("a", "b", "c"), 0.1)) == ["b", "c"]
    assert names(seats.band(one, workers("a", "b", "c"), 0.2)) == ["a", "b", "c"]
    assert names(seats.band(one, workers("a", "b", "c"), 0.0)) == ["b"]
    far = facts(near(0.0, 1.0, 0.3))
    assert names(seats.band(far, workers("a", "b", "c"), 1.0)) == ["a", "b", "c"], "1 is everybody"


def test_who_may_not_be_sent_it_is_nobodys_nearest() -> None:
    """A dead worker's centroid leaves the candidates, and locality goes on among the others."""
    seats = seated("a", "b", "c")
    assert names(seats.band(facts(near(0.9, 0.5, 0.3)), workers("a", "b", "c")[1:], 0.1)) == ["b"]


def test_what_says_nothing_says_why() -> None:
    seats = seated("a", "b")
    for nearness, state in [
        (None, SignatureState.MISSING),
        (Nearness(SignatureState.MALFORMED), SignatureState.MALFORMED),
        (Nearness(SignatureState.EMPTY, "a1"), SignatureState.EMPTY),
        (near(0.5, 0.5, artifact="a0"), SignatureState.STALE),
        (near(0.5, 0.5, 0.5), SignatureState.STALE),
        (near(0.5, 0.5), SignatureState.USED),
    ]:
        assert seats.state_of(facts(nearness)) is state
        assert (seats.band(facts(nearness), workers("a", "b"), 0.1) is None) == (state is not SignatureState.USED)
    seats.take("", 0)
    assert seats.state_of(facts(None)) is SignatureState.UNFITTED
    assert seats.state_of(facts(near(0.5, 0.5))) is SignatureState.UNFITTED


def test_whoever_stays_keeps_its_seat_and_whoever_joins_takes_the_one_that_was_left() -> None:
    seats = seated("a", "b", "c")
    seats.leave("a")
    one = facts(near(0.9, 0.1, 0.2))
    assert seats.cosine(one, Group("b")) == round(0.1 * UNIT)
    seats.join("d")
    assert seats.cosine(one, Group("d")) == round(0.9 * UNIT)
    assert seats.unseated == 0
    seats.leave("never there")
    assert seats.groups == 3


def test_who_has_no_centroid_is_near_to_everybody_until_a_seat_is_free() -> None:
    seats = seated("a", "b", "c", clusters=2)
    one = facts(near(0.9, 0.1))
    assert seats.unseated == 1
    assert names(seats.band(one, workers("a", "b", "c"), 0.1)) == ["a", "c"]
    seats.leave("b")
    assert seats.unseated == 0
    assert names(seats.band(one, workers("a", "c"), 0.1)) == ["a"]


def test_an_artifact_of_more_clusters_than_there_are_groups_leaves_some_to_nobody() -> None:
    seats = seated("a", "b", clusters=4)
    assert names(seats.band(facts(near(0.2, 0.5, 0.9, 0.9)), workers("a", "b"), 0.1)) == ["b"]
