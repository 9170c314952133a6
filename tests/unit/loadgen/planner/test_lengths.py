from __future__ import annotations

import random

import pytest

from loadgen.planner.lengths import LengthStep, RequestShape, from_steps, lengths_of, paired, quantiles_of, recorded


def test_shapes_are_in_order_and_equal_ones_are_one() -> None:
    lengths = recorded([RequestShape(300, 100), RequestShape(10, 5), RequestShape(10, 5)])
    assert list(lengths.shapes) == [RequestShape(10, 5), RequestShape(300, 100)]
    assert lengths.share_up_to(15) == pytest.approx(2 / 3)
    assert lengths.share_up_to(14) == 0
    assert lengths.share_up_to(400) == 1
    assert lengths.mean(lambda each: each.prompt_tokens) == pytest.approx(320 / 3)
    assert lengths.quantile(0.5) == 15
    assert lengths.quantile(1.0) == 400


def test_a_cut_leaves_nobody_out() -> None:
    lengths = recorded([RequestShape(number, 1) for number in range(1, 101)])
    short, long = lengths.cut(50)
    assert short is not None
    assert long is not None
    assert short.weight + long.weight == lengths.weight
    assert short.total_tokens_max == 50
    assert lengths.cut(1)[0] is None
    assert lengths.cut(1_000)[1] is None


def test_what_has_no_prompt_or_no_answer_is_left_out() -> None:
    assert recorded([RequestShape(0, 5), RequestShape(5, 0), RequestShape(5, 5)]).weight == 1
    with pytest.raises(ValueError, match="no request"):
        lengths_of([(RequestShape(0, 5), 1.0)])


def test_of_very_many_requests_evenly_spread_ones_are_taken() -> None:
    lengths = recorded([RequestShape(number + 1, 1) for number in range(50_000)])
    assert len(lengths.shapes) <= 20_000
    assert lengths.quantile(0.5) == pytest.approx(25_000, rel=0.01)


def test_draws_come_as_often_as_weights_say() -> None:
    lengths = lengths_of([(RequestShape(1, 1), 1.0), (RequestShape(2, 2), 3.0)])
    rng = random.Random(1)
    drawn = [lengths.draw(rng) for _ in range(4_000)]
    assert drawn.count(RequestShape(2, 2)) == pytest.approx(3_000, abs=120)


def test_steps_keep_their_shares_and_their_means() -> None:
    lengths = from_steps([LengthStep(1_000, 0.8), LengthStep(9_000, 0.2)], (0.1, 0.05), seed=1, draws=2_000)
    assert lengths.share_up_to(1_000) == pytest.approx(0.8, abs=0.001)
    assert lengths.mean(lambda each: each.total_tokens) == pytest.approx(0.8 * 500 + 0.2 * 5_000, rel=0.01)
    answers = lengths.mean(lambda each: each.output_tokens / each.total_tokens)
    assert answers == pytest.approx(0.1, abs=0.01)


def test_two_curves_are_paired_at_random_and_keep_their_own_shares() -> None:
    prompts = quantiles_of([(0.0, 0.0), (100.0, 0.5), (1_000.0, 1.0)])
    answers = quantiles_of([(10.0, 0.0), (20.0, 1.0)])
    assert prompts(0.25) == 50
    assert prompts(0.75) == 550
    assert prompts(1.0) == 1_000
    lengths = paired(prompts, answers, seed=1, draws=2_000)
    assert lengths.mean(lambda each: each.prompt_tokens) == pytest.approx(0.5 * 50 + 0.5 * 550, rel=0.01)
    assert lengths.mean(lambda each: each.output_tokens) == pytest.approx(15, rel=0.02)
