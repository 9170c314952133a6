from __future__ import annotations

from gateway.core.features.disaggregated.admissions import AdmissionReason
from gateway.core.features.disaggregated.config import DecodeConfig, DecodePolicyName
from gateway.core.features.disaggregated.predictor import Facts
from gateway.core.nearness import Nearness, SignatureState
from gateway.core.vocabulary import ReplicaId, RequestId
from tests.support.decode import SECOND, Bench, bench, pool_spec
from tests.support.locality import near

ALONE = {"w0": "", "w1": "", "w2": ""}


def under(workers: dict[str, str] = ALONE, *, band: float = 0.1, batch: int = 8, clusters: int | None = None) -> Bench:
    config = DecodeConfig(DecodePolicyName.ELDR, band=band)
    one = bench(workers, config=config, spec=pool_spec(batch))
    groups = len({group or worker for worker, group in workers.items()})
    one.tier.take_artifact("a1", groups if clusters is None else clusters, 0)
    return one


def sent(one: Bench, key: str, nearness: Nearness | None, tokens: int = 100) -> str | None:
    admission = one.tier.add(Facts(RequestId(key), tokens, nearness=nearness), one.now_ns, one.now_ns + 30 * SECOND)
    if admission is not None:
        assert admission.reason is AdmissionReason.BYPASS
    return None if admission is None else admission.worker_id


def counts(one: Bench) -> dict[SignatureState, int]:
    return {state: count for state, count in one.tier.figures(one.now_ns).signatures.items() if count}


def test_a_request_goes_at_once_to_the_least_loaded_of_those_near_to_it() -> None:
    one = under()
    assert sent(one, "a", near(0.9, 0.85, 0.1)) == "w0", "of as little load, the nearest"
    assert sent(one, "b", near(0.9, 0.85, 0.1)) == "w1"
    assert sent(one, "c", near(0.9, 0.85, 0.1)) == "w0"
    assert sent(one, "d", near(0.9, 0.7, 0.1)) == "w0", "nobody else is near"
    assert counts(one) == {SignatureState.USED: 4}


def test_a_band_of_nothing_is_the_nearest_and_one_of_all_is_the_shortest_queue() -> None:
    nearest, shortest = under(band=0.0), under(band=1.0)
    for number in range(6):
        assert sent(nearest, f"q{number}", near(0.5, 0.51, 0.5)) == "w1"
        sent(shortest, f"q{number}", near(0.0, 1.0, 0.5))
    worked = {each.name: each for each in shortest.tier.figures(0).groups}
    assert [each.free_slots for each in worked.values()] == [6, 6, 6]


def test_who_is_full_is_passed_over_and_who_finds_no_room_waits_for_a_slot() -> None:
    one = under({"w0": "", "w1": ""}, batch=1)
    margin = DecodeConfig().in_flight_margin
    placed = [sent(one, f"q{number}", near(0.9, 0.1)) for number in range(2 * (1 + margin) + 1)]
    assert placed == ["w0"] * 3 + ["w1"] * 3 + [None]
    one.end("q1")
    assert one.tick() == [("q6", "w0")]


def test_without_a_signature_of_use_a_request_joins_the_shortest_queue_and_is_counted() -> None:
    one = under()
    for number in range(2):
        sent(one, f"near {number}", near(0.9, 0.1, 0.1))
    unusable = [None, Nearness(SignatureState.MALFORMED), near(0.9, 0.1, 0.1, artifact="a0"), near(0.9, 0.1)]
    went = [sent(one, f"q{number}", nearness) for number, nearness in enumerate(unusable)]
    assert set(went[:2]) == {"w1", "w2"}
    assert counts(one) == {
        SignatureState.USED: 2,
        SignatureState.MISSING: 1,
        SignatureState.MALFORMED: 1,
        SignatureState.STALE: 2,
    }


def test_another_artifact_counts_from_the_next_request_on() -> None:
    one = under()
    one.tier.take_artifact("a2", 3, 0)
    sent(one, "late", near(0.1, 0.1, 0.9))
    assert sent(one, "new", near(0.1, 0.1, 0.9, artifact="a2")) == "w2"
    assert counts(one) == {SignatureState.STALE: 1, SignatureState.USED: 1}


def test_a_worker_that_has_left_takes_its_centroid_with_it_and_the_others_stay_local() -> None:
    one = under()
    one.tier.leave(ReplicaId("w0"))
    assert sent(one, "a", near(0.9, 0.2, 0.5)) == "w2"
    one.tier.join(ReplicaId("w9"), "", 0)
    assert sent(one, "b", near(0.9, 0.2, 0.5)) == "w9", "who joins takes the place that was left"


def test_it_chooses_the_group_and_balance_the_rank() -> None:
    one = under({"w0": "a", "w1": "a", "w2": "b", "w3": "b"})
    assert sent(one, "large", near(0.9, 0.1), tokens=1_000) in ("w0", "w1")
    small = sent(one, "small", near(0.9, 0.1), tokens=10)
    assert small in ("w0", "w1")
    loads = one.loads()
    assert loads["a"] == (1_000, 10), "the small one went beside the large one's rank"
    assert loads["b"] == (0, 0)
