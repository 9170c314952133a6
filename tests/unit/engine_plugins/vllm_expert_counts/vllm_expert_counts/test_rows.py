from __future__ import annotations

import numpy as np
import pytest

from vllm_expert_counts.rows import BYTE_TOKENS, HostRows

LAYERS, EXPERTS, TOP_K = 3, 7, 2


def test_a_block_counts_each_layers_picks_and_begins_anew() -> None:
    rows = HostRows(blocks=4, block_tokens=16, layers=LAYERS, experts=EXPERTS)
    picks = np.array([[[0, 1], [2, 3], [6, 5]], [[0, 2], [2, 4], [6, 0]]], dtype=np.uint8)
    rows.add(np.array([2, 2]), np.array([0, 1]), picks)
    assert rows.total([2])().tolist() == [[2, 1, 1, 0, 0, 0, 0], [0, 0, 2, 1, 1, 0, 0], [1, 0, 0, 0, 0, 1, 2]]
    rows.add(np.array([1]), np.array([0]), picks)
    assert rows.total([2, 1])()[0].tolist() == [3, 2, 1, 0, 0, 0, 0]
    rows.clear(np.array([2]))
    assert rows.total([2])().sum() == 0
    assert rows.total([1])().sum() == LAYERS * TOP_K


def test_sums_are_wider_than_what_is_summed() -> None:
    """A row has one byte per expert, too narrow for the sum of 40 full blocks."""
    rows = HostRows(blocks=40, block_tokens=BYTE_TOKENS, layers=1, experts=2)
    assert rows.nbytes == 40 * 2
    picks = np.zeros((BYTE_TOKENS, 1, 1), dtype=np.uint8)
    for block in range(40):
        rows.add(np.full(BYTE_TOKENS, block), np.arange(BYTE_TOKENS), picks)
    assert rows.total(range(40))().tolist() == [[40 * BYTE_TOKENS, 0]]


def test_blocks_of_more_tokens_than_a_byte_counts_have_wider_rows() -> None:
    tokens = BYTE_TOKENS + 1
    rows = HostRows(blocks=1, block_tokens=tokens, layers=1, experts=2)
    rows.add(np.zeros(tokens, dtype=np.int64), np.arange(tokens), np.ones((tokens, 1, 1), dtype=np.uint8))
    assert rows.total([0])().tolist() == [[0, tokens]]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
def test_tokens_of_a_step_can_be_counted_alone(dtype: type[np.generic]) -> None:
    rows = HostRows(blocks=1, block_tokens=16, layers=LAYERS, experts=EXPERTS)
    picks = np.arange(5 * LAYERS * TOP_K).reshape(5, LAYERS, TOP_K) % EXPERTS
    counted = rows.of_tokens(np.array([1, 3]), picks.astype(dtype))()
    expected = np.zeros((LAYERS, EXPERTS), dtype=int)
    for token in (1, 3):
        for layer in range(LAYERS):
            np.add.at(expected[layer], picks[token, layer], 1)
    assert counted.tolist() == expected.tolist()


def test_a_sum_stays_as_it_was_when_it_was_asked_for() -> None:
    """A sum is read after the step, when other steps may have begun."""
    rows = HostRows(blocks=2, block_tokens=16, layers=1, experts=2)
    rows.add(np.array([0]), np.array([0]), np.ones((1, 1, 1), dtype=np.uint8))
    before = rows.total([0])
    rows.clear(np.array([0]))
    assert before().tolist() == [[0, 1]]


def test_a_block_that_goes_on_in_another_takes_its_row_along() -> None:
    rows = HostRows(blocks=2, block_tokens=16, layers=1, experts=2)
    rows.add(np.array([0]), np.array([0]), np.ones((1, 1, 1), dtype=np.uint8))
    rows.copy(0, 1)
    rows.clear(np.array([0]))
    assert rows.total([1])().tolist() == [[0, 1]]
