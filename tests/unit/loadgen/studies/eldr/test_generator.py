from __future__ import annotations

import numpy as np
import pytest

from loadgen.studies.eldr.generator import Generator, ModelShape, Spread, pick_probabilities, with_domains
from loadgen.studies.eldr.unions import fewer_in_one_domain, mean_union

SHAPE = ModelShape(3, 24, 4)
SPREAD = Spread(0.3, 0.8, 0.3, 0.7)
SHARES = {"a": 3.0, "b": 1.0}


def test_each_layer_picks_as_many_as_it_does() -> None:
    odds = np.random.default_rng(1).normal(0, 2, (5, 3, 24))
    chances = pick_probabilities(odds, 4)
    assert chances.sum(axis=-1) == pytest.approx(4.0, abs=1e-3)
    assert (chances > 0).all()
    assert (chances <= 1).all()
    assert (np.argsort(chances[0, 0]) == np.argsort(odds[0, 0])).all()


def test_equal_seeds_give_equal_requests_and_other_seeds_others_of_the_same_domains() -> None:
    generator = Generator(SHAPE, SPREAD, 5)
    one, again, other = (
        generator.draw(SHARES, 40, 1),
        Generator(SHAPE, SPREAD, 5).draw(SHARES, 40, 1),
        generator.draw(SHARES, 40, 2),
    )
    assert (one.prefill == again.prefill).all()
    assert not set(one.documents) & set(other.documents)
    assert not (one.prefill == other.prefill).all()
    assert one.domains.count("a") > one.domains.count("b")


def test_prompts_pick_as_many_experts_a_token_as_there_are_picks() -> None:
    drawn = Generator(SHAPE, SPREAD, 5).draw(SHARES, 60, 1)
    picked = drawn.prefill.sum(axis=2) / np.array(drawn.prompt_tokens)[:, None]
    assert picked.mean() == pytest.approx(4.0, rel=0.02)


def test_the_farther_apart_domains_are_the_fewer_experts_does_one_alone_read() -> None:
    near, far = (Generator(SHAPE, with_domains(SPREAD, each), 5).draw(SHARES, 120, 1) for each in (0.1, 1.5))
    assert fewer_in_one_domain(near, (8,)) < 0.03
    assert fewer_in_one_domain(far, (8,)) > 0.08
    assert mean_union(far, 8, is_mixed=True) <= 24
