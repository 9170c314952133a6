from __future__ import annotations

from gateway.core.features.disaggregated.predictors.history import Ended, Snapshot
from gateway.features.disaggregated.samples import questions_about, split_in_time, with_features


def snapshot(*outputs: int) -> Snapshot:
    ended = tuple(Ended(0, 10, output, number, 0) for number, output in enumerate(outputs))
    return Snapshot(ended, len(ended))


def test_each_request_is_asked_about_along_its_life_and_never_after_it() -> None:
    asked = questions_about(list(with_features(snapshot(100, 7, 0))), every_tokens=10)
    assert len(asked) == len(asked.ages) == len(asked.remaining) == 11
    assert (asked.ages + asked.remaining).tolist() == [100] * 10 + [7]
    assert asked.remaining.min() > 0
    assert asked.leaves(20).tolist() == [remaining <= 20 for remaining in asked.remaining.tolist()]
    assert asked.within(20).max() == 20


def test_there_are_never_more_questions_than_asked_for() -> None:
    known = list(with_features(snapshot(*[1000] * 50)))
    assert 400 <= len(questions_about(known, every_tokens=1, questions_max=500)) <= 500


def test_ages_of_different_requests_do_not_coincide() -> None:
    asked = questions_about(list(with_features(snapshot(*[100] * 50))), every_tokens=50)
    assert len(set(asked.ages.tolist())) > 40


def test_the_later_part_is_held_out_and_no_feature_of_the_earlier_knows_it() -> None:
    whole = snapshot(*range(100, 140))
    split = split_in_time(whole, 0.25)
    assert (len(split.earlier), len(split.later)) == (30, 10)
    alone = list(with_features(Snapshot(whole.ended[:30], 30)))
    assert list(split.earlier) == alone
    assert max(ended.output_tokens for ended, _ in split.earlier) < min(ended.output_tokens for ended, _ in split.later)
