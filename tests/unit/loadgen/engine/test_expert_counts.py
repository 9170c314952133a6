from __future__ import annotations

import json

import numpy as np

from gateway.features.expert_locality.expert_counts import read_counts
from gateway.request.handoffs import COUNTS_KEY
from loadgen.engine import expert_counts
from loadgen.engine.expert_counts import ExpertShape, counts_of, told_counts

SHAPE = ExpertShape(4, 24, 3)
PROMPT = b"one two three four five six seven "


def test_each_token_goes_to_as_many_experts_of_each_layer_as_are_picked() -> None:
    counts = counts_of(PROMPT, SHAPE)
    assert counts.shape == (4, 24)
    assert counts.sum(axis=1).tolist() == [9 * 3] * 4
    assert (counts_of(PROMPT[:4], SHAPE) <= 1).all(), "a token's picks differ"


def test_prompts_of_the_same_words_share_their_experts() -> None:
    def cosine(one: bytes, two: bytes) -> float:
        flat = [counts_of(each, SHAPE).ravel().astype(float) for each in (one, two)]
        return float(flat[0] @ flat[1] / np.linalg.norm(flat[0]) / np.linalg.norm(flat[1]))

    law, code = b"wherefor" * 20, b"def fn()" * 20
    assert cosine(law, law + law) > 0.99
    assert cosine(law, code) < 0.7


def test_a_gateway_reads_what_is_told() -> None:
    assert expert_counts.COUNTS_KEY == COUNTS_KEY
    read = read_counts(json.dumps(told_counts(PROMPT, SHAPE, "m")).encode())
    assert (read.counts == counts_of(PROMPT, SHAPE)).all()
    assert read.model == "m"
